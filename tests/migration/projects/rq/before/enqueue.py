"""Enqueues two jobs, and waits for one."""

import os
from datetime import timedelta

from redis import Redis
from rq import Queue, Retry
from shop import charge, welcome

queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))
result = queue.enqueue(welcome, "ada")
queue.enqueue_in(timedelta(seconds=1), charge, 7, retry=Retry(max=3))
print(result.latest_result(timeout=20).return_value)
