"""Delays: how long until a failed job, a dead child or a lost connection is tried again.  Pure; chance is passed in."""

from __future__ import annotations

from random import Random

__all__ = ["jittered", "retry_delay", "retry_jitter"]

# Sidekiq's curve passes a million years at a few thousand retries.  Beyond this count the delay would only grow until
# Ruby's Time cannot show it.
MAX_COUNT = 1_000


def retry_delay(count: int, rng: Random) -> float:
    """Return the seconds until attempt `count` + 1 of a failed job.

    count: failures before this one, 0 for the first.
    Result: count**4 + 15 + jitter.  Source: sidekiq job_retry.rb; same curve so that mixed clusters agree.
    """
    count = min(count, MAX_COUNT)
    return count**4 + 15 + retry_jitter(count, rng)


def retry_jitter(count: int, rng: Random) -> int:
    """Return 0 … 10 × (count + 1) − 1 seconds, added to the curve and to custom delays alike (sidekiq 8)."""
    return rng.randrange(10 * (min(count, MAX_COUNT) + 1))


def jittered(attempt: int, base: float, cap: float, rng: Random) -> float:
    """Return base × 2**attempt seconds, at most cap, less up to a quarter, so that processes do not retry in step."""
    delay: float = min(cap, base * 2 ** min(attempt, 32))
    return delay * (1 - rng.random() / 4)
