"""Jobs whose results are kept, for process tests."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from kiqcluster import job
from kiqcluster.process.runtime import current_setup


@job(result_ttl=60)
def double(number: int) -> int:
    return 2 * number


@job(result_ttl=60)
async def adouble(number: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * number


@job(result_ttl=60, retry=0)
def fail() -> None:
    raise ValueError("no luck")


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@job(result_ttl=60, retry=0)
def fail_without_words() -> None:
    raise SpeechlessError


@job(result_ttl=60, dead=False, max_retries_after_interruption=1)
def die() -> None:
    os.abort()


@job(result_ttl=60, retry=1)
def succeed_later() -> str:
    """Fail at first."""
    if current_setup().current_store().call("INCR", "tries") == 1:
        raise ValueError("not yet")
    return "at last"


@job(result_ttl=60)
def unwritable() -> Any:
    return object()


@job(result_ttl=60)
def not_a_number() -> Any:
    return {"mean": float("nan")}


@job(result_ttl=60)
def huge() -> str:
    return "x" * 1_000_001


@job(result_ttl=60, expires_in=0.001)
def expires() -> None: ...


@job
def forgetful() -> int:
    return 1
