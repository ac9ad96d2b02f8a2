"""kiqctl retries, scheduled, dead: what they show, whom they mean, and that they tell truly what was done."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.errors import ExitCode
from kiqcluster.store import Store
from kiqcluster.store.scripts import MOVE_ENTRIES
from tests.fake_supervisor import publish
from tests.kit import RedisServer, free_port
from tests.proxy import Proxy
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, entries, entry_numbers, job, push_payloads, queued_numbers

GROUPS = {"retries": "retry", "scheduled": "schedule", "dead": "dead"}
PAST = {"retry": "retried", "add-to-queue": "put", "kill": "killed", "delete": "deleted", "reschedule": "rescheduled"}
VERBS = [
    ("retries", "retry"),
    ("retries", "kill"),
    ("retries", "delete"),
    ("retries", "reschedule"),
    ("scheduled", "add-to-queue"),
    ("scheduled", "kill"),
    ("scheduled", "delete"),
    ("scheduled", "reschedule"),
    ("dead", "retry"),
    ("dead", "delete"),
]
WRAPPER = "Sidekiq::ActiveJob::Wrapper"


def with_verbs(*values: list[str]) -> list[Any]:
    """Return a group, a verb and a value for each case: in the short form, one value with each verb."""
    return [
        pytest.param(*verb, value, marks=[] if place == number % len(values) else pytest.mark.full)
        for number, verb in enumerate(VERBS)
        for place, value in enumerate(values)
    ]


def failed(number: int, **more: Any) -> bytes:
    error = {"error_class": "OSError", "error_message": "away", "failed_at": NOW, "retry_count": 3}
    return job(number, created_at=NOW - 100, **{**error, **more})


def when(verb: str) -> tuple[str, ...]:
    return ("--at", str(NOW + 9)) if verb == "reschedule" else ()


def shown(kiqctl: Kiqctl, *words: str) -> list[Any]:
    """Return the first arguments of the entries that are shown, in order."""
    return [entry["args"][0] for entry in kiqctl.ask(*words)["entries"]]


class TestList:
    @pytest.mark.parametrize(
        ("group", "expected"), [("retries", [1, 2, 3]), ("scheduled", [1, 2, 3]), ("dead", [3, 2, 1])]
    )
    def test_it_begins_with_what_is_due_next_or_has_died_last(
        self, kiqctl: Kiqctl, store: Store, group: str, expected: list[int]
    ) -> None:
        add_entries(store, GROUPS[group], (NOW + 2, job(2)), (NOW + 1, job(1)), (NOW + 3, job(3)))

        assert shown(kiqctl, group, "list") == expected
        assert shown(kiqctl, group) == expected, "it is what a group does without a command"
        assert shown(kiqctl, group, "--limit", "2", "--page", "2") == expected[2:]
        assert shown(kiqctl, group, "--limit", "2", "--page", "9") == []

    def test_a_document_says_what_is_known_of_each(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "retry", (NOW, failed(1, tags=["vip"])), (float("inf"), b"no job"))

        document = kiqctl.ask("retries")

        assert (document["set"], document["size"], document["page"]) == ("retries", 2, 1)
        first, second = document["entries"]
        assert first == {
            "jid": "j1",
            "queue": "default",
            "class": "Job",
            "args": [1],
            "score": NOW,
            "at": "2026-11-20T09:59:00Z",
            "retry_count": 3,
            "error_class": "OSError",
            "error_message": "away",
            "created_at": NOW - 100,
            "failed_at": NOW,
            "tags": ["vip"],
            "deferred_by": None,
            "deferred_count": None,
            "dropped_by": None,
        }
        assert (second["score"], second["args"]) == (None, ["no job"])

    def test_lines_fit_the_terminal_and_hold_nothing_that_it_obeys(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "dead", (NOW, failed(1, args=["\x1b[2J\u202e" + "長" * 300], error_message="a\nb" * 300)))

        result = kiqctl("dead", COLUMNS="100")

        assert result.stdout.count("\n") == 3, "a head, the entry, and how many there are"
        assert "\x1b" not in result.stdout
        assert "\u202e" not in result.stdout

    @pytest.mark.parametrize("words", [["list"], ["show", "j7"]])
    def test_numbers_that_nothing_can_print_spoil_no_page(self, kiqctl: Kiqctl, store: Store, words: list[str]) -> None:
        digits = b"9" * 5_000
        raw = b'{"class":"Job","jid":"j7","retry_count":%b,"args":[%b,1e400],"created_at":%b}' % (
            digits,
            digits,
            digits,
        )
        add_entries(store, "retry", (float("inf"), raw), (NOW, job(1)))

        assert kiqctl("retries", *words).exit_code == 0
        document = json.loads(kiqctl("retries", *words, "--json").stdout, parse_int=len, parse_constant=pytest.fail)
        entry = document.get("entries", [None, document])[1]
        assert entry["args"] == [5_000, None]
        assert (entry["retry_count"], entry["at"], entry["score"]) == (5_000, None, None)

    @pytest.mark.parametrize("word", ["\x9b2J", "\u202e", "\x7f", "\ud800"])
    def test_a_document_holds_nothing_that_a_terminal_obeys(self, kiqctl: Kiqctl, store: Store, word: str) -> None:
        add_entries(store, "retry", (NOW, json.dumps({"class": f"é{word}", "jid": "j1", "args": []}).encode()))

        printed = kiqctl("retries", "--json").stdout

        assert printed.strip().isprintable()
        assert json.loads(printed)["entries"][0]["class"] == f"é{word}"

    def test_what_never_failed_has_no_columns_for_failures(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "schedule", (NOW, job(1)))
        add_entries(store, "retry", (NOW, failed(1)))

        assert kiqctl("scheduled").stdout.split("\n")[0].split() == ["WHEN", "QUEUE", "CLASS", "JID", "ARGS"]
        assert kiqctl("retries").stdout.split("\n")[0].split()[1] == "TRIES"

    def test_an_empty_set_is_no_failure(self, kiqctl: Kiqctl) -> None:
        result = kiqctl("retries")

        assert (result.exit_code, result.stdout) == (0, "0 of 0 entries of the retry set\n")

    def test_more_than_a_page_says_how_to_see_it(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "retry", *[(NOW + number, job(number)) for number in range(30)])

        assert "25 of 30 entries of the retry set; for more: --page 2" in kiqctl("retries").stdout
        assert kiqctl("retries", "list", "--count").stdout == "30\n"
        assert kiqctl.ask("retries", "list", "--count", "--error", "x")["count"] == 0


class TestFilters:
    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--class", "Job"], [1, 2, 3, 4, 5]),
            (["--class", "Other"], [6]),
            (["--class", WRAPPER], [7]),
            (["--class", "Inner"], [7]),
            (["--queue", "low"], [2]),
            (["--error", "Timeout"], [3]),
            (["--error", "Timeout: took"], [3]),
            (["--error", "too long"], [3]),
            (["--text", "needle"], [4]),
            (["--text", "*ne?dle*"], [4]),
            (["--text", "[x"], []),
            (["--text", '"args":[3'], [3]),
            (["--tag", "vip"], [5]),
            (["--class", "Job", "--tag", "vip"], [5]),
            (["--queue", "low", "--tag", "vip"], []),
            (["--class", "(no job)"], ["junk"]),
            (["--selector", "name=low|tags=vip"], [2, 5]),
            (["--selector", "worker_name=Inner,Other"], [6, 7]),
            (["--selector", f"worker_name={WRAPPER}"], [7]),
            (["--selector", "(name=low|tags=vip)&tags!=x"], [2]),
            (["--queue", "low", "--selector", "tags!=vip"], [2]),
        ],
    )
    def test_selects(self, kiqctl: Kiqctl, store: Store, words: list[str], expected: list[Any]) -> None:
        envelope = {"class": WRAPPER, "wrapped": "Inner", "args": [{"job_class": "Inner", "arguments": [7]}]}
        add_entries(
            store,
            "retry",
            (NOW + 1, failed(1)),
            (NOW + 2, failed(2, queue="low")),
            (NOW + 3, failed(3, error_class="Net::ReadTimeout", error_message="took too long")),
            (NOW + 4, failed(4, note="a needle")),
            (NOW + 5, failed(5, tags=["vip", "x"])),
            (NOW + 6, failed(6, **{"class": "Other"})),
            (NOW + 7, failed(7, **envelope)),
            (NOW + 8, b"junk"),
        )

        assert shown(kiqctl, "retries", "list", *words) == expected
        assert kiqctl.ask("retries", "list", "--count", *words)["count"] == len(expected)
        document = kiqctl.ask("retries", "delete", *words, "--yes")
        assert (document["found"], document["done"]) == (len(expected), len(expected))
        assert store.call("ZCARD", "retry") == 8 - len(expected)

    @pytest.mark.usefixtures("registry")
    def test_with_the_application_a_selector_knows_what_its_classes_declare(
        self, kiqctl: Kiqctl, store: Store, tmp_path: Path
    ) -> None:
        (tmp_path / "declaring_jobs.py").write_text(
            "from kiqcluster import job\n"
            "job(name='Urgent', urgency='high', tags=['vip'])(lambda number: None)\n"
            "job(name='Bill', feature_category='billing')(lambda number: None)\n"
        )
        found = [("Urgent", {"queue": "elsewhere"}), ("Bill", {"tags": ["vip"]}), ("Unknown", {})]
        jobs = [(NOW + n, failed(n, **{"class": name, **keys})) for n, (name, keys) in enumerate(found, 1)]
        add_entries(store, "retry", *jobs)
        require = ["-r", str(tmp_path / "declaring_jobs.py")]
        expected = {
            "urgency=high": [1],
            "urgency=low": [2],  # by default; of Unknown nobody knows it
            "urgency!=high&feature_category=billing": [2],
            "tags=vip": [1, 2],  # one by its class, one by its payload
            "name=elsewhere&urgency=high": [1],  # where it is, not where its class belongs
            "name=default|worker_name=Unknown": [2],
            "*": [1, 2],
        }

        assert {each: shown(kiqctl, "retries", "list", "--selector", each, *require) for each in expected} == expected
        assert kiqctl.ask("retries", "delete", "--selector", "urgency=low", *require, "--yes")["done"] == 1
        assert shown(kiqctl, "retries", "list") == [1, 3]

    def test_an_application_without_a_selector_is_refused(self, kiqctl: Kiqctl) -> None:
        result = kiqctl("retries", "list", "-r", "app.jobs")

        assert (result.exit_code, "give a --selector as well" in " ".join(result.stderr.split())) == (2, True)

    @pytest.mark.parametrize("group", GROUPS)
    def test_age_counts_from_what_happened_last(self, kiqctl: Kiqctl, store: Store, group: str) -> None:
        (seconds, micros) = map(int, store.call("TIME"))
        now, hour = seconds + micros / 1e6, 3_600
        ages: dict[str, list[dict[str, Any]]] = {
            "retries": [
                {"failed_at": now - 9 * hour, "retried_at": now - hour},
                {"failed_at": int(now * 1_000) - 9_000},
            ],
            "scheduled": [{"created_at": now - hour}, {"created_at": now - 9}],
            "dead": [{}, {"failed_at": now - 9 * hour}],
        }
        old, young = ages[group]
        scores = (now - hour, now - 9) if group == "dead" else (now + 1, now + 2)
        add_entries(store, GROUPS[group], (scores[0], job(1, **old)), (scores[1], job(2, **young)))

        assert shown(kiqctl, group, "list", "--older", "30m") == [1]
        assert shown(kiqctl, group, "list", "--newer", "30m") == [2]
        assert shown(kiqctl, group, "list", "--older", "30m", "--newer", "50m") == []

    def test_in_a_pipe_nothing_is_cut(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "dead", (NOW, failed(1, args=["a" * 900 + "b"], error_message="c" * 900 + "d")))

        result = kiqctl("dead")

        assert "ab" in result.stdout
        assert "cd" in result.stdout
        assert "…" not in result.stdout


class TestShow:
    def test_shows_a_job_in_full(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "dead", (NOW, failed(1, error_message="x" * 500, note="\x1b[2J")))

        result = kiqctl("dead", "show", "j1")

        assert "x" * 500 in result.stdout
        assert "\x1b" not in result.stdout
        document = kiqctl.ask("dead", "show", "j1")
        assert document["payload"]["note"] == "\x1b[2J"

    @pytest.mark.parametrize(
        ("key", "where"),
        [
            ("schedule", "in the schedule"),
            ("dead", "in the dead set"),
            ("queue:low", "in the queue low"),
            ("host:1:a:work", "running in host:1:a"),
            ("", "nor anywhere else"),
        ],
    )
    @pytest.mark.parametrize("words", [["show"], ["delete"], ["retry"]])
    def test_a_job_that_lies_elsewhere_is_said_to(
        self, kiqctl: Kiqctl, store: Store, key: str, where: str, words: list[str]
    ) -> None:
        if key.startswith("queue:"):
            push_payloads(store, [job(2), job(1), job(3)], "low")
        elif key.startswith("host"):
            publish(store, "host:1:a")
            run = {"queue": "default", "payload": job(1).decode(), "run_at": NOW}
            store.call("HSET", key, "tid", json.dumps(run))
        elif key:
            add_entries(store, key, (NOW, job(1)))
        before = store.call("DBSIZE")

        result = kiqctl("retries", *words, "j1")

        assert result.exit_code == 1
        assert where in result.stderr
        assert store.call("DBSIZE") == before

    def test_of_a_beginning_it_says_which_job_that_is_and_where(self, kiqctl: Kiqctl, store: Store) -> None:
        whole = "6f1d22b3a9c04e7f8a51d0c2"
        publish(store, "host:1:a")
        run = {"queue": "default", "payload": job(1, jid=whole).decode(), "run_at": NOW}
        store.call("HSET", "host:1:a:work", "tid", json.dumps(run))

        result = kiqctl("retries", "delete", whole[:8])

        assert result.exit_code == 1
        assert f"but {whole} is running in host:1:a (`kiqctl kill {whole}`" in result.stderr


class TestVerbs:
    @pytest.mark.parametrize(("group", "verb"), VERBS)
    def test_named_ones_are_done_and_no_others(self, kiqctl: Kiqctl, store: Store, group: str, verb: str) -> None:
        add_entries(store, GROUPS[group], *[(NOW + number, failed(number)) for number in range(5)])

        document = kiqctl.ask(group, verb, "j1", "j3", "j1", *when(verb))

        assert (document["ok"], document["done"], document["action"]) == (True, 2, verb)
        self.check(store, group, verb, [1, 3], [0, 2, 4])

    @pytest.mark.parametrize(("group", "verb"), VERBS)
    def test_filtered_ones_are_done_and_no_others(self, kiqctl: Kiqctl, store: Store, group: str, verb: str) -> None:
        mine = [(NOW + number, failed(number, **{"class": "Mine"})) for number in range(0, 1_500, 2)]
        add_entries(store, GROUPS[group], *mine, *[(NOW + number, failed(number)) for number in range(1, 1_500, 2)])

        result = kiqctl(group, verb, "--class", "Mine", "--yes", *when(verb))

        assert result.exit_code == 0, result.output
        assert PAST[verb] in result.stdout
        assert "750 entries" in result.stdout
        self.check(store, group, verb, list(range(0, 1_500, 2)), list(range(1, 1_500, 2)))

    @pytest.mark.parametrize(("group", "verb"), VERBS)
    def test_all_are_done(self, kiqctl: Kiqctl, store: Store, group: str, verb: str) -> None:
        add_entries(store, GROUPS[group], *[(NOW + number, failed(number)) for number in range(1_200)])

        document = kiqctl.ask(group, verb, "--all", "--yes", *when(verb))

        skipped = int(verb == "reschedule")  # it has that time already
        assert document["done"] == 1_200 - skipped
        self.check(store, group, verb, list(range(1_200)), [])

    @pytest.mark.parametrize(("group", "verb", "filters"), with_verbs(["--all"], ["--class", "Job"], ["--text", "Job"]))
    def test_without_a_yes_it_says_how_many_and_does_nothing(
        self, kiqctl: Kiqctl, store: Store, group: str, verb: str, filters: list[str]
    ) -> None:
        add_entries(store, GROUPS[group], *[(NOW + 99 + number, failed(number)) for number in range(3)])
        before = entries(store, GROUPS[group])

        result = kiqctl(group, verb, *filters, *when(verb))

        assert result.exit_code == 2
        assert " 3 entries of " in result.stderr
        assert "nothing was done" in result.stderr
        assert entries(store, GROUPS[group]) == before

    @pytest.mark.parametrize(
        ("selector", "words"),
        [
            ("urgency=high", "'urgency' is not known here, since payloads do not carry it: name the application"),
            ("worker=A", "worker is here: worker_name"),
            ("tags=a b", "character 8"),
        ],
    )
    def test_a_selector_that_cannot_be_used_here_is_refused(self, kiqctl: Kiqctl, selector: str, words: str) -> None:
        result = kiqctl("retries", "list", "--selector", selector)

        assert result.exit_code == 2
        assert words in " ".join(result.stderr.split())

    @pytest.mark.parametrize(
        ("group", "verb", "words"),
        with_verbs([], ["j1", "--all"], ["j1", "--class", "Job"], ["--all", "--tag", "x"]),
    )
    def test_whom_it_means_has_to_be_said_in_one_way(
        self, kiqctl: Kiqctl, store: Store, group: str, verb: str, words: list[str]
    ) -> None:
        add_entries(store, GROUPS[group], (NOW, failed(1, tags=["x"])))

        assert kiqctl(group, verb, *words, "--yes", *when(verb)).exit_code == 2
        assert store.call("ZCARD", GROUPS[group]) == 1

    def check(self, store: Store, group: str, verb: str, done: list[int], others: list[int]) -> None:
        """Assert that these went where the verb takes them, and the others stayed."""
        there = entries(store, GROUPS[group])
        if verb == "reschedule":
            assert {json.loads(raw)["args"][0]: score for raw, score in there.items()} == {
                **dict.fromkeys(done, NOW + 9),
                **{number: NOW + number for number in others},
            }
            return
        assert sorted(entry_numbers(store, GROUPS[group])) == others
        queue = queued_numbers(store) if store.call("EXISTS", "queue:default") else []
        if verb in ("retry", "add-to-queue"):
            assert sorted(queue) == done
        elif verb == "kill":
            assert sorted(entry_numbers(store, "dead")) == done
        else:
            assert (queue, store.call("DBSIZE")) == ([], int(bool(others)))

    def test_a_retry_does_not_count_as_one_and_goes_through_as_rubys_does(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "retry", (NOW, failed(1)))

        kiqctl("retries", "retry", "j1")

        payload = json.loads(store.call("LINDEX", "queue:default", 0))
        assert payload["retry_count"] == 2
        assert payload["enqueued_at"] > NOW
        assert store.call("SMEMBERS", "queues") == [b"default"]

    def test_scheduled_jobs_are_queued_in_the_order_of_their_times(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "schedule", *[(NOW + number, job(number)) for number in range(1_100)])

        kiqctl("scheduled", "add-to-queue", "--all", "--yes")

        assert queued_numbers(store) == list(range(1_100))

    @pytest.mark.parametrize("words", [["--in", "5m", "--at", "2036-01-01T00:00Z"], [], ["--at", "2036-01-01"]])
    def test_a_new_time_has_to_be_said_in_one_way(self, kiqctl: Kiqctl, store: Store, words: list[str]) -> None:
        add_entries(store, "retry", (NOW, failed(1)))

        assert kiqctl("retries", "reschedule", "j1", *words).exit_code == 2
        assert entries(store, "retry") == {failed(1): NOW}

    def test_a_delay_counts_from_now(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "schedule", (NOW, job(1)), (NOW + 1e9, job(2)))
        before = int(store.call("TIME")[0])

        kiqctl("scheduled", "reschedule", "--all", "--in", "15m", "--yes")

        assert all(before + 900 <= score <= before + 960 for score in entries(store, "schedule").values())

    def test_killing_heeds_the_limits_of_the_configuration(self, kiqctl: Kiqctl, store: Store, tmp_path: Path) -> None:
        config = tmp_path / "kiqcluster.toml"
        config.write_text("dead.max_jobs = 11\n")
        now = int(store.call("TIME")[0])
        add_entries(store, "dead", *[(now - 100 + number, job(100 + number)) for number in range(50)])
        add_entries(store, "retry", *[(NOW, failed(number)) for number in range(3)])

        assert kiqctl("retries", "kill", "--all", "--yes", "-C", str(config)).exit_code == 0
        assert sorted(entry_numbers(store, "dead"))[:3] == [0, 1, 2]
        assert store.call("ZCARD", "dead") == 10

        config.write_text("dead.max_jobs = 'many'\n")
        assert kiqctl("retries", "kill", "--all", "--yes", "-C", str(config)).exit_code == 2
        assert kiqctl("top", "--once", "-C", str(config)).exit_code == 2, "its key K kills as well"

    @pytest.mark.parametrize("words", [["--all", "--yes"], ["j0", "j1", "j2"]])
    def test_killing_says_how_many_older_ones_went(
        self, kiqctl: Kiqctl, store: Store, tmp_path: Path, words: list[str]
    ) -> None:
        config = tmp_path / "kiqcluster.toml"
        config.write_text("dead.max_jobs = 11\n")
        now = int(store.call("TIME")[0])
        add_entries(store, "dead", *[(now - 100 + number, job(100 + number)) for number in range(9)])
        add_entries(store, "retry", *[(NOW, failed(number)) for number in range(3)])

        asked = kiqctl("retries", "kill", "--all", "-C", str(config))
        assert (asked.exit_code, store.call("ZCARD", "dead")) == (2, 9)
        assert "drops up to 2 older ones" in asked.stderr
        assert kiqctl.ask("retries", "kill", *words, "-C", str(config))["dropped"] == 2
        assert store.call("ZCARD", "dead") == 10

    def test_killing_says_of_no_other_where_there_is_room(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "dead", (int(store.call("TIME")[0]), job(9)))
        add_entries(store, "retry", (NOW, failed(1)))

        assert "drops" not in kiqctl("retries", "kill", "--all").stderr
        assert kiqctl.ask("retries", "kill", "--all", "--yes")["dropped"] == 0

    def test_a_date_without_a_zone_is_answered_with_one_that_is_taken(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "retry", (NOW, failed(1)))
        refused = kiqctl("retries", "reschedule", "j1", "--at", "2096-01-01")
        (advice,) = re.findall(r"write (\S+),", refused.stderr)

        assert kiqctl("retries", "reschedule", "j1", "--at", advice).exit_code == 0
        assert list(entries(store, "retry").values()) == [3_976_214_400.0]


class TestTruth:
    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (["jobs", "nope"], 1),
            (["retries", "show", "nope"], 1),
            (["retries", "retry", "nope"], 1),
            (["queues", "resume", "python", "nope"], 1),
            (["retries", "delete", "--all"], 2),
            (["retries", "delete"], 2),
            (["signal", "TSTP", "nope:1"], 1),
            (["enqueue", "A", "--queue", "a b"], 2),
        ],
    )
    def test_a_failure_has_a_document_too(self, kiqctl: Kiqctl, store: Store, words: list[str], code: int) -> None:
        add_entries(store, "retry", (NOW, failed(1)))
        push_payloads(store, [job(1)], "python")

        document = kiqctl.ask(*words, code=code)

        assert document["ok"] is False
        assert document["error"]

    def test_so_has_one_of_a_redis_that_is_away(self) -> None:
        document = Kiqctl(f"redis://127.0.0.1:{free_port()}/0").ask("retries", "list", code=1)

        assert document["ok"] is False
        assert "cannot reach Redis" in document["error"]

    def test_the_document_is_not_ok_where_the_exit_code_is_not(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "retry", (NOW, failed(1)))

        assert kiqctl.ask("retries", "retry", "j1", "gone", code=1)["ok"] is False
        assert kiqctl.ask("retries", "retry", "j1", code=1)["ok"] is False

    def test_what_redis_refuses_holds_up_no_other(self, kiqctl: Kiqctl, store: Store) -> None:
        store.call("SET", "queue:broken", "x")
        add_entries(store, "retry", *[(NOW + number, failed(number, queue="broken")) for number in (1, 700, 1_400)])
        add_entries(store, "retry", *[(NOW + number + 0.5, failed(5_000 + number)) for number in range(1_500)])

        document = kiqctl.ask("retries", "retry", "--all", "--yes", code=ExitCode.REDIS_REFUSED)

        assert (document["found"], document["done"], document["refused"], document["unknown"]) == (1_503, 1_500, 3, 0)
        assert "WRONGTYPE" in document["error"]
        assert entry_numbers(store, "retry") == [1, 700, 1_400]
        assert len(queued_numbers(store)) == 1_500

    def test_a_lost_reply_is_no_success_and_no_failure(self, store: Store, redis_server: RedisServer) -> None:
        add_entries(store, "retry", *[(NOW + number, failed(number)) for number in range(1_200)])

        with Proxy(("127.0.0.1", redis_server.port)) as proxy:
            proxy.lose_replies(MOVE_ENTRIES.digest.encode())
            kiqctl = Kiqctl(proxy.url)
            document = kiqctl.ask("retries", "retry", "--all", "--yes", code=1)

        moved = store.call("LLEN", "queue:default")
        assert document["done"] <= moved <= document["done"] + document["unknown"]
        assert 0 < document["unknown"] <= 500
        assert not document["ok"]
        assert Kiqctl(redis_server.url).ask("retries", "retry", "--all", "--yes")["done"] == 1_200 - moved
        assert sorted(queued_numbers(store)) == list(range(1_200)), "each once"

    def test_a_redis_that_goes_away_is_no_riddle(self, store: Store, redis_server: RedisServer) -> None:
        add_entries(store, "retry", (NOW, failed(1)))

        with Proxy(("127.0.0.1", redis_server.port)) as proxy:
            kiqctl = Kiqctl(proxy.url)
            with proxy.away():
                result = kiqctl("retries", "retry", "j1")

        assert result.exit_code == 1
        assert "cannot reach Redis" in result.stderr
        assert entry_numbers(store, "retry") == [1]

    def test_a_key_of_the_wrong_type_is_said(self, kiqctl: Kiqctl, store: Store) -> None:
        store.call("SET", "retry", "x")

        for words in (["list"], ["show", "j1"], ["delete", "--all", "--yes"]):
            result = kiqctl("retries", *words)
            assert result.exit_code == 5
            assert "WRONGTYPE" in result.stderr

        store.pipeline([("SADD", "queues", "broken"), ("SET", "queue:broken", "x")])
        assert "queue:broken" in kiqctl("jobs", "broken").stderr


class TestIds:
    @pytest.mark.parametrize("verb", [words for words in VERBS if words != ("dead", "delete")])
    def test_an_id_names_all_entries_that_have_it(self, kiqctl: Kiqctl, store: Store, verb: tuple[str, str]) -> None:
        group, action = verb
        twice = [failed(number, jid="twice") for number in (1, 2)]
        add_entries(store, GROUPS[group], (NOW, twice[0]), (NOW, twice[1]), (NOW, failed(3)))

        assert kiqctl.ask(group, action, "twice", *when(action))["done"] == 2

        assert [job["args"] for job in kiqctl.ask(group, "show", "j3")["others"]] == []
        result = kiqctl(group, "show", "j3")
        assert result.exit_code == 0

    def test_show_tells_of_all_entries_of_an_id(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "dead", (NOW, failed(1, jid="twice")), (NOW + 1, failed(2, jid="twice")))

        document = kiqctl.ask("dead", "show", "twice")

        assert document["args"] == [2]
        assert [entry["args"] for entry in document["others"]] == [[1]]
        assert "2 entries of the dead set have this id" in kiqctl("dead", "show", "twice").stdout

    def test_a_beginning_stands_for_the_one_id_that_has_it(self, kiqctl: Kiqctl, store: Store) -> None:
        jids = ["b4a577edbccf1d805744efa9", "b4a577ffffffffffffffffff", "b4a577"]
        add_entries(store, "retry", *[(NOW + at, failed(at, jid=jid)) for at, jid in enumerate(jids)])

        assert kiqctl.ask("retries", "show", "b4a577ed")["jid"] == jids[0]
        assert kiqctl.ask("retries", "show", "b4a577")["jid"] == jids[2], "an id in full comes first"
        assert kiqctl.ask("retries", "delete", "b4a577ed")["done"] == 1
        store.call("ZREM", "retry", failed(2, jid="b4a577"))
        add_entries(store, "retry", (NOW, failed(0, jid=jids[0])))
        assert "is the beginning of 2 ids" in kiqctl.ask("retries", "delete", "b4a577", code=2)["error"]
        assert "nor anywhere else" in kiqctl.ask("retries", "show", "b4a", code=1)["error"], "three are too few"

    @pytest.mark.parametrize("size", [40, 3_000])
    def test_an_id_is_found_wherever_it_lies(self, kiqctl: Kiqctl, store: Store, size: int) -> None:
        add_entries(store, "dead", *[(NOW + number // 3, job(number, jid=f"{number:024x}")) for number in range(size)])
        push_payloads(store, [job(number, jid=f"q{number:023x}") for number in range(size)])
        store.call("RPUSH", "kiq:wake:default", job(7, jid="woken"))

        for number in (0, size // 2, size - 1):
            assert kiqctl.ask("dead", "show", f"{number:024x}")["args"] == [number]
            assert kiqctl.ask("jobs", "default", "--jid", f"q{number:023x}")["args"] == [number]
        assert kiqctl.ask("jobs", "default", "--jid", "woken")["args"] == [7]
        assert "but in the queue default" in kiqctl.ask("dead", "show", "woken", code=1)["error"]
        assert "nor anywhere else" in kiqctl.ask("dead", "show", "nobody", code=1)["error"]

    def test_entries_as_large_as_a_megabyte_are_looked_through(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "dead", *[(NOW + n, job(n, jid=f"large{n}", text="x" * 1_000_000)) for n in range(6)])

        assert kiqctl.ask("dead", "show", "large0")["args"] == [0]


def test_the_schedule_says_which_jobs_wait_for_their_key(kiqctl: Kiqctl, store: Store) -> None:
    odd = {"deferred_by": ["unknown_key"]}
    add_entries(store, "schedule", (NOW, job(1, deferred_by="unknown_key", deferred_count=3)), (NOW + 1, job(2, **odd)))

    lines = kiqctl("scheduled").stdout.splitlines()

    assert "no worker of default has its key; tries so far: 3" in lines[1]
    assert "no worker" not in lines[2]


def test_the_schedule_says_which_jobs_wait_for_their_class(kiqctl: Kiqctl, store: Store) -> None:
    deferred = {"deferred": True, "deferred_by": "unknown_class", "deferred_count": 3}
    add_entries(store, "schedule", (NOW, job(1, **deferred)), (NOW + 1, job(2)))

    first, second = kiqctl.ask("scheduled")["entries"]
    assert (first["deferred_by"], first["deferred_count"]) == ("unknown_class", 3)
    assert second["deferred_by"] is None
    lines = kiqctl("scheduled").stdout.splitlines()
    assert lines[0].endswith("ERROR")
    assert "no worker of default knows this class; tries so far: 3" in lines[1]
    assert "no worker of default" in kiqctl("scheduled", "show", "j1").stdout


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"deferred": True, "deferred_by": "strike:3fa9c1", "deferred_count": 3},
            "deferred by strike:3fa9c1, 3 times so far",
        ),
        ({"deferred": True, "deferred_by": "feature_flag", "deferred_count": 1}, "deferred by feature_flag"),
        ({"deferred_by": "rate\u001b_limit", "deferred_count": "many"}, "deferred by rate"),
        ({"dropped": True, "dropped_by": "expiry"}, "dropped by expiry"),
        ({"deferred_by": ["strike"], "dropped_by": 7}, "no reason"),
        ({"deferred_by": "strike:1", "error_class": "OSError", "error_message": "away"}, "OSError: away"),
    ],
)
def test_what_has_kept_a_job_from_running_is_listed(
    kiqctl: Kiqctl, store: Store, keys: dict[str, Any], words: str
) -> None:
    for name in ("schedule", "kiq:dropped"):
        add_entries(store, name, (NOW, job(1, **keys)))

    listed = [kiqctl(name, "list").stdout for name in ("scheduled", "dropped")]

    if words == "no reason":
        assert all("deferred" not in each and "dropped by" not in each for each in listed)
    else:
        assert all(words in each for each in listed)
    assert all("\u001b" not in each for each in listed)
