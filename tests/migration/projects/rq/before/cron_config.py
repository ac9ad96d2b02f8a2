"""The schedule; `rq cron cron_config.py` runs it."""

import shop
from rq import cron

cron.register(shop.report, queue_name="default", interval=2)
