"""A small shop: mails, a nightly clean-up, an import that fails and is retried, and a slow report.

Run it:      kiqcluster --embedded -r examples.shop 'cronjob:*' default,mailers
Enqueue:     python -m examples.shop            (or `make demo`, which does both)
"""

from examples.shop.jobs import CleanUpCarts, ImportCatalogue, MonthlyReport, order_confirmation, welcome

__all__ = ["CleanUpCarts", "ImportCatalogue", "MonthlyReport", "order_confirmation", "welcome"]
