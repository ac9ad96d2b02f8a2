"""Flask: jobs in an application context, the context of requests, settings, and what `flask kiqcluster` runs."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.contrib import flask as integration
from kiqcluster.contrib.flask import InAppContext, KiqCluster, requirement
from kiqcluster.errors import Interrupted, UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import drain, enqueued, fake

pytestmark = pytest.mark.usefixtures("setup")


@pytest.fixture
def noted() -> list[Any]:
    """What jobs and teardown functions of a test have seen."""
    return []


@pytest.fixture
def app(setup: Setup, noted: list[Any]) -> Flask:
    return make_app("shop", noted)


@pytest.fixture(autouse=True)
def in_memory(setup: Setup) -> Iterator[None]:
    with fake():
        yield


def make_app(name: str, noted: list[Any], **options: Any) -> Flask:
    app = Flask(name)
    app.config["TESTING"] = True
    KiqCluster(app, **options)

    @app.teardown_appcontext
    def tear_down(error: BaseException | None) -> None:
        noted.append((name, "ended", type(error).__name__, g.pop("session", None)))

    return app


class TestRuns:
    def test_a_job_runs_in_a_context_that_ends_with_it(self, app: Flask, registry: Registry, noted: list[Any]) -> None:
        @job(name="use")
        def use() -> None:
            g.session = "open"
            noted.append(current_app.name)

        use.perform_async()
        drain()

        assert noted == ["shop", ("shop", "ended", "NoneType", "open")]
        assert not current_app

    def test_so_does_an_async_job(self, app: Flask, registry: Registry, noted: list[Any]) -> None:
        @job(name="use")
        async def use() -> None:
            noted.append(current_app.name)

        use.perform_async()
        drain()

        assert noted == ["shop", ("shop", "ended", "NoneType", None)]

    @pytest.mark.parametrize("error", [ZeroDivisionError, Interrupted])
    def test_teardown_functions_are_told_of_an_error(
        self, app: Flask, registry: Registry, noted: list[Any], error: type[BaseException]
    ) -> None:
        @job(name="broken")
        def broken() -> None:
            raise error

        with pytest.raises(error):
            broken.perform_inline()

        assert noted == [("shop", "ended", error.__name__, None)]

    @pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
    def test_a_teardown_function_that_fails_fails_no_job(
        self, app: Flask, registry: Registry, setup: Setup, noted: list[Any], kind: type[BaseException]
    ) -> None:
        setup.error_handler(lambda error, context: noted.append(context["context"]))

        @app.teardown_appcontext
        def fail(_error: BaseException | None) -> None:
            raise kind

        @job(name="fine")
        def fine() -> str:
            return "done"

        @job(name="fine_async")
        async def fine_async() -> str:
            return "done"

        @job(name="broken")
        def broken() -> None:
            raise ZeroDivisionError

        assert (fine.perform_inline(), fine_async.perform_inline()) == ("done", "done")
        with pytest.raises(ZeroDivisionError):
            broken.perform_inline()

        assert noted == ["flask"] * 3
        assert not current_app

    def test_a_job_inside_of_a_request_has_a_context_of_its_own(
        self, app: Flask, registry: Registry, noted: list[Any]
    ) -> None:
        @job(name="use")
        def use() -> None:
            noted.append(g.get("session"))

        with app.app_context():
            g.session = "the caller's"
            use.perform_inline()
            assert g.session == "the caller's"

        assert noted[0] is None

    def test_the_latest_application_has_the_jobs_unless_another_is_current(
        self, app: Flask, registry: Registry, setup: Setup, noted: list[Any]
    ) -> None:
        @job(name="use")
        def use() -> None:
            noted.append(current_app.name)

        make_app("second", noted)
        use.perform_inline()
        with app.app_context():
            use.perform_inline()

        assert [each for each in noted if isinstance(each, str)] == ["second", "shop"]
        assert [type(each) for each in setup.server_middleware] == [InAppContext]


class TestRequests:
    @pytest.fixture
    def use(self, registry: Registry) -> Any:
        @job(name="use")
        def use() -> None: ...

        return use

    def payload(self, app: Flask, use: Any, **headers: str) -> dict[str, Any]:
        app.add_url_rule("/orders/<int:number>", "orders", lambda number: str(use.perform_async()))
        app.test_client().get("/orders/7", headers={name.replace("_", "-"): text for name, text in headers.items()})
        (waiting,) = enqueued()
        return dict(waiting.payload)

    def test_jobs_name_the_request_that_enqueued_them(self, app: Flask, use: Any) -> None:
        payload = self.payload(app, use, X_Request_ID="r-1")

        assert (payload["correlation_id"], payload["meta.caller_id"]) == ("r-1", "GET orders")
        use.perform_async()
        assert "correlation_id" not in enqueued()[-1].payload  # it ended with the request

    def test_a_request_without_an_id_gets_one(self, app: Flask, use: Any) -> None:
        assert len(self.payload(app, use)["correlation_id"]) == 32

    def test_it_may_be_left_out(self, setup: Setup, use: Any) -> None:
        assert "correlation_id" not in self.payload(make_app("plain", [], request_context=False), use)

    def test_an_error_of_the_view_ends_it_too(self, app: Flask, use: Any) -> None:
        app.add_url_rule("/broken", "broken", lambda: 1 / 0)

        with pytest.raises(ZeroDivisionError):
            app.test_client().get("/broken")

        use.perform_async()
        assert "correlation_id" not in enqueued()[-1].payload


class TestSettings:
    def test_those_of_the_application_are_in_force(self, setup: Setup) -> None:
        app = Flask("shop")
        app.config.update(KIQCLUSTER_MAX_RETRIES=3, KIQCLUSTER_REDIS="redis://redis.example/2", OTHER=1)

        KiqCluster().init_app(app)

        assert setup.settings == {"max_retries": 3, "redis": "redis://redis.example/2"}

    def test_an_unknown_one_is_refused(self, setup: Setup) -> None:
        app = Flask("shop")
        app.config["KIQCLUSTER_MAX_RETRYS"] = 3

        with pytest.raises(UsageError, match="max_retrys"):
            KiqCluster(app)


class TestCommands:
    @pytest.fixture(autouse=True)
    def path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Undo what Flask adds to the places of modules."""
        monkeypatch.setattr(sys, "path", list(sys.path))

    @pytest.fixture
    def became(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """The commands that would have replaced this process."""
        commands: list[list[str]] = []
        monkeypatch.setattr(integration.os, "execv", lambda _path, words: commands.append(words[1:]))  # type: ignore[attr-defined]
        return commands

    @pytest.mark.parametrize(
        ("path", "names", "expected"),
        [
            ("shop_x", {"app": Flask("x")}, "shop_x"),
            ("shop_x:app", {"app": Flask("x")}, "shop_x"),
            ("shop_x", {"create_app": make_app}, "shop_x:create_app"),
            ("shop_x", {"create_app": make_app, "current_app": current_app}, "shop_x:create_app"),
            ("shop_x", {"make_app": make_app}, "shop_x:make_app"),
            ("shop_x:build", {"build": make_app}, "shop_x:build"),
            ("./shop_x.py", {"create_app": make_app}, "shop_x:create_app"),
            ("src/shop_x", {"create_app": make_app}, "shop_x:create_app"),
            ("/srv/shop/shop_x.py", {"create_app": make_app}, "shop_x:create_app"),
            ("/srv/shop/shop_x.py:build()", {"build": make_app}, "shop_x:build"),
        ],
    )
    def test_workers_import_what_flask_has_found(
        self, monkeypatch: pytest.MonkeyPatch, path: str, names: dict[str, Any], expected: str
    ) -> None:
        module = types.ModuleType("shop_x")
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, "shop_x", module)

        with Flask("loaded").app_context():  # in which Flask runs its commands
            assert requirement(path) == expected

    @pytest.mark.parametrize(
        ("folder", "here", "expected"),
        [
            ("project", "project", None),
            ("project", "current", None),
            ("project/src", "project", "project/src"),
            ("project/src", "current", "current/src"),
            ("elsewhere", "current", "elsewhere"),
        ],
    )
    def test_workers_search_the_folder_where_flask_has_found_it(
        self, tmp_path: Path, folder: str, here: str, expected: str | None
    ) -> None:
        (tmp_path / "project/src/shop_x").mkdir(parents=True)
        (tmp_path / "project/shop_x").mkdir()  # a folder without __init__.py hides no module
        (tmp_path / "current").symlink_to(tmp_path / "project")

        found = integration._folder_to_add("shop_x", tmp_path / folder, tmp_path / here)

        assert found == (None if expected is None else tmp_path / expected)

    def test_another_module_in_the_working_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "shop_x.py").touch()

        with pytest.raises(UsageError, match="name another module: -r MODULE:FUNCTION"):
            integration._folder_to_add("shop_x", tmp_path / "src", tmp_path)

    def test_an_application_of_a_function_has_no_name(self, app: Flask, became: list[list[str]]) -> None:
        done = app.test_cli_runner().invoke(args=["kiqcluster", "default"])

        assert done.exit_code == 1
        assert "-r MODULE:FUNCTION" in done.output
        assert became == []

    def test_a_factory_with_arguments_is_refused(self) -> None:
        with pytest.raises(UsageError, match="write a function that needs none"):
            requirement("shop_x:create_app('test')")

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["kiqcluster", "default", "-c", "3"], ["-m", "kiqcluster", "-r", "shop_y", "default", "-c", "3"]),
            (["kiqcluster", "-r", "other", "default"], ["-m", "kiqcluster", "-r", "other", "default"]),
            (["kiqcluster", "--require=other"], ["-m", "kiqcluster", "--require=other"]),
            (["kiqcluster", "--help"], ["-m", "kiqcluster", "-r", "shop_y", "--help"]),
            (["kiqctl", "retries", "list", "--json"], ["-m", "kiqcluster.ctl", "retries", "list", "--json"]),
        ],
    )
    def test_a_command_replaces_its_process(
        self,
        app: Flask,
        monkeypatch: pytest.MonkeyPatch,
        became: list[list[str]],
        words: list[str],
        expected: list[str],
    ) -> None:
        module = types.ModuleType("shop_y")
        module.app = app  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "shop_y", module)
        monkeypatch.setenv("REDIS_URL", "")
        monkeypatch.delenv("REDIS_URL")
        app.config["KIQCLUSTER_REDIS"] = "redis://redis.example/2"
        info = integration.ScriptInfo(app_import_path="shop_y", create_app=lambda: app)

        done = app.test_cli_runner().invoke(args=words, obj=info)

        assert done.exit_code == 0, done.output
        assert became == [expected]
        assert integration.os.environ["REDIS_URL"] == "redis://redis.example/2"  # type: ignore[attr-defined]


def test_without_flask_it_names_the_extra() -> None:
    source = "import sys; sys.modules['flask'] = None; import kiqcluster.contrib.flask"

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)

    assert "pip install 'kiqcluster[flask]'" in done.stderr
