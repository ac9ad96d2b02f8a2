"""kiqctl top in a terminal: what its screen shows, what its keys do, and what it makes of outages and small windows."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor, publish
from tests.kit import RedisServer, free_port, wait_until
from tests.process.kiqctl import Kiqctl
from tests.process.terminal import Terminal
from tests.stage import Stage

OpenTop = Callable[..., Terminal]
RUBY = "rails-1:7:cccccccccccc"
JID = "b4a577edbccf1d805744efa9"
CTRL_C = "\x03"
NOW = 1_795_168_740.5


@pytest.fixture
def open_top(redis_server: RedisServer) -> Iterator[OpenTop]:
    """Open terminals with kiqctl top in them: `open_top("--interval", "1s", lines=10)`."""
    opened: list[Terminal] = []

    def run(*words: str, redis: str = redis_server.url, columns: int = 100, lines: int = 30) -> Terminal:
        command = [sys.executable, "-m", "kiqcluster.ctl", "top", "--interval", "0.5s", *words]
        opened.append(Terminal(command, columns, lines, REDIS_URL=redis))
        return opened[-1]

    yield run
    for each in opened:
        each.close()


@pytest.fixture
def fake_supervisor(store: Store) -> Iterator[FakeSupervisor]:
    here = FakeSupervisor(store, workers=2)
    yield here
    here.close()


def add(store: Store, key: str, score: float, **fields: Any) -> None:
    """Have a failed job lie in a set."""
    payload = {"retry": True, "queue": "low", "args": [7], "class": "SendInvoice", "jid": JID, "created_at": NOW}
    failure = {"failed_at": NOW, "retry_count": 0, "error_class": "OSError", "error_message": "no [b]route[/b]"}
    store.call("ZADD", key, repr(score), ruby_json.encode({**payload, **failure, **fields}))


def jids(store: Store, key: str) -> list[str]:
    """Return the ids of the entries of a set, or of the jobs of a queue."""
    command = ("LRANGE", key, 0, -1) if key.startswith("queue:") else ("ZRANGE", key, 0, -1)
    return [ruby_json.decode(raw)["jid"] for raw in store.call(*command)]


class TestScreen:
    def test_it_shows_throughput_queues_and_processes_of_a_real_cluster(self, stage: Stage, open_top: OpenTop) -> None:
        cluster = stage.run_cluster("default", "-c", "2")
        pid = stage.occupy(cluster)[0]
        stage.push("SendInvoice", 7, queue="mailers")

        top = open_top()

        top.wait_shown("mailers", "nobody listens", "1 in 2 queues")
        for number in range(20):
            stage.push("record", str(number))
        wait_until(lambda: "/s processed, 0.0/s failed; 20 processed" in top.text, "the throughput to show")
        assert "jobs  0.0/s processed" not in top.text
        stage.ask_for_beats()
        top.press("2")
        top.wait_shown(f"pid {pid}", "serves", "default")
        top.press("3")
        top.wait_shown("stubborn", '"a"')
        stage.release()

    def test_each_view_shows_its_entries(self, store: Store, open_top: OpenTop) -> None:
        add(store, "retry", NOW + 1e8)
        add(store, "schedule", NOW + 1e8, **{"class": "Reports::Yearly"})
        add(store, "dead", NOW, **{"class": "Ancient"})
        top = open_top(columns=160)

        for key, word in (("4", "SendInvoice"), ("5", "Reports::Yearly"), ("6", "Ancient")):
            top.press(key)
            top.wait_shown(word, JID, "OSError: no [b]route[/b]")  # and no markup
        top.press("\t")
        top.wait_shown("QUEUE", "LATENCY")

    def test_what_a_job_says_cannot_command_the_terminal(self, store: Store, open_top: OpenTop) -> None:
        add(store, "dead", NOW, args=["\x1b]0;owned\x07\x1b[2J"])
        top = open_top(columns=160)

        top.press("6")

        top.wait_shown(r"\u001b]0;owned\u0007\u001b[2J")

    def test_enter_tells_all_of_a_job(self, store: Store, open_top: OpenTop) -> None:
        add(store, "dead", NOW, tags=["vip"])
        top = open_top()
        top.press("6")
        top.wait_shown(JID)

        top.press("\r")

        top.wait_shown("created", "2026-11-20 09:59:00Z", '"tags"', '["vip"]')
        top.press(" ")
        wait_until(lambda: "created" not in top.text, "the text to be closed")

    def test_enter_on_a_queue_shows_its_jobs(self, stage: Stage, open_top: OpenTop) -> None:
        stage.push("SendInvoice", "to\x1b[2J", queue="mailers")
        top = open_top()
        top.wait_shown("mailers")

        top.press("\r")

        top.wait_shown("queue mailers", "SendInvoice", "any key goes back")

    def test_the_help_names_the_keys(self, store: Store, open_top: OpenTop) -> None:
        top = open_top()
        top.wait_shown("QUEUE")

        top.press("?")

        top.wait_shown("retry an entry", "quiet a process")

    def test_a_second_page_has_what_the_first_one_has_not(self, store: Store, open_top: OpenTop) -> None:
        for number in range(130):
            add(store, "dead", NOW + number, jid=f"{number:024}")
        top = open_top()
        top.press("6")
        top.wait_shown(f"{129:024}")

        top.press(">")

        top.wait_shown(f"{29:024}", "from 101")
        top.press("<")
        top.wait_shown(f"{129:024}")


class TestKeys:
    def test_an_entry_is_retried_once_somebody_says_yes(self, store: Store, open_top: OpenTop) -> None:
        add(store, "retry", NOW + 1e8)
        top = open_top()
        top.press("4")
        top.wait_shown(JID)

        top.press("R")
        top.wait_shown(f"retry SendInvoice {JID}?")
        top.press("n")
        wait_until(lambda: "y yes" not in top.text, "the question to be closed")
        assert jids(store, "retry") == [JID]
        top.press("R")
        top.wait_shown("y yes")
        top.press("y")

        wait_until(lambda: jids(store, "queue:low") == [JID], "the job to be in its queue")
        assert store.call("ZCARD", "retry") == 0
        top.wait_shown(f"SendInvoice {JID} moved to its queue")

    def test_the_entry_that_is_selected_is_meant_wherever_it_stands_by_then(
        self, store: Store, open_top: OpenTop
    ) -> None:
        for number in range(3):
            add(store, "retry", NOW + 1e8 + number, jid=f"{number:024}")
        top = open_top()
        top.press("4")
        top.wait_shown(f"{2:024}")
        top.press("jj")
        add(store, "retry", NOW + 1e7, jid=f"{9:024}")  # comes first now
        top.wait_shown(f"{9:024}")

        top.press("K")
        top.wait_shown(f"kill SendInvoice {2:024}?")
        top.press("y")

        wait_until(lambda: jids(store, "dead") == [f"{2:024}"], "the entry to be dead")

    def test_a_scheduled_entry_goes_to_its_queue(self, store: Store, open_top: OpenTop) -> None:
        add(store, "schedule", NOW + 1e8)
        top = open_top()
        top.press("5")
        top.wait_shown(JID)

        top.press("R")
        top.wait_shown("y yes")
        top.press("y")

        wait_until(lambda: jids(store, "queue:low") == [JID], "the job to be in its queue")

    def test_a_question_is_answered_by_yes_or_no_alone(self, store: Store, open_top: OpenTop) -> None:
        add(store, "retry", NOW + 1e8)
        top = open_top()
        top.press("4")
        top.wait_shown(JID)

        top.press("R")
        top.wait_shown("y yes")
        top.press("\r")
        top.press("x")
        top.press("y")

        wait_until(lambda: jids(store, "queue:low") == [JID], "the job to be in its queue")

    def test_somebody_may_be_faster(self, store: Store, open_top: OpenTop) -> None:
        add(store, "retry", NOW + 1e8)
        top = open_top("--interval", "60s")
        top.press("4")
        top.wait_shown(JID)
        store.call("UNLINK", "retry")

        top.press("K")
        top.wait_shown("y yes")
        top.press("y")

        top.wait_shown("somebody was faster")
        assert store.call("ZCARD", "dead") == 0

    def test_a_queue_is_paused_and_resumed(self, stage: Stage, open_top: OpenTop) -> None:
        stage.push("SendInvoice", 7, queue="mailers")
        top = open_top()
        top.wait_shown("mailers")

        top.press("P")
        top.wait_shown("pause the queue mailers?")
        top.press("y")

        wait_until(lambda: stage.store.call("SMEMBERS", "paused") == [b"mailers"], "the queue to be paused")
        top.wait_shown("mailers paused", " paused ")
        top.press("P")
        top.wait_shown("resume the queue mailers?")
        top.press("y")
        wait_until(lambda: stage.store.call("SMEMBERS", "paused") == [], "the queue to be paused no more")

    def test_a_cluster_is_quieted_and_resumed(
        self, store: Store, fake_supervisor: FakeSupervisor, open_top: OpenTop
    ) -> None:
        top = open_top()
        top.press("2")
        top.wait_shown(fake_supervisor.name)

        top.press("Q")
        top.wait_shown(f"quiet the cluster {fake_supervisor.name}?")
        top.press("y")
        top.wait_shown("quiet by kiqctl@")
        top.press("C")
        top.wait_shown(f"resume the cluster {fake_supervisor.name}?")
        top.press("y")

        wait_until(lambda: fake_supervisor.actions == ["quiet", "resume"], "the cluster to be resumed")

    def test_one_process_is_quieted_alone(
        self, store: Store, fake_supervisor: FakeSupervisor, open_top: OpenTop
    ) -> None:
        fake_supervisor.obeys_alone = True
        top = open_top()
        top.press("2")
        top.wait_shown("pid 102")

        top.press("jjQ")
        top.wait_shown(f"quiet {fake_supervisor.workers[1]}?")
        top.press("y")

        wait_until(lambda: fake_supervisor.quiet_alone == {fake_supervisor.workers[1]}, "the process to be quiet")

    def test_a_process_of_rubys_gets_a_signal_and_cannot_be_resumed(self, store: Store, open_top: OpenTop) -> None:
        publish(store, RUBY, labels=[])
        top = open_top()
        top.press("2")
        top.wait_shown(RUBY)

        top.press("Q")
        top.wait_shown(f"quiet {RUBY}?")
        top.press("y")
        wait_until(lambda: store.call("LRANGE", f"{RUBY}-signals", 0, -1) == [b"TSTP"], "the signal to be there")
        top.wait_shown("will be quiet at its next beat")  # else it would take the place of the next message
        top.press("C")

        top.wait_shown("no signal that ends a quiet")
        assert f"resume {RUBY}?" not in top.text


class TestTrouble:
    @pytest.mark.own_redis
    def test_an_outage_is_told_and_survived(self, stage: Stage, open_top: OpenTop) -> None:
        stage.push("SendInvoice", 7, queue="mailers")
        top = open_top(redis=stage.redis.url)
        top.wait_shown("mailers")

        stage.redis.kill()
        top.wait_shown("no picture for", "mailers")
        top.press("2")  # it goes on to answer
        top.wait_shown("PROCESS")
        stage.redis.start()

        top.wait_told("Redis is back")
        stage.push("SendInvoice", 7, queue="reports")
        top.press("1")
        top.wait_shown("reports")
        top.press("q")
        assert top.wait() == 0

    def test_what_has_failed_stays_to_be_seen(self, own_server: RedisServer, open_top: OpenTop) -> None:
        add(own_server.store(), "retry", NOW + 1e8)
        top = open_top(redis=own_server.url)
        top.press("4")
        top.wait_shown(JID)

        own_server.kill()
        top.wait_shown("no picture for")
        top.press("R")
        top.wait_shown(f"retry SendInvoice {JID}?")
        top.press("y")
        top.wait_shown("could not retry", "no picture for")
        own_server.start()

        wait_until(lambda: "no picture for" not in top.text, "Redis to be back")
        assert "could not retry" in top.text
        top.press(" ")
        wait_until(lambda: "could not retry" not in top.text, "it to be forgotten")

    def test_it_follows_the_size_of_its_window(self, stage: Stage, open_top: OpenTop) -> None:
        stage.push("SendInvoice", 7, queue="mailers")
        top = open_top(columns=100, lines=30)
        top.wait_shown("mailers", "? help")

        top.resize(40, 10)
        top.wait_shown("mailers")
        wait_until(lambda: max(map(len, top.lines)) <= 40 and "1…6" in top.lines[-1], "it to fit")
        top.resize(120, 40)

        wait_until(lambda: "1…6" in top.lines[-1] and len(top.lines) == 40, "it to fill the window")

    @pytest.mark.parametrize(
        ("columns", "lines"),
        [pytest.param(20, 6, marks=pytest.mark.full), pytest.param(10, 3, marks=pytest.mark.full), (5, 1)],
    )
    def test_a_tiny_window_does_it_no_harm(self, stage: Stage, open_top: OpenTop, columns: int, lines: int) -> None:
        stage.push("SendInvoice", 7, queue="mailers")
        top = open_top(columns=columns, lines=lines)
        top.wait_shown("1…")

        top.press("2?")
        if lines > 1:  # else there is no room for a frame
            top.wait_shown("╭")
        top.press("x")
        wait_until(lambda: "╭" not in top.text, "the help to be closed")
        top.resize(100, 30)
        top.wait_shown("PROCESS", "2 Processes")
        top.signal(signal.SIGTERM)

        assert top.wait() == 0

    def test_keys_that_come_too_fast_do_no_harm(self, store: Store, open_top: OpenTop) -> None:
        add(store, "retry", NOW + 1e8)
        top = open_top()
        top.press("4")
        top.wait_shown(JID)

        top.press("RnnnR??xxxRnjk<>4?x12345643")

        def shows_busy() -> bool:
            top.press("n3")  # n closes what may be open
            return "TID" in top.text

        wait_until(shows_busy, "it to show another view")
        assert jids(store, "retry") == [JID]

    @pytest.mark.parametrize("how", ["q", pytest.param(CTRL_C, marks=pytest.mark.full), signal.SIGTERM])
    def test_it_leaves_the_terminal_as_it_was(self, store: Store, open_top: OpenTop, how: str | signal.Signals) -> None:
        top = open_top()
        top.wait_shown("QUEUE")

        top.signal(how) if isinstance(how, signal.Signals) else top.press(how)

        assert top.wait() == 0
        assert top.is_as_before

    def test_it_ends_with_its_terminal(self, store: Store, open_top: OpenTop) -> None:
        top = open_top()
        top.wait_shown("QUEUE")

        top.signal(signal.SIGHUP)

        assert top.wait() == 0

    def test_without_the_extra_it_says_what_to_install(self, store: Store, kiqctl: Kiqctl, tmp_path: Path) -> None:
        (tmp_path / "textual").mkdir()
        missing = "raise ModuleNotFoundError(\"No module named 'textual'\", name='textual')"
        (tmp_path / "textual" / "__init__.py").write_text(missing)
        path = f"{tmp_path}{os.pathsep}{Path.cwd()}"

        done, once = kiqctl("top", PYTHONPATH=path), kiqctl("top", "--once", "--interval", "0.1s", PYTHONPATH=path)

        assert done.returncode == 2
        assert "pip install 'kiqcluster[top]'" in done.stderr
        assert once.returncode == 0

    def test_without_a_terminal_it_says_what_to_do_instead(self, store: Store, kiqctl: Kiqctl) -> None:
        done = kiqctl("top")

        assert done.returncode == 2
        assert "--once" in done.stderr

    def test_a_redis_that_is_not_there_at_the_start_is_exit_1(self, open_top: OpenTop) -> None:
        top = open_top(redis=f"redis://127.0.0.1:{free_port()}/0")

        assert top.wait() == 1
        assert "cannot reach Redis" in top.text.replace("\n", "")

    def test_looks_that_hardly_end_before_the_next_are_refused(self, store: Store, kiqctl: Kiqctl) -> None:
        assert kiqctl("top", "--once", "--interval", "0").returncode == 2
