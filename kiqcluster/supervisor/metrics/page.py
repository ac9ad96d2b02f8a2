"""Page: the metrics of the children and those of the supervisor, as one page.

1. add_frame   keep frames of a child for later
2. catch_up   … applied, for a few milliseconds a turn; so are the farewells of dead children
3. scrape     the page, in steps as short

Nothing here waits, and nothing grows with respawns.  Counterpart: worker/metrics, which has
the form of frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from kiqcluster.ipc.negotiation import Format
from kiqcluster.process.clock import Clock
from kiqcluster.process.events import Events
from kiqcluster.sidekiq import ruby_json
from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.metrics.aggregate import Family, Layout, Source
from kiqcluster.supervisor.metrics.own_metrics import OwnMetrics
from kiqcluster.supervisor.metrics.text_format import END_MARK

__all__ = ["ClusterMetrics"]

SERIES_PER_STEP = 200  # entries of a frame that are applied between two looks at the time
MAX_SERIES = 50_000  # of all children together: an application with labels that never repeat must not fill our memory
OURS = "kiqcluster_"  # names that no child may use
MAX_REFUSED_NAMES = 20  # that are logged

Frame = dict[str, Any]


class ClusterMetrics:
    """The series of all children and the cluster's own."""

    def __init__(self, state: ClusterState, clock: Clock, events: Events) -> None:
        self._clock = clock
        self._events = events
        self._own = OwnMetrics(state, clock)
        self._families: dict[str, Family] = {}
        self._sources: dict[int, Source] = {}  # by pid
        self._layouts: dict[Layout, Layout] = {}  # one object for each, so that comparing them is cheap
        self._backlog: deque[Iterator[None]] = deque()
        self._series_left = MAX_SERIES
        self._refused_names: set[str] = set()  # that were logged

    # in

    def add_frame(self, slot: Slot, child: Child, frame: Frame) -> None:
        """Keep a frame of a child, to be applied by catch_up."""
        self._backlog.append(self._apply(slot.number, child.pid, frame["raw"]))

    def on_child_exit(self, slot: Slot, child: Child) -> None:
        """Remove a child, after its last frame; its totals stay."""
        self._own.on_child_exit(slot, child)
        self._backlog.append(self._remove_source(child.pid))

    @property
    def is_behind(self) -> bool:
        """Whether there is something to catch up with."""
        return bool(self._backlog)

    def catch_up(self, until: float) -> None:
        """Apply what has come in, until a moment of the monotonic clock.

        Raises what a frame that makes no sense leads to; that one is dropped.
        """
        while self._backlog:
            try:
                for _ in self._backlog[0]:
                    if self._clock.monotonic() >= until:
                        return
            except Exception:
                self._backlog.popleft()
                raise
            self._backlog.popleft()

    def record_turn(self, seconds: float) -> None:
        """Record how long a turn of the loop took."""
        self._own.record_turn(seconds)

    # out

    def scrape(self, form: Format) -> Generator[None, None, bytes]:
        """Return the page; yields after every millisecond or so."""
        while self._backlog:  # whoever scrapes after a job has ended, or a child, wants to see it
            yield
        page = [(yield from self._own.page(form))]
        for family in list(self._families.values()):
            yield from family.render()
            page.append(family.body(form))
        yield
        return "".join(page).encode(errors="replace") + END_MARK[form]

    # applying

    def _apply(self, slot: int, pid: int, raw: bytes) -> Iterator[None]:
        frame: Frame = ruby_json.decode(raw)
        yield
        source = self._sources.get(pid)
        if source is None:
            source = self._sources[pid] = Source(slot)
        for ident, *about in frame.get("families", ()):
            source.families[ident] = self._family(*about)
        for ident, cells in frame.get("layouts", ()):
            layout = tuple((suffix, _pairs(own)) for suffix, *own in cells)
            source.layouts[ident] = self._layouts.setdefault(layout, layout)
        self._series_left = MAX_SERIES - sum(len(family.series_by_labels) for family in self._families.values())
        for kind, apply in (
            ("rows", self._define),
            ("values", self._report),
            ("odd", self._report_odd),
            ("exemplars", self._add_exemplar),
            ("gone", self._remove_series),
        ):
            entries = frame.get(kind, ())
            for at in range(0, len(entries), SERIES_PER_STEP):
                for entry in entries[at : at + SERIES_PER_STEP]:
                    apply(source, entry)
                yield

    def _family(self, name: str, kind: str, text: str, unit: str, mode: str) -> Family:
        """Return the metric of that name.  The newest release decides what it is."""
        family = self._families.get(name)
        if family is None or family.kind != kind:
            family = Family(name, kind, text, unit, mode)
            if name.startswith(OURS):
                self._log_refusal(name)
            else:
                self._families[name] = family
        return family

    def _log_refusal(self, name: str) -> None:
        """Say once for each name that it is not shown."""
        if name not in self._refused_names and len(self._refused_names) < MAX_REFUSED_NAMES:
            self._refused_names.add(name)
            self._events.emit("metric_refused", metric=name)

    def _define(self, source: Source, entry: list[Any]) -> None:
        ident, family_ident, layout, *labels = entry
        family = source.families[family_ident]
        if self._families.get(family.name) is not family:
            return
        pairs = tuple(sorted(_pairs(labels)))
        if pairs not in family.series_by_labels:
            if self._series_left <= 0:
                self._own.refused += 1
                return
            self._series_left -= 1
        series = source.series_by_id[ident] = family.define_series(pairs, source.layouts[layout])
        family.update(series, source, (0,) * len(series.layout))

    def _report(self, source: Source, entry: list[float]) -> None:
        series = source.series_by_id.get(entry[0])  # type: ignore[call-overload]  # the number of a series is an integer
        if series is not None:
            series.family.update(series, source, tuple(entry[1:]))

    def _report_odd(self, source: Source, entry: list[Any]) -> None:
        self._report(source, [entry[0], *map(float, entry[1:])])

    def _add_exemplar(self, source: Source, entry: list[Any]) -> None:
        ident, place, value, at, *labels = entry
        series = source.series_by_id.get(ident)
        if series is not None:
            series.family.add_exemplar(series, place, _pairs(labels), value, at)

    def _remove_series(self, source: Source, ident: int) -> None:
        """Forget a series that the application has removed, unless other children have it."""
        series = source.series_by_id.pop(ident, None)
        if series is not None:
            series.family.remove_source(series, source)
            series.family.drop_if_unreported(series)

    def _remove_source(self, pid: int) -> Iterator[None]:
        source = self._sources.pop(pid, None)
        known = [] if source is None else list(source.series_by_id.values())
        for at in range(0, len(known), SERIES_PER_STEP):
            for series in known[at : at + SERIES_PER_STEP]:
                assert source is not None
                series.family.remove_source(series, source)
                if not series.family.is_cumulative:
                    series.family.drop_if_unreported(series)
            yield


def _pairs(words: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(words[::2], words[1::2], strict=True))
