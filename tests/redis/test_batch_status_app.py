"""The WSGI application with the status of batches."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.batches import Batch, status_app
from kiqcluster.batches.status_app import Application
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.kit import RedisServer


def ask(app: Application, path: str, method: str = "GET", **environ: Any) -> tuple[int, dict[str, str], Any]:
    """Return code, headers and document of an answer; None for no body."""
    answered: list[Any] = []
    body = b"".join(
        app(
            {"PATH_INFO": path, "REQUEST_METHOD": method, **environ},
            lambda status, headers: answered.extend((int(status.split()[0]), dict(headers))),
        )
    )
    return answered[0], answered[1], decode(body) if body else None


@pytest.fixture
def batch(store: Store, setup: Setup) -> Batch:
    @job
    def handle_row(number: int) -> None: ...

    made = Batch.create("import", handle_row, [[1], [2]])
    made.mark([next(batch_job.jid for batch_job in made.jobs() if batch_job.params == [2])], "failed", "no name")
    return made


def test_it_answers_with_counts_and_failures(batch: Batch) -> None:
    code, headers, document = ask(status_app(), f"/batches/{batch.id}.json")

    assert (code, headers["Content-Type"], headers["Cache-Control"]) == (200, "application/json", "no-store")
    assert (document["total"], document["enqueue"], document["failed"], document["percent"]) == (2, 1, 1, 50.0)
    (failure,) = document["failures"]
    assert (failure["params"], failure["messages"]) == ([2], ["no name"])
    changes = [(each["status"], each["messages"]) for each in failure["changes"]]
    assert changes == [("enqueue", []), ("failed", ["no name"])]
    assert document["created_at"] <= failure["changes"][0]["at"] <= failure["changes"][1]["at"]


def test_all_failures_can_be_read_page_by_page(store: Store, setup: Setup) -> None:
    @job
    def handle_row(number: int) -> None: ...

    batch = Batch.create("import", handle_row, [[number] for number in range(250)])
    jids = [batch_job.jid for batch_job in batch.jobs()]
    batch.mark(jids[:200], "failed")
    batch.mark(jids[200:], "error")
    app, path = status_app(), f"/batches/{batch.id}.json"

    pages = [ask(app, path, QUERY_STRING=f"offset={offset}")[2] for offset in (0, 100, 200, 300)]
    failed = [ask(app, path, QUERY_STRING=f"status=failed&offset={offset}")[2] for offset in (0, 100, 200)]

    assert [len(page["failures"]) for page in pages] == [100, 100, 50, 0]
    assert [page["more"] for page in pages] == [True, True, False, False]
    assert {each["jid"] for page in pages for each in page["failures"]} == set(jids)
    assert {each["jid"] for page in failed for each in page["failures"]} == set(jids[:200])
    assert ask(app, path)[2]["more"] is True


@pytest.mark.parametrize("query", ["offset=-1", "offset=x", "offset=", "status=finish"])
def test_an_offset_or_status_that_is_none_is_refused(batch: Batch, query: str) -> None:
    assert ask(status_app(), f"/batches/{batch.id}.json", QUERY_STRING=query)[0] == 400


def test_a_head_has_no_body(batch: Batch) -> None:
    code, headers, document = ask(status_app(), f"/batches/{batch.id}.json", "HEAD")

    assert (code, document, int(headers["Content-Length"]) > 100) == (200, None, True)


@pytest.mark.parametrize(
    "path", ["/", "/batches/", "/batches/x.json", f"/batches/{'0' * 24}.json", f"/batches/{'0' * 24}"]
)
def test_what_is_not_there_is_not_found(path: str, batch: Batch) -> None:
    assert ask(status_app(), path)[0] == 404


def test_only_reading_is_allowed(batch: Batch) -> None:
    code, headers, _ = ask(status_app(), f"/batches/{batch.id}.json", "POST")

    assert (code, headers["Allow"]) == (405, "GET, HEAD")


def test_authorize_decides(batch: Batch) -> None:
    app = status_app(authorize=lambda environ: environ.get("REMOTE_USER") == "ann")

    assert ask(app, f"/batches/{batch.id}.json")[0] == 403
    assert ask(app, f"/batches/{batch.id}.json", REMOTE_USER="ann")[0] == 200


def test_it_says_when_redis_is_away(own_server: RedisServer, registry: object) -> None:
    app = status_app(store=own_server.store())
    own_server.kill()

    code, headers, document = ask(app, f"/batches/{'0' * 24}.json")

    assert (code, headers["Retry-After"], "ask again" in document["error"]) == (503, "2", True)


class TestArguments:
    @pytest.fixture
    def mixed(self, store: Store, setup: Setup) -> Batch:
        """A batch of a class that shows its argument, with a job of one that does not."""

        @job(name="Public", loggable_arguments=[0])
        def public(text: str) -> None: ...

        @job(name="Secret")
        def secret(text: str, number: int) -> None: ...

        made = Batch.create("import", public, [["Rome"]])
        made.add(secret, [["hunter2", 7]])
        made.mark([batch_job.jid for batch_job in made.jobs()], "failed")
        return made

    def shown(self, app: Application, batch: Batch) -> list[Any]:
        document = ask(app, f"/batches/{batch.id}.json")[2]
        return sorted((each["params"] for each in document["failures"]), key=str)

    def test_they_are_filtered_as_in_logs_by_the_class_of_each_job(self, mixed: Batch) -> None:
        assert self.shown(status_app(), mixed) == [["Rome"], ["[FILTERED]", 7]]

    def test_the_application_may_show_more_or_less(self, mixed: Batch) -> None:
        app = status_app(show_arguments=lambda name, arguments: f"{name} of {arguments[0]}")

        assert self.shown(app, mixed) == ["Public of Rome", "Secret of hunter2"]

    def test_of_a_job_whose_class_an_earlier_release_has_not_kept_numbers_are_shown(self, mixed: Batch) -> None:
        store = mixed._store
        for batch_job in mixed.jobs():
            store.call("HSET", store.keys.batch(mixed.id), f"p{batch_job.jid}", b'["Oslo",5]')

        assert self.shown(status_app(), mixed) == [["[FILTERED]", 5]] * 2
        assert self.shown(status_app(show_arguments=lambda name, _: name), mixed) == ["", ""]

    @pytest.mark.parametrize("raw", [b"{}", b'"x"', b"[", b"\n", b"\nSecret", b'["x"]\n\xff\xfe'])
    def test_what_somebody_else_has_written_is_not_shown(self, mixed: Batch, raw: bytes) -> None:
        store = mixed._store
        for batch_job in mixed.jobs():
            store.call("HSET", store.keys.batch(mixed.id), f"p{batch_job.jid}", raw)

        code, _, document = ask(status_app(), f"/batches/{mixed.id}.json")

        assert code == 200
        assert all(each["params"] in (None, ["[FILTERED]"], "[FILTERED]") for each in document["failures"])
