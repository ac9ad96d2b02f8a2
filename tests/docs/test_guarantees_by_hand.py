"""Examples of guarantees and of docs/guides/write_jobs.md that declare jobs, or show kiqctl and files: used here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kiqcluster.api import StrikeSet
from kiqcluster.features.strikes import Strike
from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.docs.guarantee_pages import shown
from tests.docs.test_docs import blocks
from tests.docs.test_guarantees_of_payloads import example, output
from tests.kit import ROOT, RedisServer
from tests.redis.kiqctl import Kiqctl

DRAIN = "from kiqcluster.testing import drain, fake\nwith fake():\n    "


def test_the_export_of_rate_limits_runs(tmp_path: Path, redis_server: RedisServer) -> None:
    calls = f"{DRAIN}export.perform_async(7)\n    drain()\n"

    assert output(f"{example('Rate limits')}\n{calls}", tmp_path, redis_server) == "exported 7\n"


def test_the_export_of_timeouts_asks_for_its_time_and_ends(tmp_path: Path, redis_server: RedisServer) -> None:
    calls = f"{DRAIN}export.perform_async(3)\n    print(drain())\n"

    assert output(f"{example('Timeouts')}\n{calls}", tmp_path, redis_server) == "1\n"


def test_the_hook_of_interruptions_is_told(tmp_path: Path, redis_server: RedisServer) -> None:
    calls = "Import().interruptions_exhausted({'args': ['a.csv']}, RuntimeError('3 processes died'))\n"

    printed = output(f"{example('Interruptions')}\n{calls}", tmp_path, redis_server)

    assert printed == "gave up ['a.csv']: 3 processes died\n"


def test_the_policies_let_run_defer_and_drop(tmp_path: Path, redis_server: RedisServer) -> None:
    calls = """
from kiqcluster.process.runtime import Run
def ask(job, *args):
    declared = job.definition.local["policy"]
    run = Run({"class": job.definition.name, "args": list(args)}, "default", job.definition, None, [])
    return next((found for each in (declared if isinstance(declared, (list, tuple)) else [declared])
                 if (found := each(run)) is not None), None)

print(ask(sync_stock, "shop 7"), ask(sync_stock, "shop 8"), ask(Rebuild, "orders"))
FLAGS["Rebuild"] = False
print(ask(Rebuild, "orders"))
"""

    printed = output(f"{example('Policies')}\n{calls}", tmp_path, redis_server)

    assert printed == ("Defer(seconds=60, reason='maintenance') None None\nDrop(reason='feature_flag')\n")


def test_the_error_that_means_not_yet_is_raised(tmp_path: Path, redis_server: RedisServer) -> None:
    source = "\n".join(blocks(ROOT / "docs/guides/write_jobs.md", "python"))
    calls = """
try:
    announce.perform_inline("home")
except RetryError as error:
    print(type(error).__name__, error)
"""

    assert output(f"{source}\n{calls}", tmp_path, redis_server).endswith("NotIndexedYet home\n")


def test_the_shards_are_those_of_the_file(tmp_path: Path, store: Store, redis_server: RedisServer) -> None:
    file = shown("Shards", "toml")
    assert "redis://reports:6379/0" in file
    other = Store(f"unix://{redis_server.socket}?db=7")
    other.call("FLUSHDB")
    (tmp_path / "kiqcluster.toml").write_text(file.replace("redis://reports:6379/0", other.address))

    printed = output(f"{example('Shards')}\npush_all([2024, 2025])\nprint(Yearly.queue)\n", tmp_path, redis_server)

    assert printed == "reports\n"
    there = [decode(raw)["args"] for raw in other.call("LRANGE", "queue:reports", 0, -1)]
    other.call("FLUSHDB")
    assert (there, store.call("KEYS", "*")) == ([[2026], [2025], [2024]], [])


def test_strikes_are_shown_as_on_the_page(
    store: Store, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kiqctl = Kiqctl(store.address)
    monkeypatch.setattr("kiqcluster.ctl.jobs.strike._user", lambda: "ann")
    monkeypatch.setattr("kiqcluster.ctl.jobs.strike.socket.gethostname", lambda: "app-1")
    ids = iter(["3fa9c1", "88b1d0"])
    monkeypatch.setattr("kiqcluster.api.strikes.secrets.token_hex", lambda _: next(ids))
    now = SystemClock.now()
    monkeypatch.setattr(SystemClock, "now", staticmethod(lambda: now))
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", shown("Strikes", "console"), re.MULTILINE):
        if command == "kiqctl strike":
            age(store, "3fa9c1", 19, 14)
            age(store, "88b1d0", 2, 1)

        done = kiqctl(*shlex.split(command)[1:])

        assert (done.exit_code, done.stdout) == (0, expected)
    assert [strike.id for strike, _ in StrikeSet(store=store).list()] == ["88b1d0"]


def age(store: Store, identifier: str, seconds: float, count: int) -> None:
    """Make a strike so much older, and count the jobs that it has met."""
    raw = store.call("HGET", store.keys.strikes, identifier)
    strike = Strike.read(identifier.encode(), raw)
    older = Strike(**{**{name: getattr(strike, name) for name in Strike.__slots__}, "until": strike.until - seconds})
    store.call("HSET", store.keys.strikes, identifier, older.encoded())
    store.call("HSET", store.keys.struck, identifier, count)
