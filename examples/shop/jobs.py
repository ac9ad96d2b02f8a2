"""The shop's jobs: both forms of declaration, options, a hook, and a job that heeds a stop."""

from __future__ import annotations

import logging
import time
from typing import Any

from kiqcluster import Interrupted, Job, current_job, job

logger = logging.getLogger(__name__)


@job(queue="mailers")
def welcome(user_id: int) -> None:
    """Greet a new customer."""
    logger.info("mail: welcome, customer %d", user_id)


@job(queue="mailers", name="Shop::OrderConfirmation", tags=["orders"])
def order_confirmation(order_id: int, total: str) -> None:
    """Confirm an order.  The name is Ruby's, so that either side may enqueue and run it."""
    logger.info("mail: order %d over %s", order_id, total)


class CleanUpCarts(Job, queue_namespace="cronjob"):
    """Forget carts that nobody came back for; its queue is `cronjob:clean_up_carts`."""

    def perform(self, older_than_days: int = 30) -> None:
        logger.info("carts older than %d days are gone", older_than_days)


class ImportCatalogue(Job, retry=5, backtrace=3):
    """Read a supplier's price list.  The first try fails, as suppliers' servers do."""

    def perform(self, supplier: str) -> None:
        running = current_job()
        if running is not None and "retry_count" not in running.payload:
            raise ConnectionError(f"{supplier} does not answer")
        logger.info("prices of %s imported", supplier)

    @staticmethod
    def retry_in(count: int, error: Exception, payload: dict[str, Any]) -> float:
        """Try again soon: this is a demonstration."""
        return 1.0


class MonthlyReport(Job):
    """Add up a month.  Slow, so it gives way when the process stops, and starts again afterwards."""

    def perform(self, month: str, seconds: float = 3.0) -> None:
        done_at = time.monotonic() + seconds
        while time.monotonic() < done_at:
            running = current_job()
            if running is not None and running.stopping:
                raise Interrupted
            time.sleep(0.05)
        logger.info("report for %s is ready", month)
