"""A user of Redis who lacks one command: what a call of ours uses, and what it answers without each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kiqcluster.store import Store
from kiqcluster.testing import RedisServer
from tests.rights import user_of_guide

USER = "limited"
# Of the connection, of the test, and MULTI, which says that of the commands within.
OF_NO_ANSWER = {"auth", "hello", "select", "client|setinfo", "config|resetstat", "multi", "exec"}


@dataclass
class Refusals:
    """A server with the data of a test, which is there again before each call.

    lay: writes the data.
    """

    server: RedisServer
    lay: Callable[[Store], object]

    def __post_init__(self) -> None:
        self.admin = self.server.store()
        self.admin.call("FLUSHALL")
        self.lay(self.admin)
        keys = self.admin.call("KEYS", "*")
        dumps = self.admin.pipeline([("DUMP", key) for key in keys])
        lives = [max(0, each) for each in self.admin.pipeline([("PTTL", key) for key in keys])]  # 0: no expiry
        self._restore = [("RESTORE", *each) for each in zip(keys, lives, dumps, strict=True)]

    @property
    def url(self) -> str:
        """The address for the user."""
        return self.server.url.replace("//", f"//{USER}:pw@")

    def begin(self, *forbidden: str) -> None:
        """Have the data there again, and the user may do all but this."""
        rules = [f"-{command}" for command in forbidden]
        user = ("ACL", "SETUSER", USER, "reset", "on", ">pw", "~*", "&*", "+@all", *rules)
        self.admin.pipeline([("FLUSHDB",), *self._restore, user, ("ACL", "LOG", "RESET"), ("CONFIG", "RESETSTAT")])

    def begin_as(self, name: str) -> str:
        """Have the data there again, and a user of the guide; return the address for that user."""
        made = [("ACL", "DELUSER", name), tuple(user_of_guide(name))]
        self.admin.pipeline([("FLUSHDB",), *self._restore, *made, ("ACL", "LOG", "RESET")])
        return self.server.url.replace("//", f"//{name}:pw@")

    def used(self) -> Iterator[str]:
        """Yield the commands that have run since `begin`, those of scripts as well."""
        for line in self.admin.call("INFO", "commandstats").decode().splitlines():
            if line.startswith("cmdstat_"):
                name = line.removeprefix("cmdstat_").partition(":")[0]
                if name not in OF_NO_ANSWER and "acl|" not in name and name not in ("flushdb", "restore"):
                    yield name

    def was_refused(self) -> bool:
        """Return whether the user has tried something since `begin` that it may not."""
        return bool(self.admin.call("ACL", "LOG"))
