"""Transport for the orders of a deploy, which survives an outage of Redis.

1. LocalSockets      sends to clusters of this host that report that they are part of the deploy
2. DeployTransport   sends through Redis while the lease lasts, and to these sockets while it is away; renews the lock
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kiqcluster.control.cluster_document import ClusterStatus
from kiqcluster.control.control_messages import Message
from kiqcluster.control.deploy_lock import DeployLock
from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.socket_transport import SocketTransport
from kiqcluster.control.transports import Answer, NoSuchProcess
from kiqcluster.control.waiting import NEVER_SET, POLL_SECONDS
from kiqcluster.errors import KiqError, StoreError
from kiqcluster.process import config_sources
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.store import Store, is_outage

__all__ = ["DeployTransport", "LocalSockets"]

LOCK_SECONDS = 60.0  # lease of the lock after each renewal
RENEW_SECONDS = 10.0  # between two renewals
LONG_OUTAGE_SECONDS = 30.0  # after which processes may be missing from the registry: their heartbeats expire
REGISTER_SECONDS = 12.0  # within which all of them register again
UNIT_SOCKETS = Path("/run/kiqcluster")  # deploy/systemd puts the control socket of each instance here
LOCATION_SETTINGS = frozenset({"control", "pidfile", "environment"})  # the settings that locate the control socket


class LocalSockets:
    """by: the name of the deploy in the state of its clusters.  paths: sockets to use instead of the default ones."""

    def __init__(self, by: str, paths: Sequence[str] = ()) -> None:
        self._by = by
        self._paths = paths
        self._told: set[tuple[str, str]] = set()  # path and id of the message

    def send(self, message: Message) -> None:
        """Send an order once to each cluster of the deploy.  Clusters that do not answer are skipped."""
        for path in self._paths or _find_sockets():
            if (path, message.id) in self._told:
                continue
            with suppress(KiqError):
                transport = SocketTransport(path)
                if any(self._by in (status.quiet_by, status.deploy) for status in transport.statuses().values()):
                    transport.send(message)
                    self._told.add((path, message.id))


def _find_sockets() -> Iterator[str]:
    """Yield the control sockets of this host: the configured one, those of systemd units, and the default paths."""
    with suppress(KiqError):
        if (path := config_sources.load_part(LOCATION_SETTINGS, {})[0].known_control()) is not None:
            yield path
    yield from sorted(map(str, UNIT_SOCKETS.glob("*/control.sock")))
    if (default := Config().default_control()) is not None:
        yield from sorted(map(str, Path(default).parent.glob("kiqcluster-*.sock")))


class DeployTransport:
    """max_outage: seconds for which Redis may be away; unless exact, the remaining lease of the lock replaces it.

    others: further shards, as in RedisTransport.
    """

    def __init__(
        self,
        store: Store,
        hosts: Sequence[str],
        lock: DeployLock,
        local: LocalSockets,
        max_outage: float,
        *,
        is_max_outage_exact: bool,
        others: Sequence[Store] = (),
    ) -> None:
        self.max_outage = max_outage
        self._others = others
        self._is_max_outage_exact = is_max_outage_exact
        self._store = store
        self._hosts = hosts
        self._lock = lock
        self._local = local
        self._clock = SystemClock()
        self._renew_at = 0.0
        self._redis = RedisTransport(store, hosts, others=others)

    def begin(self, *orders: Message) -> bool:
        """Acquire the lock, and wait for Redis while it is away.  Return whether the deploy may be under way.

        It may be if the lock was ours already, or if Redis was away and may have lost it.
        orders: sent to the clusters of this host while Redis is away.
        Raises DeployHeld if another owner has the lock.
        """
        began, was_away = self._clock.monotonic(), False
        while True:
            try:
                state = self._lock.take(LOCK_SECONDS)
                break
            except StoreError as error:
                if not is_outage(error) or self._clock.monotonic() >= began + self.max_outage:
                    raise
                was_away = True
                for order in orders:
                    self._local.send(order)
            NEVER_SET.wait(POLL_SECONDS)
        is_long = self._clock.monotonic() - began >= LONG_OUTAGE_SECONDS
        if was_away and (is_long or not state.before):  # Redis may have lost its data
            NEVER_SET.wait(REGISTER_SECONDS)
        if not self._is_max_outage_exact and state.before:
            self.max_outage = state.remaining
        self._renew_at = self._clock.monotonic() + RENEW_SECONDS
        return bool(state.before) or was_away

    def send(self, message: Message) -> Sequence[Answer]:
        """See Transport."""
        transport = RedisTransport(
            self._store,
            self._hosts,
            max_outage=self.max_outage,
            on_outage=lambda: self._local.send(message),
            others=self._others,
        )
        deadline = self._clock.monotonic() + REGISTER_SECONDS
        while True:
            try:
                return transport.send(message)
            except NoSuchProcess:
                if self._clock.monotonic() >= deadline:
                    raise
            NEVER_SET.wait(POLL_SECONDS)

    def statuses(self) -> Mapping[str, ClusterStatus]:
        """See Transport.  Raises DeployHeld if another owner has taken the lock."""
        if self._clock.monotonic() >= self._renew_at:
            self._lock.take(LOCK_SECONDS)
            self._renew_at = self._clock.monotonic() + RENEW_SECONDS
        return self._redis.statuses()

    def final_statuses(self) -> Mapping[str, ClusterStatus]:
        """Return the final states; nothing while Redis is away, because the result is known by then."""
        try:
            return self._redis.statuses()
        except StoreError as error:
            if not is_outage(error):
                raise
            return {}

    def end(self) -> None:
        """Release the lock; while Redis is away its lease ends it.  Raises StoreError for a refusal."""
        try:
            self._lock.drop()
        except StoreError as error:
            if not is_outage(error):
                raise
