"""exporter: gauges about Redis, for Prometheus.  One per fleet is enough, because all would report the same.

Exporter    looks at Redis when somebody scrapes, at most once in a few seconds; concurrent scrapes share a look
ShardLook   looks at one shard, in a thread with a deadline: a slow shard holds up no other
Server      HTTP: /metrics, and / for people
While Redis is away it answers `kiqcluster_exporter_up 0` and nothing else, and goes on.
"""

from __future__ import annotations

import errno
import gzip
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import click
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as encode_text
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as encode_openmetrics
from prometheus_client.registry import Collector

from kiqcluster.control.waiting import NEVER_SET
from kiqcluster.ctl.exporter.gauges import Gauges
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, DURATION, stores_options
from kiqcluster.errors import RedisUnavailable, StoreError, UsageError
from kiqcluster.ipc.negotiation import CONTENT_TYPES, OPENMETRICS, TEXT, Format, accepts_gzip, choose_format
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.config import listen_error, parse_listen
from kiqcluster.process.service import Service
from kiqcluster.store import Store, is_outage

__all__ = ["Exporter", "Page", "exporter", "serve"]

LISTEN = "127.0.0.1:9168"  # gitlab-exporter's port
LOOK_SECONDS = 5.0  # for a look at all shards, half of what Prometheus waits for
CACHE_SECONDS = 5.0  # seconds for which a look serves every scrape
CLIENT_TIMEOUT_SECONDS = 10.0  # seconds that a client may take for its request, and for reading the answer
ENCODERS: dict[Format, Callable[[CollectorRegistry], bytes]] = {TEXT: encode_text, OPENMETRICS: encode_openmetrics}
INDEX = b"kiqctl exporter: the gauges are at /metrics\n"

Page = tuple[str, bytes]  # content type, body


class ShardLook(Service):
    """Reads the gauges of one shard, in a thread of its own.  `_answer` is written by that thread, read after its end.

    One that is late has no gauges this time; the next scrape waits for the same look, and begins no second one.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(f"look-{store.name}", self._crashed)
        self.shard = store.name
        self._store = store
        self._clock = clock
        self._gauges = Gauges(store)
        self._answer: list[Metric] | Exception | None = None

    def result(self, seconds: float) -> list[Metric]:
        """Wait for so many seconds; return the metrics.  Raises StoreError, also for a shard that is late."""
        if not self.join(max(0.0, seconds)):
            raise RedisUnavailable(f"the shard {self.shard} ({self._store.address}) has not answered in time")
        answer, self._answer = self._answer, None
        if answer is None:
            raise RedisUnavailable(f"the shard {self.shard} was not looked at: the system has no thread to give")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self) -> None:
        """Look once."""
        try:
            self._answer = self._gauges.read(self._clock.now())
        except StoreError as error:
            self._answer = error
            self._store.close()

    def _crashed(self, _name: str, error: Exception) -> None:
        self._answer = error


class Exporter(Collector):
    """What there is to scrape.  Thread-safe: `_lock` guards a look and its pages.

    on_outage: told when Redis goes away, and when it is back (None).  others: further shards; with some, each sample
    has the label `shard`.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cache_seconds: float,
        on_outage: Callable[[StoreError | None], None],
        others: Sequence[Store] = (),
    ) -> None:
        self._shards = [ShardLook(each, clock) for each in (store, *others)]
        self._clock = clock
        self._cache_seconds = cache_seconds
        self._on_outage = on_outage
        self._lock = threading.Lock()
        self._metrics: list[Metric] = []
        self._refreshed_at: float | None = None  # monotonic
        self._was_up = True
        self._pages: dict[tuple[Format, bool], Page] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self, accept: str, encodings: str) -> Page:
        """Return content type and body for a scraper that takes these; what is fresh enough is not made again."""
        kind = (choose_format(accept), accepts_gzip(encodings))
        with self._lock:
            now = self._clock.monotonic()
            if self._refreshed_at is None or now >= self._refreshed_at + self._cache_seconds:
                self._refresh()
                # Counted from the end of it: while Redis is slow, those who have waited share what came of it.
                self._refreshed_at = self._clock.monotonic()
                self._pages.clear()
            if kind not in self._pages:
                self._pages[kind] = self._render(*kind)
            return self._pages[kind]

    def collect(self) -> Iterable[Metric]:
        """Yield the latest look's metrics."""
        return self._metrics

    def describe(self) -> list[Metric]:
        """Return nothing: what there is depends on what lies in Redis."""
        return []

    def _refresh(self) -> None:
        before, outage = self._clock.monotonic(), None
        has_several = len(self._shards) > 1
        labels = ["shard"] if has_several else []
        up = GaugeMetricFamily("kiqcluster_exporter_up", "Whether Redis has answered the latest look", labels=labels)
        families: dict[str, Metric] = {}
        for shard in self._shards:
            shard.start()  # unless the look before goes on
        for shard in self._shards:
            try:
                metrics = shard.result(before + LOOK_SECONDS - self._clock.monotonic())
            except StoreError as error:
                metrics, outage = [], error
                up.add_metric([shard.shard] if has_several else [], 0)
            else:
                up.add_metric([shard.shard] if has_several else [], 1)
            for metric in metrics:
                if has_several:
                    _add_label(metric, "shard", shard.shard)
                if metric.name in families:
                    families[metric.name].samples += metric.samples
                else:
                    families[metric.name] = metric
        is_up = outage is None
        took = self._clock.monotonic() - before
        self._metrics = [
            up,
            GaugeMetricFamily("kiqcluster_exporter_look_seconds", "Seconds that the latest look took", value=took),
            *families.values(),
        ]
        if is_up != self._was_up:
            self._was_up = is_up
            self._on_outage(outage)

    def _render(self, form: Format, is_zipped: bool) -> Page:
        body = ENCODERS[form](self._registry)
        return CONTENT_TYPES[form], gzip.compress(body, 5) if is_zipped else body


def _add_label(metric: Metric, name: str, value: str) -> None:
    metric.samples = [sample._replace(labels={**sample.labels, name: value}) for sample in metric.samples]


# the server

NO_RESOURCE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})  # to accept a connection with
NO_RESOURCE_PAUSE_SECONDS = 1.0


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each request; none keeps the process from ending."""

    daemon_threads = True
    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, where: tuple[Any, ...], family: socket.AddressFamily) -> None:
        self.address_family = family
        super().__init__(where, Handler)

    def server_bind(self) -> None:
        """Bind; without the look-up of our own name that http.server does, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> Any:
        """Accept; where no descriptor is left, wait, for the listener stays readable."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in NO_RESOURCE_ERRNOS:
                NEVER_SET.wait(NO_RESOURCE_PAUSE_SECONDS)
            raise

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Do without a traceback for a client that has gone, or is too slow."""


class Handler(WSGIRequestHandler):
    """One request; a client that is slow is closed."""

    timeout = CLIENT_TIMEOUT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class calls it so
        """Do without a line for every scrape."""


def application(exporter: Exporter, environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
    """Answer one request (WSGI)."""
    method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
    status, headers, body = "200 OK", {"Content-Type": "text/plain; charset=utf-8"}, INDEX
    if method not in ("GET", "HEAD"):
        status, body, headers["Allow"] = "405 Method Not Allowed", b"GET and HEAD only\n", "GET, HEAD"
    elif path == "/metrics":
        encodings = environ.get("HTTP_ACCEPT_ENCODING", "")
        headers["Content-Type"], body = exporter.page(environ.get("HTTP_ACCEPT", ""), encodings)
        if accepts_gzip(encodings):
            headers["Content-Encoding"] = "gzip"
    elif path != "/":
        status, body = "404 Not Found", INDEX
    headers["Content-Length"] = str(len(body))
    respond(status, list(headers.items()))
    return [b"" if method == "HEAD" else body]


def serve(exporter: Exporter, listen: str) -> Server:
    """Return a server that listens, and serves once it is told to.  Raises UsageError: exit 7 for a taken address."""
    place = parse_listen(listen)
    if not isinstance(place, tuple):
        raise UsageError(f"--listen {listen}: the exporter listens at HOST:PORT")
    try:
        family, _, _, _, where = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0]
        server = Server(where, family)
    except OSError as error:
        raise listen_error(listen, error) from error
    server.set_app(partial(application, exporter))
    return server


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option("--listen", default=LISTEN, metavar="HOST:PORT", help=f"where /metrics answers  [{LISTEN}]")
@click.option(
    "--cache", type=DURATION, default=CACHE_SECONDS, help="for which one look at Redis serves every scrape  [5s]"
)
@stores_options
def exporter(stores: list[Store], listen: str, cache: float) -> None:
    """Serve gauges of queues, sets and processes to Prometheus.  One for a fleet is enough.

    With shards, it looks at all of them, and each sample has the label `shard`; --shard means one.

    \b
      kiqctl exporter
      kiqctl exporter --listen 0.0.0.0:9168 --redis redis://redis-1/0
    """

    def tell(outage: StoreError | None) -> None:
        word = "Redis is back" if outage is None else f"no gauges until Redis is back: {outage}"
        click.echo(f"kiqctl: {word}", err=True)

    server = serve(Exporter(stores[0], SystemClock(), cache, tell, stores[1:]), listen)
    for store in stores:
        try:
            store.check()
        except StoreError as error:
            if not is_outage(error):  # a password that is wrong now is a slip; later, it may be on its way
                raise
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        click.echo(f"kiqctl: /metrics of {', '.join(store.address for store in stores)} at {listen}", err=True)
        server.serve_forever()
    except KeyboardInterrupt:  # also TERM
        server.server_close()
