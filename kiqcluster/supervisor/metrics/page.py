"""Metrics: what the children report and what the supervisor knows itself, as one page.

1. take_in    frames of a child are kept for later
2. catch_up   … applied, for a few milliseconds a turn; so are the farewells of dead children
3. scrape     the page, in steps as short

Nothing here waits, and nothing grows with respawns.  Counterpart: worker/metrics, which has
the form of frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from kiqcluster.clock import Clock
from kiqcluster.process.negotiation import Format
from kiqcluster.sidekiq import ruby_json
from kiqcluster.supervisor.cluster.slots import Child, Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.metrics.aggregate import Family, Layout, Source
from kiqcluster.supervisor.metrics.own_metrics import Figures
from kiqcluster.supervisor.metrics.text_format import END

__all__ = ["ClusterMetrics"]

BATCH = 200  # entries of a frame that are applied between two looks at the time
MOST_ROWS = 50_000  # of all children together: an application with labels that never repeat must not fill our memory
OURS = "kiqcluster_"  # names that no child may use

Frame = dict[str, Any]


class ClusterMetrics:
    """The series of all children and the cluster's own."""

    def __init__(self, state: ClusterState, clock: Clock) -> None:
        self._clock = clock
        self._figures = Figures(state, clock)
        self._families: dict[str, Family] = {}
        self._sources: dict[int, Source] = {}  # by pid
        self._layouts: dict[Layout, Layout] = {}  # one object for each, so that comparing them is cheap
        self._backlog: deque[Iterator[None]] = deque()
        self._room = MOST_ROWS

    # in

    def take_in(self, slot: Slot, child: Child, frame: Frame) -> None:
        """Keep a frame of a child, to be applied by catch_up."""
        self._backlog.append(self._apply(slot.number, child.pid, frame["raw"]))

    def fold(self, slot: Slot, child: Child) -> None:
        """Take leave of a child, after its last frame."""
        self._figures.fold(slot, child)
        self._backlog.append(self._leave(child.pid))

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

    def turned(self, seconds: float) -> None:
        """Take note of how long a turn of the loop has taken."""
        self._figures.turned(seconds)

    # out

    def scrape(self, form: Format) -> Generator[None, None, bytes]:
        """Return the page; yields after every millisecond or so."""
        while self._backlog:  # whoever scrapes after a job has ended, or a child, wants to see it
            yield
        page = [(yield from self._figures.page(form))]
        for family in list(self._families.values()):
            yield from family.render()
            page.append(family.body(form))
        yield
        return "".join(page).encode(errors="replace") + END[form]

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
        self._room = MOST_ROWS - sum(len(family.rows) for family in self._families.values())
        for kind, apply in (
            ("rows", self._define),
            ("values", self._report),
            ("odd", self._report_odd),
            ("exemplars", self._mark),
            ("gone", self._forget),
        ):
            entries = frame.get(kind, ())
            for at in range(0, len(entries), BATCH):
                for entry in entries[at : at + BATCH]:
                    apply(source, entry)
                yield

    def _family(self, name: str, kind: str, text: str, unit: str, mode: str) -> Family:
        """Return the metric of that name.  The newest release decides what it is."""
        family = self._families.get(name)
        if family is None or family.kind != kind:
            family = Family(name, kind, text, unit, mode)
            if not name.startswith(OURS):
                self._families[name] = family
        return family

    def _define(self, source: Source, entry: list[Any]) -> None:
        ident, family_ident, layout, *labels = entry
        family = source.families[family_ident]
        if self._families.get(family.name) is not family:
            return
        pairs = tuple(sorted(_pairs(labels)))
        if pairs not in family.rows:
            if self._room <= 0:
                self._figures.refused += 1
                return
            self._room -= 1
        row = source.rows[ident] = family.row(pairs, source.layouts[layout])
        family.report(row, source, (0,) * len(row.layout))

    def _report(self, source: Source, entry: list[float]) -> None:
        row = source.rows.get(entry[0])  # type: ignore[call-overload]  # the number of a row is an integer
        if row is not None:
            row.family.report(row, source, tuple(entry[1:]))

    def _report_odd(self, source: Source, entry: list[Any]) -> None:
        self._report(source, [entry[0], *map(float, entry[1:])])

    def _mark(self, source: Source, entry: list[Any]) -> None:
        ident, place, value, at, *labels = entry
        row = source.rows.get(ident)
        if row is not None:
            row.family.mark(row, place, _pairs(labels), value, at)

    def _forget(self, source: Source, ident: int) -> None:
        """Forget a row that the application has removed, unless other children have it."""
        row = source.rows.pop(ident, None)
        if row is not None:
            row.family.leave(row, source)
            row.family.drop_empty(row)

    def _leave(self, pid: int) -> Iterator[None]:
        source = self._sources.pop(pid, None)
        rows = [] if source is None else list(source.rows.values())
        for at in range(0, len(rows), BATCH):
            for row in rows[at : at + BATCH]:
                assert source is not None
                row.family.leave(row, source)
                if not row.family.is_cumulative:
                    row.family.drop_empty(row)
            yield


def _pairs(words: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(words[::2], words[1::2], strict=True))
