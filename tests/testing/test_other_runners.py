"""Runners that know nothing of kiqcluster: unittest, and Django's.  A push without a mode reaches no Redis there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from kiqcluster.store import Store
from tests import forkserver
from tests.kit import ROOT, RedisServer, require_module

UNITTEST = """
    import threading, unittest
    from kiqcluster import job
    from kiqcluster.errors import UsageError
    from kiqcluster.testing import assert_enqueued, drain, fake, inline, performed, real

    @job
    def note(n: int) -> None: ...

    class TestUnittest(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            with cls.assertRaises(cls(), UsageError): note.perform_async(1)

        def test_a_push_without_a_mode(self):
            with self.assertRaises(UsageError) as caught: note.perform_async(1)
            self.assertIn("kiqcluster.testing.fake()", str(caught.exception))

        def test_in_a_thread(self):
            refused = []
            def push():
                try: note.perform_async(1)
                except UsageError as error: refused.append(error)
            thread = threading.Thread(target=push)
            thread.start(); thread.join()
            self.assertEqual(len(refused), 1)

        def test_modes(self):
            with fake():
                note.perform_async(2)
                assert_enqueued(note, 2)
                self.assertEqual(drain(), 1)
            with inline():
                note.perform_async(3)
                self.assertEqual(len(performed(note)), 1)
            with self.assertRaises(UsageError): note.perform_async(4)

    class TestAsync(unittest.IsolatedAsyncioTestCase):
        async def test_a_push_without_a_mode(self):
            with self.assertRaises(UsageError): await note.aenqueue(1)
"""
REAL = """
    import unittest
    from kiqcluster import job
    from kiqcluster.testing import real

    @job
    def note(n: int) -> None: ...

    class TestReal(unittest.TestCase):
        def test_the_application_s_redis(self):
            with real(): note.perform_async(1)
"""
PUSHES_BEFORE = """
    import unittest
    from kiqcluster import job
    from kiqcluster.errors import UsageError
    from kiqcluster.testing import fake

    @job
    def note(n: int) -> None: ...

    with fake(): note.perform_async(0)
    note.perform_async(0)

    class TestLater(unittest.TestCase):
        def test_a_push_without_a_mode(self):
            with self.assertRaises(UsageError): note.perform_async(1)

    unittest.main()
"""
APPS = """
    from django.apps import AppConfig
    from django.db.models.signals import post_migrate
    from kiqcluster import job
    from kiqcluster.errors import UsageError
    from kiqcluster.process.runtime import current_setup

    @job
    def fill(n: int) -> None: ...

    def push(**_):
        try: fill.perform_async(1)
        except UsageError: pass

    class Shop(AppConfig):
        name = "shop"

        def ready(self):
            post_migrate.connect(push, sender=self)
            assert current_setup().delivery is None, "no test runs yet"
"""
DJANGO = """
    from django.test import LiveServerTestCase, TestCase, TransactionTestCase
    from urllib.request import urlopen
    from kiqcluster import job
    from kiqcluster.contrib.django import enqueue_on_commit
    from kiqcluster.errors import UsageError
    from kiqcluster.testing import fake, refute_enqueued, assert_enqueued

    @job
    def note(n: int) -> None: ...

    class TestOne(TestCase):
        @classmethod
        def setUpTestData(cls):
            try: note.perform_async(1)
            except UsageError: cls.is_refused = True

        def test_a_push_without_a_mode(self):
            self.assertTrue(self.is_refused)
            with self.assertRaises(UsageError): note.perform_async(1)

        def test_a_commit(self):
            with fake():
                with self.captureOnCommitCallbacks(execute=True): enqueue_on_commit(note, 1)
                assert_enqueued(note, 1)

    class TestTwo(TransactionTestCase):
        def test_a_push_without_a_mode(self):
            with self.assertRaises(UsageError): note.perform_async(1)

    class TestLive(LiveServerTestCase):
        def test_a_view(self):
            self.assertEqual(urlopen(self.live_server_url).read(), b"refused")
"""
SETTINGS = """
    SECRET_KEY = "x"
    INSTALLED_APPS = ["django.contrib.contenttypes", "kiqcluster.contrib.django", "shop"]
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3"}}
    ROOT_URLCONF = "shop.urls"
    STATIC_URL = "/static/"
"""
URLS = """
    from django.http import HttpResponse
    from django.urls import path
    from kiqcluster.errors import UsageError

    def view(request):
        from shop.tests import note
        try: note.perform_async(1)
        except UsageError: return HttpResponse("refused")
        return HttpResponse("pushed")

    urlpatterns = [path("", view)]
"""


def write(folder: Path, **sources: str) -> None:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(dedent(source))


def run(folder: Path, server: RedisServer, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{ROOT}", "REDIS_URL": server.url}
    done = forkserver.run([sys.executable, *words], cwd=folder, env=environ)
    print(done.stdout, done.stderr)
    return done


def test_unittest_refuses_a_push_without_a_mode(tmp_path: Path, store: Store, redis_server: RedisServer) -> None:
    write(tmp_path, test_shop=UNITTEST)

    assert run(tmp_path, redis_server, "-m", "unittest", "test_shop").returncode == 0
    assert store.call("DBSIZE") == 0


def test_unittest_sends_jobs_where_a_test_says_so(tmp_path: Path, store: Store, redis_server: RedisServer) -> None:
    write(tmp_path, test_shop=REAL)

    assert run(tmp_path, redis_server, "-m", "unittest", "test_shop").returncode == 0
    assert store.call("LLEN", "queue:default") == 1


def test_a_push_before_the_tests_does_not_send_theirs(tmp_path: Path, store: Store, redis_server: RedisServer) -> None:
    write(tmp_path, shop=PUSHES_BEFORE)

    assert run(tmp_path, redis_server, "shop.py").returncode == 0
    assert store.call("LLEN", "queue:default") == 1  # that of the program itself


@pytest.mark.parametrize("options", [(), ("--parallel", "2")], ids=["one process", "parallel"])
def test_django_s_runner_refuses_a_push_without_a_mode(
    tmp_path: Path, store: Store, redis_server: RedisServer, options: tuple[str, ...]
) -> None:
    require_module("django")
    (tmp_path / "shop").mkdir()
    write(tmp_path, project_settings=SETTINGS)
    write(tmp_path / "shop", __init__="", apps=APPS, tests=DJANGO, urls=URLS)
    words = ("-m", "django", "test", "--settings=project_settings", *options, "shop")

    assert run(tmp_path, redis_server, *words).returncode == 0
    assert store.call("DBSIZE") == 0


def test_a_program_that_has_merely_imported_unittest_sends_its_jobs(
    tmp_path: Path, store: Store, redis_server: RedisServer
) -> None:
    write(tmp_path, shop="from kiqcluster import job\n@job\ndef note(n: int) -> None: ...")
    patch = "with unittest.mock.patch('shop.x', 1, create=True): shop.note.perform_async(1)"
    program = f"import unittest, unittest.mock, shop\n{patch}"

    assert run(tmp_path, redis_server, "-c", program).returncode == 0
    assert store.call("LLEN", "queue:default") == 1
