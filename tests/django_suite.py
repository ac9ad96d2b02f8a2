"""Django's own tests of its task backends, run against ours: python -m tests.django_suite FOLDER

FOLDER has Django's tests (the folder `tests` of its source).  They are written for Django's two backends: one that
keeps tasks, and one that runs them at once.  Here stand two in their place that are ours on a real Redis: one enqueues,
the other one has a worker in this process run each task that it has enqueued.  SKIPPED says which cannot hold, and why.
Prints each skipped test with its reason; exits with 1 if a test fails, or a skipped one does not exist.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import django
from django.conf import settings

from kiqcluster.application.registry import current_registry
from kiqcluster.process.runtime import current_setup
from kiqcluster.testing import RedisServer, real
from tests.in_process_worker import Worker

PRIORITIES = {"priority_queues": {(-100, 100): "{queue}"}}
DUMMY, IMMEDIATE, TASKS = "tasks.test_dummy_backend", "tasks.test_immediate_backend", "tasks.test_tasks"
OF_OTHERS = "it asks for the class of Django's backend"
MEMORY = "it changes what Django's backend keeps in memory"
CAN = "ours can do what it says a backend cannot"
IN_PLACE_OF = {
    "django.tasks.backends.dummy.DummyBackend": "Keeps",
    "django.tasks.backends.immediate.ImmediateBackend": "Runs",
}
SKIPPED = {
    "Dummy.test_using_correct_backend": OF_OTHERS,
    "Dummy.test_refresh_result": MEMORY,
    "Dummy.test_refresh_result_async": MEMORY,
    "Immediate.test_using_correct_backend": OF_OTHERS,
    "Immediate.test_cannot_get_result": CAN,
    "Immediate.test_cannot_refresh_result": CAN,
    "Immediate.test_cannot_pass_run_after": CAN,
    "Immediate.test_throws_keyboard_interrupt": "a worker is not interrupted by an error of a job",
    "Tasks.test_using_correct_backend": OF_OTHERS,
    "Tasks.test_get_backend": OF_OTHERS,
}


def backends() -> tuple[type, type]:
    """Return the two classes; Django has to be configured."""
    from kiqcluster.contrib.django import TaskBackend

    class Ours(TaskBackend):
        """One that has priorities, whatever the settings say, and has been used."""

        used: set[str] = set()

        def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
            super().__init__(alias, {**params, "OPTIONS": PRIORITIES})
            self.used.add(type(self).__name__)

    class Keeps(Ours):
        """Has what Django's tests ask of the one that keeps tasks."""

        ids: list[str] = []

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            self.ids.append(result.id)
            return result

        async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = await super().aenqueue(task, args, kwargs)
            self.ids.append(result.id)
            return result

        @property
        def results(self) -> list[Any]:
            return [self.get_result(each) for each in self.ids]

        def clear(self) -> None:
            self.ids.clear()
            current_setup().current_store().call("FLUSHDB")

    class Runs(Ours):
        """Runs each task that it has enqueued."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            setup = current_setup()
            store = setup.current_store()
            store.call("FLUSHDB")  # tasks of other tests, which nobody runs
            result = super().enqueue(task, args, kwargs)
            for queue in store.call("SMEMBERS", "queues"):
                if store.call("LLEN", b"queue:" + queue):
                    Worker(store, setup, current_registry()).run(queue.decode())
            result.refresh()
            return result

        async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            from asgiref.sync import sync_to_async

            return await sync_to_async(self.enqueue, thread_sensitive=False)(task, args, kwargs)

    return Keeps, Runs


def configure(url: str) -> None:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["kiqcluster.contrib.django"],
        KIQCLUSTER={"redis": url},
        SECRET_KEY="of a test",
        TASKS={"default": {"BACKEND": "kiqcluster.contrib.django.TaskBackend", "QUEUES": [], "OPTIONS": PRIORITIES}},
        USE_TZ=True,
    )
    django.setup()


def loaded(name: str, folder: str) -> ModuleType:
    """Return a module of Django's tests, in whose settings our backends stand in the place of Django's."""
    path = Path(folder, *name.split(".")).with_suffix(".py")
    text = path.read_text()
    for theirs, ours in IN_PLACE_OF.items():
        text = text.replace(f'"{theirs}"', f'"{__name__}.{ours}"')
    module = ModuleType(name)
    module.__package__, module.__file__ = name.rpartition(".")[0], str(path)
    importlib.import_module(module.__package__)
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def cases(folder: str) -> list[type[unittest.TestCase]]:
    """Return Django's test cases, by the names that SKIPPED has."""
    module = sys.modules[__name__]
    module.Keeps, module.Runs = backends()  # type: ignore[attr-defined]
    return [
        type(name, (getattr(loaded(place, folder), case),), {"__module__": __name__})
        for name, place, case in (
            ("Dummy", DUMMY, "DummyBackendTestCase"),
            ("DummyTransactions", DUMMY, "DummyBackendTransactionTestCase"),
            ("Immediate", IMMEDIATE, "ImmediateBackendTestCase"),
            ("ImmediateTransactions", IMMEDIATE, "ImmediateBackendTransactionTestCase"),
            ("Tasks", TASKS, "TaskTestCase"),
        )
    ]


def main(folder: str) -> int:
    sys.path.insert(0, folder)
    with RedisServer() as server:
        configure(server.url)
        suite, unknown = unittest.TestSuite(), dict(SKIPPED)
        for case in cases(folder):
            for name in unittest.defaultTestLoader.getTestCaseNames(case):
                reason = unknown.pop(f"{case.__name__}.{name}", None)
                if reason is None:
                    suite.addTest(case(name))
                else:
                    print(f"skipped: {case.__name__}.{name}: {reason}")
        with real():
            result = unittest.TextTestRunner(verbosity=1).run(suite)
        assert sys.modules[__name__].Keeps.used == {"Keeps", "Runs"}, "Django's settings name other backends by now"
    for name in unknown:
        print(f"{name} is to be skipped, and is not there")
    return 0 if result.wasSuccessful() and not unknown else 1


if __name__ == "__main__":
    sys.modules["tests.django_suite"] = sys.modules["__main__"]
    raise SystemExit(main(sys.argv[1]))
