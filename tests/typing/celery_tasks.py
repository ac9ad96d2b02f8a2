"""What mypy must see of tasks that are declared as in Celery: they keep their signature, without a bound `self`.

Nothing here runs.  Each line with an ignore is a wrong call, as in jobs.py.
"""

from __future__ import annotations

from typing import Any, assert_type

from kiqcluster.contrib.celery import AsyncResult, Celery, Task, shared_task

app = Celery("shop")


@app.task
def add(x: int, y: int = 0) -> int:
    return x + y


@shared_task(bind=True, max_retries=5, rate_limit="10/m")
def sync(self: Task[..., Any], account: int) -> str:
    self.retry(countdown=5)


@shared_task(queue="mailers", ignore_result=True)
def mail(user: int) -> None: ...


def calls() -> None:
    assert_type(add(1), int)
    assert_type(add.delay(1, y=2), AsyncResult[int])
    assert_type(add.delay(1).get(timeout=3), int)
    assert_type(sync.delay(7), AsyncResult[str])
    assert_type(add.apply_async((1,), countdown=5), AsyncResult[int])
    mail.delay(1)
    add.delay("1")  # type: ignore[arg-type]
    add.delay()  # type: ignore[call-arg]
    sync.delay(7, 8)  # type: ignore[call-arg]
    mail.delay(person=1)  # type: ignore[call-arg]


@shared_task(prioritiy=3)  # type: ignore[call-overload, untyped-decorator]
def misspelt() -> None: ...


@shared_task(acks_late=False)  # type: ignore[call-overload, untyped-decorator]
def early() -> None: ...
