"""Write the lists of Redis commands, and the users of the guide: python -m tools.rights."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from functools import cache

from tools.rights.reach import ROOT, commands_of

__all__ = ["GUIDE", "LISTS", "guide", "lists", "users"]

LISTS = ROOT / "kiqcluster/store/rights/lists.py"
GUIDE = ROOT / "docs/guides/secure_redis.md"
WIDTH = 116
CONTINUED = " \\\n    "
TITLE = '''"""Lists: the Redis commands that each worker runs, and those that it runs besides for a feature of its jobs.

Made by `python -m tools.rights` from the code and the scripts: not to be edited.
"""

from __future__ import annotations

__all__ = ["FEATURES", "WORKER"]
'''

# Feature → the modules with what only it needs.
FEATURES: dict[str, tuple[str, ...]] = {
    "cron": (
        "kiqcluster.features.cron",
        "kiqcluster.store.cron",
        "kiqcluster.store.guarded_push",
        "kiqcluster.worker.maintenance.cron_sync",
        "kiqcluster.worker.maintenance.cron_ticks",
    ),
    "deduplication": ("kiqcluster.features.deduplication", "kiqcluster.store.guarded_push"),
    "iterable jobs": ("kiqcluster.features.iteration", "kiqcluster.iterable"),
    "limits": (
        "kiqcluster.features.limits",
        "kiqcluster.limits",
        "kiqcluster.store.limits",
        "kiqcluster.worker.maintenance.limit_upkeep",
    ),
}
WORKER = ("kiqcluster.client", "kiqcluster.worker")  # jobs push others
# The code of an application may call all of this, in a job or elsewhere.
CLIENT = (
    "kiqcluster.client",
    "kiqcluster.control.cancellation",
    "kiqcluster.contrib",
    "kiqcluster.iterable",
    "kiqcluster.job",
    "kiqcluster.limited_capacity",
    "kiqcluster.limits",
    "kiqcluster.batches",
)
PLAIN = ("LPUSH", "SADD", "WAIT", "ZADD")  # of `Client` for jobs without a feature; a test pushes with these alone
OF_CONNECTIONS = ("CLUSTER|SLOTS", "ROLE", "SELECT")  # of a Redis Cluster, behind Sentinel, of another database than 0
OF_SENTINELS = "SENTINEL|GET-MASTER-ADDR-BY-NAME"


@cache
def worker_commands() -> tuple[frozenset[str], dict[str, frozenset[str]]]:
    """Return the commands of every worker, and those of each feature besides."""
    featured = [module for several in FEATURES.values() for module in several]
    common = commands_of(WORKER, featured) - {OF_SENTINELS}
    besides = {
        feature: commands_of(several, [each for each in featured if each not in several]) - common - {OF_SENTINELS}
        for feature, several in FEATURES.items()
    }
    return common, besides


def lists() -> str:
    """Return the text of the module of lists."""
    common, besides = worker_commands()
    rows = "".join(f'    "{feature}": {_tuple(names, 4)},\n' for feature, names in besides.items())
    return f"{TITLE}\nWORKER = {_tuple(common, 0)}\n\nFEATURES: dict[str, tuple[str, ...]] = {{\n{rows}}}\n"


def _tuple(names: Iterable[str], depth: int) -> str:
    found = sorted(names)
    short = ", ".join(f'"{name}"' for name in found)
    if depth and len(short) < WIDTH // 2:
        return f"({short}{',' * (len(found) == 1)})"
    margin = " " * (depth + 4)
    return "(\n" + "".join(f'{margin}"{name}",\n' for name in found) + " " * depth + ")"


@cache
def users() -> dict[str, tuple[str, frozenset[str]]]:
    """Return the users of the guide: name → the key patterns, and the commands."""
    common, besides = worker_commands()
    client, fixed = commands_of(CLIENT) - {OF_SENTINELS}, frozenset(OF_CONNECTIONS)
    return {
        "worker": ("~*", common.union(client, *besides.values()) | fixed),
        "client": ("~*", client | fixed),
        "producer": ("~queues ~queue:* ~schedule", frozenset(PLAIN) | fixed),
        "kiqctl": ("~*", commands_of(["kiqcluster.ctl"]) - {OF_SENTINELS} | fixed),
        "pages": ("~*", commands_of(["kiqcluster.web", "kiqcluster.batches"]) - {OF_SENTINELS} | fixed),
        "sentinel": ("resetkeys", frozenset([OF_SENTINELS])),
    }


def rule(name: str) -> str:
    """Return the command that makes a user of the guide, in lines that a shell and redis-cli take as one."""
    keys, commands = users()[name]
    words = " ".join(f"+{each.lower()}" for each in sorted(commands))
    lines = textwrap.wrap(f"ACL SETUSER {name} on >PASSWORD {keys} resetchannels -@all {words}", WIDTH,
                          break_on_hyphens=False, break_long_words=False)  # fmt: skip
    return CONTINUED.join(lines)


def guide(text: str) -> str:
    """Return the guide with its users as they have to be."""
    for name in users():
        before, old, behind = re.split(rf"^(ACL SETUSER {name} [^`]*)(?=\n```)", text, flags=re.M)
        text = text.replace(old, rule(name)) if before and behind else text
    return text


def main() -> None:
    """Write both."""
    LISTS.write_text(lists(), encoding="utf-8")
    GUIDE.write_text(guide(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
