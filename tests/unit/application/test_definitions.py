"""Definitions: the queue that a job's name gives it."""

from __future__ import annotations

import pytest

from kiqcluster.application.definitions import queue_for, underscored


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SomeScheduledTaskWorker", "some_scheduled_task"),
        ("SomeScheduledTask", "some_scheduled_task"),
        ("Gitlab::JiraImport::ImportIssueWorker", "jira_import_import_issue"),
        ("HTTPServerWorker", "http_server"),
        ("CI2Worker", "ci2"),
        ("nightly", "nightly"),
        ("snake_case", "snake_case"),
        ("Acme::Mail", "acme_mail"),
    ],
)
def test_a_class_name_becomes_a_queue_name_as_gitlab_does_it(name: str, expected: str) -> None:
    assert underscored(name) == expected
    assert queue_for(name, {"queue_namespace": "cronjob"}) == f"cronjob:{expected}"
