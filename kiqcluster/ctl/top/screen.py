"""Screen: the live form of `top`, on textual (extra `top`).

Runs in: the main thread, textual's loop; a Refresher talks to Redis and posts what it finds.
1. messages  a picture, why there is none, how an order went → headlines, table, line of words
2. keys      which view, which row; what to do with it is confirmed, and ordered
Nothing here waits for Redis.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.message import Message
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import DataTable, Footer, Static

from kiqcluster.api import QueueSummary
from kiqcluster.api.dashboard import MAX_ENTRIES, Dashboard, View
from kiqcluster.api.throughput import Rate, Throughput
from kiqcluster.ctl.text.rows import COLUMNS_BY_VIEW, Row, details, rows, summary_lines
from kiqcluster.ctl.text.tables import Column, clean, display_width, format_duration, format_time
from kiqcluster.ctl.top.actions import KEYS_BY_VIEW, Action, action_for, peek_queue
from kiqcluster.ctl.top.refresher import Refresher, ViewRequest
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.store import Store

__all__ = ["Screen"]

FAILED_STYLE = "bold red"
MESSAGE_SECONDS = 10.0  # seconds for which it is shown how an order went, unless it has failed
ANSWERS = {"y": True, "Y": True, "n": False, "N": False, "q": False, "escape": False}  # by key; others answer nothing
REFRESHER_STOP_SECONDS = 1.0  # seconds that the looker gets to end; a daemon thread keeps nobody waiting for longer
FRAME_WIDTH = 10  # cells around a text that is asked for or read
RESERVED_LINES = 6  # lines that are left to table, tabs and keys, before there are lines above
MAX_ROWS = 500  # of a view: nobody reads on, and each costs time
VIEWS = list(View)
SCROLLING = frozenset({"up", "down", "pageup", "pagedown", "home", "end"})

HELP = """\
1 … 6            view: queues, processes, busy, retries, scheduled, dead
Tab, h l         the next view, the one before
↑ ↓, j k         row          PgUp PgDn, Home End  further
← →              what is further to the right
Enter            all that is known of a job; the jobs of a queue
< >              page of entries

R                retry an entry; a scheduled one goes to its queue
K                kill an entry: move it to the dead set
Q                quiet a process, or a cluster: fetch nothing more
C                continue: fetch again
P                pause a queue, or resume it

space            look now, forget what was said
?                this help     q, Ctrl-C  quit
"""


class Dialog(ModalScreen[bool]):
    """A question with y and n; or, without `answers`, a text, which any key closes that does not scroll it."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > VerticalScroll { width: auto; height: auto; max-height: 90%; border: round $primary; }
    Dialog Static { width: auto; }
    Dialog > .wide { width: 90%; }
    Dialog > .wide Static { width: 100%; }
    """

    def __init__(self, text: str, *, keys: str, answers: Mapping[str, bool] | None = None) -> None:
        super().__init__()
        self._text = text
        self._keys = keys
        self._answers = answers
        self._is_answered = False  # keys that were pressed since come here too, until it is gone

    def compose(self) -> ComposeResult:
        text = f"{self._text}\n\n{self._keys}"
        is_wide = max(map(display_width, text.splitlines())) > self.app.size.width - FRAME_WIDTH
        with VerticalScroll(classes="wide" if is_wide else ""):
            yield Static(Text(text))

    def on_key(self, event: events.Key) -> None:
        if event.key in SCROLLING or self._is_answered:
            return
        event.stop()
        if self._answers is None or event.key in self._answers:
            self._is_answered = True
            self.dismiss(bool(self._answers and self._answers[event.key]))


class Refreshed(Message):
    """A picture of now."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__()
        self.dashboard = dashboard


class RefreshFailed(Message):
    """Why there is no picture."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class ActionDone(Message):
    """How an order went."""

    def __init__(self, action: Action, said: str, has_failed: bool) -> None:
        super().__init__()
        self.action = action
        self.said = said
        self.has_failed = has_failed


class Table(DataTable[Text]):
    """Where Home and End are the first and the last row, not column."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]


class Screen(App[int]):
    """What is on the screen.  first: a picture to begin with."""

    CSS = """
    #head { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
    #tabs { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #said { height: auto; max-height: 3; }
    DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(at), f"view({at - 1})", show=False) for at in range(1, len(VIEWS) + 1)),
        Binding("tab,l", "turn(1)", "view", priority=True, key_display="1…6"),
        Binding("shift+tab,h", "turn(-1)", show=False, priority=True),
        Binding("j", "row(1)", show=False),
        Binding("k", "row(-1)", show=False),
        Binding("greater_than_sign", "page(1)", "page", key_display="< >"),
        Binding("less_than_sign", "page(-1)", show=False),
        Binding("R", "do('R')", "retry", key_display="R"),
        Binding("K", "do('K')", "kill", key_display="K"),
        Binding("Q", "do('Q')", "quiet", key_display="Q"),
        Binding("C", "do('C')", "continue", key_display="C"),
        Binding("P", "do('P')", "pause", key_display="P"),
        Binding("space", "look", show=False),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "leave", "quit"),
        Binding("ctrl+c,ctrl+q", "leave", show=False, priority=True),
    ]

    def __init__(self, store: Store, clock: Clock, interval: float, first: Dashboard) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._interval = interval
        self._dashboard = first
        self._throughput = Throughput()
        self._rate = Rate()
        self._outage = ""
        self._outage_since: float | None = None
        self._message = Text()
        self._message_timer: Timer | None = None
        self._rows: list[Row] = []
        self._shown: View | None = None  # whose columns the table has
        self._widths: list[int] = []
        self._request = ViewRequest(View.QUEUES)
        self._refresher = Refresher(
            store,
            clock,
            interval,
            on_dashboard=lambda dashboard: self.post_message(Refreshed(dashboard)),
            on_refresh_failed=lambda reason: self.post_message(RefreshFailed(reason)),
            on_action_done=lambda *went: self.post_message(ActionDone(*went)),
        )

    # what there is

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="tabs")
        yield Table(cursor_type="row", zebra_stripes=True)
        yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(each, self.action_leave)
        self._take(self._dashboard)
        self._show_tabs()
        self._refresher.start()

    def on_unmount(self) -> None:
        self._refresher.stop()
        self._refresher.join(REFRESHER_STOP_SECONDS)

    @property
    def table(self) -> DataTable[Text]:
        return self.query_one(DataTable)

    @property
    def selected(self) -> Row | None:
        at = self.table.cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    # 1. messages: those of the looker may come while the screen closes, when what they would be shown on is gone

    def on_refreshed(self, message: Refreshed) -> None:
        if not self.is_running:
            return
        if self._outage_since is not None:
            self._outage, self._outage_since = "", None
            self._say("Redis is back", keeps_failure=True)
        self._take(message.dashboard)

    def on_refresh_failed(self, message: RefreshFailed) -> None:
        if not self.is_running:
            return
        now = self._clock.monotonic()
        self._outage_since = now if self._outage_since is None else self._outage_since
        since = format_duration(now - self._outage_since)
        self._outage = (
            f"no picture for {since}: {message.reason}; what is shown is of {format_time(self._dashboard.at)}"
        )
        self._show_said()

    def on_action_done(self, message: ActionDone) -> None:
        if not self.is_running:
            return
        if message.action.is_read_only and not message.has_failed:
            self._forget()
            self.push_screen(Dialog(message.said, keys="any key goes back"))
            return
        self._say(message.said, has_failed=message.has_failed)

    def _take(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._rate = self._throughput.add(dashboard.taken, dashboard.processed, dashboard.failed)
        self._show_head()
        if dashboard.view is self._request.view:
            self._fill(rows(dashboard, dashboard.view))

    def on_resize(self) -> None:
        self._show_head()
        self._show_said()

    def _show_head(self) -> None:
        """Show as much above the table as there is room for."""
        title = f"{self._store.address}  {format_time(self._dashboard.at)}  every {format_duration(self._interval)}"
        lines = summary_lines(self._dashboard, self._rate)
        room = max(0, self.size.height - RESERVED_LINES)
        head = self.query_one("#head", Static)
        head.display = room > 0
        head.update(Text("\n".join([title, *lines] if room > len(lines) else lines[:room])))

    def _fill(self, found: Sequence[Row]) -> None:
        """Show these rows; the cursor stays on the row that it was on, wherever that is now."""
        before, self._rows = self._rows, list(found[:MAX_ROWS])
        is_view_new = self._shown is not self._request.view
        self._shown = self._request.view
        widths = self._measured([] if is_view_new else self._widths)
        with self.batch_update():
            if widths != self._widths or [row.key for row in before] != [row.key for row in self._rows]:
                self._widths = widths
                self._replace(before, is_view_new=is_view_new)
            else:
                self._change(before)

    def _measured(self, before: Sequence[int]) -> list[int]:
        """Return the widths of the columns, which only grow while a view is shown.

        The table's own come when it is idle, too late for what is drawn until then, and that it keeps.
        """
        lines = [[column.title for column in COLUMNS_BY_VIEW[self._request.view]], *(row.words for row in self._rows)]
        widths = [max(display_width(clean(words)) for words in column) for column in zip(*lines, strict=True)]
        return [max(pair) for pair in zip(widths, before, strict=True)] if before else widths

    def _change(self, before: Sequence[Row]) -> None:
        """Show what has changed in rows that are the same."""
        for line, (old, new) in enumerate(zip(before, self._rows, strict=True)):
            by_column = zip(old.words, new.words, COLUMNS_BY_VIEW[self._request.view], strict=True)
            for at, (was, words, column) in enumerate(by_column):
                if words != was:
                    self.table.update_cell_at(Coordinate(line, at), _cell(words, column))

    def _replace(self, before: Sequence[Row], *, is_view_new: bool) -> None:
        """Show other rows, and columns of the widths that they take."""
        table, columns = self.table, COLUMNS_BY_VIEW[self._request.view]
        scroll, cursor = table.scroll_offset, table.cursor_row
        table.clear(columns=True)
        for column, width in zip(columns, self._widths, strict=True):
            table.add_column(Text(column.title), width=width)
        for row in self._rows:
            table.add_row(*map(_cell, row.words, columns))
        keys = [row.key for row in self._rows]
        if is_view_new:
            cursor = 0
        else:
            table.scroll_to(scroll.x, scroll.y, animate=False)
            if 0 <= cursor < len(before) and before[cursor].key in keys:
                cursor = keys.index(before[cursor].key)
        table.move_cursor(row=max(0, min(cursor, len(keys) - 1)), animate=False)

    def _show_tabs(self) -> None:
        text = Text()
        for at, view in enumerate(VIEWS, 1):
            text.append(f" {at} {view.value} ", "reverse" if view is self._request.view else "")
        if self._request.offset:
            text.append(f"  from {self._request.offset + 1}")
        self.query_one("#tabs", Static).update(text)

    def _say(self, words: str, *, has_failed: bool = False, keeps_failure: bool = False) -> None:
        """Show a line for a while; of what has failed, until somebody does something else."""
        if keeps_failure and self._message.style == FAILED_STYLE:
            self._show_said()
            return
        if self._message_timer is not None:
            self._message_timer.stop()
        self._message = Text(clean(words), FAILED_STYLE if has_failed else "")
        self._message_timer = None if has_failed else self.set_timer(MESSAGE_SECONDS, self._forget)
        self._show_said()

    def _forget(self) -> None:
        if not self.is_running:
            return
        self._message = Text()
        self._show_said()

    def _show_said(self) -> None:
        """Show what was said last, and why there is no picture; little of it where the rows need the room."""
        lines = [each for each in (self._message, Text(clean(self._outage), FAILED_STYLE)) if each.plain]
        said = self.query_one("#said", Static)
        said.display = bool(lines)
        said.styles.max_height = max(1, min(3, (self.size.height - RESERVED_LINES) // 4))
        said.update(Text("\n").join(lines))

    # 2. keys

    def action_view(self, at: int) -> None:
        self._want(ViewRequest(VIEWS[at]))

    def action_turn(self, step: int) -> None:
        self.action_view((VIEWS.index(self._request.view) + step) % len(VIEWS))

    def action_page(self, step: int) -> None:
        size = self._dashboard.sizes.get(self._request.view, 0)
        offset = self._request.offset + step * MAX_ENTRIES
        if 0 <= offset < size:
            self._want(ViewRequest(self._request.view, offset))

    def action_row(self, step: int) -> None:
        self.table.move_cursor(row=self.table.cursor_row + step)

    def action_look(self) -> None:
        self._forget()
        self._refresher.show(self._request)

    def action_help(self) -> None:
        self.push_screen(Dialog(HELP, keys="any key goes back"))

    def action_leave(self) -> None:
        self.exit(0)

    def action_do(self, key: str) -> None:
        row = self.selected
        try:
            action = None if row is None else action_for(key, self._request.view, row.record, self._store)
        except UsageError as error:
            self._say(str(error))
            return
        if action is None:
            self._say(f"{key} does nothing to what is selected here; ? says what does")
            return
        question = Dialog(f"{clean(action.what)}?", keys="y yes   n no", answers=ANSWERS)
        self.push_screen(question, partial(self._on_answer, action))

    def on_data_table_row_selected(self) -> None:
        """Enter: tell more of a job, or of the jobs of a queue."""
        if self.selected is not None and isinstance(self.selected.record, QueueSummary):
            self._refresher.submit(peek_queue(self.selected.record, self._store))
            return
        words = None if self.selected is None else details(self.selected.record)
        if words is not None:
            self.push_screen(Dialog("\n".join(map(clean, words)), keys="any key goes back"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """See App: the line of keys shows those that mean something in this view."""
        if action == "do":
            return str(parameters[0]) in KEYS_BY_VIEW[self._request.view]
        return action != "page" or self._request.view in self._dashboard.sizes

    def _on_answer(self, action: Action, is_wanted: bool | None) -> None:
        if is_wanted:
            self._say(f"{action.what} …")
            self._refresher.submit(action)

    def _want(self, request: ViewRequest) -> None:
        self._forget()
        self._request = request
        self._refresher.show(request)
        self._show_tabs()
        self.refresh_bindings()
        if request.view in (View.QUEUES, View.PROCESSES):  # every picture has them
            self._fill(rows(self._dashboard, request.view))
        else:
            self._fill([])


def _cell(words: str, column: Column) -> Text:
    return Text(clean(words), justify=column.align, no_wrap=True)
