"""The way to the clusters of a deploy, which an outage of Redis does not end.

1. LocalSockets   the clusters of this host that say themselves that they are in this deploy
2. DeployWay      by Redis, for as long as the lease lasts; while it is away, by these sockets too; it keeps the lock
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kiqcluster.clock import SystemClock
from kiqcluster.config import Config
from kiqcluster.control.cluster_document import View
from kiqcluster.control.control_messages import Message
from kiqcluster.control.deploy_lock import DeployLock
from kiqcluster.control.redis_transport import RedisWay
from kiqcluster.control.socket_transport import SocketWay
from kiqcluster.control.transports import Answer, NobodyThere
from kiqcluster.control.waiting import NEVER, POLL
from kiqcluster.errors import KiqError, StoreError
from kiqcluster.process import config_sources
from kiqcluster.store import Store, is_outage

__all__ = ["DeployWay", "LocalSockets"]

LOCK_SECONDS = 60.0  # for which the lock is kept at least, from each look on
RENEW_SECONDS = 10.0  # between two renewals of it
LONG_OUTAGE_SECONDS = 30.0  # after which processes may have vanished from the list, for they could not beat
REGISTER_SECONDS = 12.0  # within which they all show again
UNITS = Path("/run/kiqcluster")  # where deploy/systemd has the control socket of each instance
PLACE = frozenset({"control", "pidfile", "environment"})  # the settings that say where one is


class LocalSockets:
    """by: how a cluster that is quiet for the deploy calls it.  paths: to use instead of those that are found."""

    def __init__(self, by: str, paths: Sequence[str] = ()) -> None:
        self._by = by
        self._paths = paths
        self._told: set[tuple[str, str]] = set()  # path and id of the message

    def tell(self, message: Message) -> None:
        """Give each cluster of the deploy an order that it has not been given yet; who does not answer is left."""
        for path in self._paths or _found():
            if (path, message.id) in self._told:
                continue
            with suppress(KiqError):
                way = SocketWay(path)
                if any(self._by in (view.quiet_by, view.deploy) for view in way.look().values()):
                    way.tell(message)
                    self._told.add((path, message.id))


def _found() -> Iterator[str]:
    """Yield the control sockets of this host: where the configuration here has one, and where it is by default."""
    with suppress(KiqError):
        if (path := config_sources.load_part(PLACE, {})[0].known_control()) is not None:
            yield path
    yield from sorted(map(str, UNITS.glob("*/control.sock")))
    if (default := Config().default_control()) is not None:
        yield from sorted(map(str, Path(default).parent.glob("kiqcluster-*.sock")))


class DeployWay:
    """patience: seconds for which Redis may be away; if that is not exact, what the lock has left counts instead."""

    def __init__(
        self,
        store: Store,
        hosts: Sequence[str],
        lock: DeployLock,
        local: LocalSockets,
        patience: float,
        *,
        is_exact: bool,
    ) -> None:
        self.patience = patience
        self._is_exact = is_exact
        self._store = store
        self._hosts = hosts
        self._lock = lock
        self._local = local
        self._clock = SystemClock()
        self._renew_at = 0.0
        self._redis = RedisWay(store, hosts)

    def begin(self, *orders: Message) -> bool:
        """Have the lock, however long Redis takes; return whether the deploy may be under way: it was ours already.

        orders: what the clusters of this host are told while Redis is away; it may have lost the lock when it is back.
        Raises DeployHeld when it is somebody else's.
        """
        began, was_away = self._clock.monotonic(), False
        while True:
            try:
                hold = self._lock.take(LOCK_SECONDS)
                break
            except StoreError as error:
                if not is_outage(error) or self._clock.monotonic() >= began + self.patience:
                    raise
                was_away = True
                for order in orders:
                    self._local.tell(order)
            NEVER.wait(POLL)
        is_long = self._clock.monotonic() - began >= LONG_OUTAGE_SECONDS
        if was_away and (is_long or not hold.before):  # it may have lost what it knew
            NEVER.wait(REGISTER_SECONDS)
        if not self._is_exact and hold.before:
            self.patience = hold.remaining
        self._renew_at = self._clock.monotonic() + RENEW_SECONDS
        return bool(hold.before) or was_away

    def tell(self, message: Message) -> Sequence[Answer]:
        """See Way."""
        way = RedisWay(self._store, self._hosts, patience=self.patience, on_outage=lambda: self._local.tell(message))
        deadline = self._clock.monotonic() + REGISTER_SECONDS
        while True:
            try:
                return way.tell(message)
            except NobodyThere:
                if self._clock.monotonic() >= deadline:
                    raise
            NEVER.wait(POLL)

    def look(self) -> Mapping[str, View]:
        """See Way.  Raises DeployHeld when somebody else has taken the lock."""
        if self._clock.monotonic() >= self._renew_at:
            self._lock.take(LOCK_SECONDS)
            self._renew_at = self._clock.monotonic() + RENEW_SECONDS
        return self._redis.look()

    def last_look(self) -> Mapping[str, View]:
        """Return what there is to see at the end; nothing while Redis is away: how it went is known by then."""
        try:
            return self._redis.look()
        except StoreError as error:
            if not is_outage(error):
                raise
            return {}

    def end(self) -> None:
        """Let go of the lock; while Redis is away its lease does that."""
        with suppress(StoreError):
            self._lock.drop()
