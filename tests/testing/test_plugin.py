"""The plugin: found by pytest itself, and nothing of one test is left for the next."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

from tests import forkserver

pytest_plugins = ["pytester"]

HEAD = """
import os
import pytest
from kiqcluster import Client, job
from kiqcluster.process.clock import SystemClock
from kiqcluster.errors import UsageError
from kiqcluster.application.registry import current_registry
from kiqcluster.process.runtime import current_setup
from kiqcluster.testing import assert_enqueued, drain, enqueued, performed, refute_enqueued
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run the tests in a text as a suite of their own; returns its result."""
    for variable in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)

    def run(source: str, *arguments: str, ini: str = "") -> pytest.RunResult:
        pytester.makeini(f"[pytest]\nfilterwarnings = error\n{ini}")
        pytester.makepyfile(HEAD + dedent(source))
        without = [
            word for name in ("cacheprovider", "hypothesispytest", "timeout", "anyio") for word in ("-p", f"no:{name}")
        ]
        words = [sys.executable, "-m", "pytest", *without, f"--basetemp={pytester.path}/base", "--strict-markers"]
        done = forkserver.run([*words, *arguments], cwd=pytester.path, timeout=60)
        print(done.stdout, done.stderr, sep="\n")
        return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)

    return run


class TestModes:
    def test_fixtures_and_markers_put_a_test_in_a_mode(self, run) -> None:
        result = run("""
            ran = []

            @job
            def note(value): ran.append(value)

            @pytest.fixture(autouse=True)
            def forget(): ran.clear()

            def test_fixture_fake(kiq_fake):
                note.perform_async(1)
                kiq_fake.assert_enqueued(note, 1)
                assert kiq_fake.drain() == 1 and ran == [1]

            def test_fixture_inline(kiq_inline):
                note.perform_async(2)
                assert ran == [2] and [run.args for run in kiq_inline.performed()] == [[2]]

            @pytest.mark.kiq("fake")
            def test_marker_fake():
                note.perform_async(3)
                assert_enqueued(note, 3)

            @pytest.mark.kiq("inline")
            class TestMarkerInline:
                def test_one(self):
                    note.perform_async(4)
                    assert ran == [4]

                @pytest.mark.kiq("fake")
                def test_the_nearest_one_wins(self):
                    note.perform_async(5)
                    assert ran == []

            def test_none():
                with pytest.raises(UsageError):
                    enqueued()
        """)

        result.assert_outcomes(passed=6)

    def test_a_suite_has_a_mode_that_its_tests_may_leave(self, run) -> None:
        result = run(
            """
            import unittest

            @job
            def note(value): ...

            def test_of_the_suite():
                note.perform_async(1)
                assert_enqueued(note, 1)

            class TestOldStyle(unittest.TestCase):
                def test_of_the_suite_too(self):
                    note.perform_async(1)
                    assert_enqueued(note, 1)

            @pytest.mark.kiq("real")
            def test_real():
                assert current_setup().delivery is None

            def test_redis(kiq_store):
                note.perform_async(1)
                assert kiq_store.call("LLEN", "queue:default") == 1

            def test_inline_on_top(kiq_inline):
                note.perform_async(1)
                assert len(performed(note)) == 1
            """,
            ini="kiq_mode = fake",
        )

        result.assert_outcomes(passed=5)

    def test_what_is_around_the_tests_of_a_suite_is_in_its_mode_too(self, run) -> None:
        result = run(
            """
            import unittest
            current_setup().settings["redis"] = "redis://127.0.0.1:1/0"  # nobody is there

            @job
            def note(value): ...

            @pytest.fixture(scope="session", autouse=True)
            def seeds():
                note.perform_async(1)
                yield
                note.perform_async(2)

            class TestOldStyle(unittest.TestCase):
                @classmethod
                def setUpClass(cls):
                    note.perform_async(3)

                @classmethod
                def tearDownClass(cls):
                    note.perform_async(4)

                def test_has_its_own_jobs(self):
                    assert enqueued() == []

            def test_redis(kiq_store):
                note.perform_async(5)
                assert kiq_store.call("LLEN", "queue:default") == 1
            """,
            ini="kiq_mode = fake",
        )

        result.assert_outcomes(passed=2)

    def test_a_mode_of_a_wider_fixture_stays_where_the_suite_says_nothing(self, run) -> None:
        result = run("""
            from kiqcluster.testing import fake

            @pytest.fixture(scope="session", autouse=True)
            def all_fake():
                with fake():
                    yield

            @job
            def note(value): ...

            def test_it():
                note.perform_async(1)
                assert_enqueued(note, 1)

            def test_redis(kiq_store):
                note.perform_async(2)
                assert kiq_store.call("LLEN", "queue:default") == 1
        """)

        result.assert_outcomes(passed=2)

    @pytest.mark.parametrize(
        ("marker", "ini", "words"),
        [
            ("", "kiq_mode = fakes", "kiq_mode = 'fakes' is no mode; the modes are refuse, fake, inline, real"),
            ("@pytest.mark.kiq('Inline')", "", "'Inline' is no mode"),
            ("@pytest.mark.kiq", "", "is no mode"),
        ],
    )
    def test_a_mode_that_there_is_not_is_refused(self, run, marker: str, ini: str, words: str) -> None:
        result = run(f"{marker}\ndef test_it(): ...", ini=ini)

        assert result.ret != 0
        assert words in result.stdout.str() + result.stderr.str()


class TestNothingIsLeft:
    def test_jobs_modes_and_clocks_end_with_their_test_even_a_failing_one(self, run) -> None:
        result = run("""
            from kiqcluster.testing import fake

            class TestNames:
                def test_fails(self, kiq_fake, kiq_clock):
                    @job
                    def welcome(): ...
                    welcome.perform_async()
                    kiq_clock.move(1_000)
                    1 / 0

                def test_is_new(self, kiq_fake):
                    @job
                    def welcome(): ...
                    assert enqueued() == []

            def test_leaves_a_block_open():
                fake().__enter__()

            def test_is_not_in_it():
                assert type(current_setup().delivery).__name__ == "Refusal"
                assert current_registry().get("welcome") is None
                assert SystemClock.now.__module__ == "kiqcluster.process.clock"
        """)

        result.assert_outcomes(passed=3, failed=1)

    def test_what_a_test_adds_to_the_set_up_ends_with_it(self, run) -> None:
        result = run("""
            import kiqcluster

            def test_adds(kiq_setup, kiq_fake):
                kiqcluster.client_middleware.add(lambda push, proceed: None)
                kiqcluster.configure(max_retries=1)
                assert Client().push({"class": "X", "args": []}) is None

            def test_does_not_see_it(kiq_fake):
                Client().push({"class": "X", "args": []})
                assert_enqueued("X")
                assert current_setup().current_config().max_retries == 25
        """)

        result.assert_outcomes(passed=2)

    def test_databases_are_empty_for_each_test_and_one_server_serves_the_run(self, run) -> None:
        result = run("""
            ports = set()

            @job(queue="mailers")
            def welcome(): ...

            @pytest.mark.parametrize("number", [1, 2])
            def test_it(kiq_redis, kiq_store, number):
                ports.add(kiq_redis.port)
                assert kiq_store.call("DBSIZE") == 0
                welcome.perform_async()
                assert kiq_redis.store().call("LLEN", "queue:mailers") == 1
                assert len(ports) == 1

            def test_the_store_of_the_application_is_back():
                assert current_setup().store is None
        """)

        result.assert_outcomes(passed=3)

    def test_processes_of_xdist_have_servers_of_their_own(self, run) -> None:
        result = run(
            """
            @pytest.mark.parametrize("number", range(6))
            def test_it(kiq_store, number):
                for _ in range(200):
                    kiq_store.call("INCR", "count")
                assert kiq_store.call("GET", "count") == b"200"
            """,
            *("-n", "2"),
        )

        result.assert_outcomes(passed=6)


class TestFailures:
    def test_they_point_at_the_test_and_not_at_the_kit(self, run) -> None:
        result = run("""
            def test_it(kiq_fake):
                assert_enqueued("Welcome", 7, queue="mailers")
        """)

        output = result.stdout.str()
        assert "AssertionError: no job Welcome(7) was enqueued on mailers; nothing was" in output
        assert "memory.py" not in output

    def test_a_cluster_that_does_not_start_shows_its_log(self, run) -> None:
        result = run("""
            def test_it(kiq_cluster):
                kiq_cluster("default", require="no_such_module")
        """)

        output = result.stdout.str()
        assert "waited in vain for event" in output
        assert "No module named 'no_such_module'" in output


def test_its_fixtures_are_listed_with_what_they_do(run) -> None:
    output = run("", "--fixtures").stdout.str()

    for fixture in ("kiq_fake", "kiq_inline", "kiq_clock", "kiq_setup", "kiq_server", "kiq_redis", "kiq_store"):
        assert fixture in output
    assert "no docstring available" not in output


def test_the_kit_is_to_be_had_without_pytest() -> None:
    code = dedent("""
        import sys
        sys.modules["pytest"] = None  # importing it fails
        from kiqcluster import job
        from kiqcluster.testing import assert_enqueued, fake, drain

        @job
        def welcome(user_id): print("welcome", user_id)

        with fake():
            welcome.perform_async(7)
            assert_enqueued(welcome, 7)
            drain()
        try:
            with fake():
                assert_enqueued(welcome)
        except AssertionError as error:
            print(error)
    """)

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout == "welcome 7\nno job welcome was enqueued; nothing was\n", done.stderr


class TestRefusal:
    """A test that says nothing pushes nowhere."""

    def test_a_push_of_a_test_without_a_mode_is_refused_and_the_fixtures_are_named(self, run) -> None:
        result = run("""
            @job
            def note(value): ...

            @pytest.fixture(scope="module")
            def pushed_by_a_fixture():
                with pytest.raises(UsageError):
                    note.perform_async(0)

            @pytest.mark.usefixtures("pushed_by_a_fixture")
            def test_verbs():
                for push in (note.perform_async, lambda value: note.perform_bulk([[value]])):
                    with pytest.raises(UsageError, match="kiq_fake or kiq_inline.*kiq_mode = real"):
                        push(1)
                assert note.perform_bulk([]) == []

            def test_with_a_mode(kiq_fake):
                note.perform_async(2)

            def test_without_again():
                with pytest.raises(UsageError):
                    note.perform_async(3)

            def test_a_store_that_is_named_gets_its_jobs(kiq_redis):
                store = kiq_redis.store()
                with pytest.raises(UsageError):
                    note.perform_async(4)
                with Client.via(store):
                    note.perform_async(5)
                Client(store).push({"class": note, "args": [6]})
                assert store.call("LLEN", "queue:default") == 2
        """)

        result.assert_outcomes(passed=4)

    def test_so_is_one_of_an_application_that_a_test_imports(self, run, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(application="from kiqcluster import job\n@job\ndef note(value): ...\n")
        pytester.makepyfile(
            test_late="""
            import sys
            import pytest

            def test_it():
                assert "kiqcluster" not in sys.modules
                from application import note

                with pytest.raises(Exception, match="kiq_fake or kiq_inline"):
                    note.perform_async(1)

            def test_the_next():
                from application import note

                with pytest.raises(Exception, match="kiq_fake or kiq_inline"):
                    note.perform_async(1)
            """
        )

        result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error", "test_late.py", timeout=60)

        result.assert_outcomes(passed=2)

    def test_a_suite_may_send_to_the_redis_of_its_configuration(self, run, redis_server, monkeypatch) -> None:
        monkeypatch.setenv("REDIS_URL", redis_server.url)
        source = """
            @job
            def note(value): ...

            def test_it():
                assert note.perform_async(1)

            @pytest.mark.kiq("refuse")
            def test_the_marker():
                with pytest.raises(UsageError):
                    note.perform_async(1)
        """

        run(source, ini="kiq_mode = real").assert_outcomes(passed=2)


def test_a_run_that_has_nothing_to_do_with_jobs_does_not_import_the_package(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import sys

        def test_one(): ...

        def test_two():
            assert [name for name in sys.modules if name.partition(".")[0] in ("kiqcluster", "redis", "msgspec")] == []
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=60)

    result.assert_outcomes(passed=2)


def test_a_fixture_may_be_the_first_to_import_an_installed_package(pytester: pytest.Pytester) -> None:
    """pytest rewrites the assertions of a distribution with a plugin, by one loader for all of its modules."""
    pytester.makeconftest("import pytest; pytest.register_assert_rewrite('kiqcluster')")
    pytester.makepyfile(
        test_it="""
        def test_fake(kiq_fake):
            assert kiq_fake.enqueued() == []
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=60)

    result.assert_outcomes(passed=1)


class TestWithoutNetwork:
    """`pytest --disable-socket --allow-unix-socket`, of pytest-socket."""

    def test_a_store_asks_for_no_port(self, run) -> None:
        result = run("""
            import socket

            class UnixOnly(socket.socket):
                def __init__(self, family=socket.AF_INET, *rest, **others):
                    assert family in (-1, socket.AF_UNIX), "this suite forbids TCP"
                    super().__init__(family, *rest, **others)

            socket.socket = UnixOnly

            @job
            def note(value): ...

            def test_push(kiq_store):
                note.perform_async(1)
                assert kiq_store.call("LLEN", "queue:default") == 1

            def test_another(kiq_redis):
                kiq_redis.store().call("SET", "a", "b")
        """)

        result.assert_outcomes(passed=2)
