"""Words that mean one thing: a group of jobs is a batch, wherever the package, its pages and its examples speak of one.

A task is a job for users of Celery, Django and Huey, and a part of an event loop for those of asyncio.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch

from tests.kit import ROOT

READ = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "deploy/",
    "docs/",
    "examples/",
    "kiqcluster/",
)
NOT_READ = re.compile(r".*(/vendor/.*|\.(png|svg|woff2?|ico))")
FORMER = re.compile(r"task", re.IGNORECASE)
ELSEWHERE = re.compile(  # phrases in which it means something else
    r"task_id|use_task_event|TASK_ID|USE_TASK_EVENT"  # keys that Ruby's workers read
    r"|taskiq[-\w]*|taskset|format_task|BackgroundTasks|task type|failed task|tasks stay|/proc/\S*|self/task"
    r"|[Ss]cheduled_?[Tt]ask\w*|[Dd]jango(?:[._-]|'s |\s)tasks[-\w]*|TaskBackend|task_backend\S*",
    re.IGNORECASE,
)
PLACES = {  # where it means something else
    "docs/adr/0019-names.md": "names that there were",
    "docs/adr/0037-async-jobs.md": "asyncio",
    "docs/adr/0044-django.md": "Django",
    "docs/adr/0045-outbox-and-inbox.md": "Django",
    "docs/adr/0047-a-layer-for-celery.md": "Celery",
    "docs/guides/async.md": "asyncio",
    "docs/guides/django.md": "Django",
    "docs/guides/migrate_from_celery.md": "Celery",
    "docs/guides/migrate_from_huey.md": "Huey",
    "docs/guides/outbox.md": "Django",
    "docs/reference/comparison.md": "other systems",
    "docs/tutorial/django.md": "Django",
    "examples/django_shop/*": "Django",
    "examples/tutorial_django/*": "Django",
    "kiqcluster/application/registry.py": "asyncio",
    "kiqcluster/contrib/celery/*": "Celery",
    "kiqcluster/contrib/django/*": "Django",
    "kiqcluster/contrib/sentry.py": "Django, and operations of spans",
    "kiqcluster/contrib/__init__.py": "Django",
    "kiqcluster/ctl/jobs/*": "BulkTask: one change of many jobs",
    "kiqcluster/features/history.py": "Django",
    "kiqcluster/testing/server.py": "threads in /proc",
    "kiqcluster/words.py": "words that people know from elsewhere",
    "kiqcluster/worker/run/async_processor.py": "asyncio",
    "kiqcluster/worker/run/execution.py": "asyncio",
}
PART = re.compile(r"\| \*\*`([\w/]+)`\*\*")  # the folder of a row of ARCHITECTURE.md, and of those below it


def found() -> Iterator[tuple[str, str]]:
    """Yield where the word is, and each line: a path; within ARCHITECTURE.md the folder that its row is about."""
    listed = subprocess.run(["git", "ls-files", *READ], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in listed.splitlines():
        if NOT_READ.fullmatch(path) is not None:
            continue
        place = path
        for line in (ROOT / path).read_text().splitlines():
            if path == "ARCHITECTURE.md" and (part := PART.match(line)) is not None:
                place = f"kiqcluster/{part[1]}"
            if FORMER.search(ELSEWHERE.sub("", line)):
                yield place, f"{path}: {line.strip()}"


def test_a_group_of_jobs_is_called_a_batch() -> None:
    lines = list(found())

    assert [line for place, line in lines if not any(fnmatch(place, each) for each in PLACES)] == []
    assert [
        each for each in PLACES if not any(fnmatch(place, each) for place, _ in lines)
    ] == []  # that need no mention
