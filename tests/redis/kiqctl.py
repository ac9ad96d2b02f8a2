"""kiqctl within the test's process, and jobs that lie where a test wants them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from inspect import signature
from typing import Any

from click.testing import CliRunner, Result

from kiqcluster.ctl.command import command
from kiqcluster.store import Store

NOW = 1_795_168_740.5
CHUNK = 1_000  # entries in one command
RUNNER = CliRunner(**({"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}))  # click 8.1


class Kiqctl:
    """Runs kiqctl on a Redis; nobody is at a terminal."""

    def __init__(self, redis: str) -> None:
        self._environ = {"REDIS_URL": redis, "COLUMNS": None}

    def __call__(self, *words: str, **environ: str) -> Result:
        result = RUNNER.invoke(command, words, env={**self._environ, **environ})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def ask(self, *words: str, code: int = 0) -> Any:
        """Return the document that it prints with --json."""
        result = self(*words, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)


def job(number: int, **more: Any) -> bytes:
    payload = {"class": "Job", "args": [number], "jid": f"j{number}", "queue": "default", **more}
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def add(store: Store, key: str, *pairs: tuple[float, bytes]) -> None:
    """Have entries lie in a set."""
    for at in range(0, len(pairs), CHUNK):
        words = [word for score, raw in pairs[at : at + CHUNK] for word in (repr(score), raw)]
        store.call("ZADD", key, *words)


def fill(store: Store, payloads: Iterable[bytes], queue: str = "default") -> None:
    """Push jobs in this order: the first will be fetched first."""
    found = list(payloads)
    store.call("SADD", "queues", queue)
    for at in range(0, len(found), CHUNK):
        store.call("LPUSH", f"queue:{queue}", *found[at : at + CHUNK])


def lying(store: Store, key: str) -> dict[bytes, float]:
    """Return the entries of a set."""
    flat = store.call("ZRANGE", key, 0, -1, "WITHSCORES")
    return {raw: float(score) for raw, score in zip(flat[::2], flat[1::2], strict=True)}


def queued(store: Store, queue: str = "default") -> list[Any]:
    """Return the first arguments of the jobs of a queue, the next to be fetched first."""
    return [json.loads(raw)["args"][0] for raw in reversed(store.call("LRANGE", f"queue:{queue}", 0, -1))]


def numbers(store: Store, key: str) -> list[Any]:
    """Return the first arguments of the entries of a set, the lowest score first."""
    return [json.loads(raw)["args"][0] for raw in lying(store, key)]
