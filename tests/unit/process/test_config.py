"""Configuration: sources, their order, and what is refused."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

import pytest

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.config import (
    STOP_GRACE_SECONDS,
    CodeSettings,
    Config,
    Origins,
    describe,
    key_of,
    listen_error,
    parse_listen,
    settings,
    variable_of,
)
from kiqcluster.process.config_sources import load, load_part, missing_section, read_assignments, with_configured
from kiqcluster.process.runtime import Setup

Loader = Callable[..., tuple[Config, Origins]]


@pytest.fixture
def loaded(tmp_path: Path) -> Loader:
    """Load with the given sources and no others: `loaded(toml, flags=…, environ=…)`."""

    def load_from(
        toml: str = "", name: str = "kiqcluster.toml", environ: Mapping[str, str] | None = None, **sources: Any
    ) -> tuple[Config, Origins]:
        if toml:
            (tmp_path / name).write_text(toml)
        return load(sources.pop("flags", {}), environ=environ or {}, directory=tmp_path, **sources)

    return load_from


def refusal(loaded: Loader, *arguments: Any, **sources: Any) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(*arguments, **sources)
    assert caught.value.exit_code == ExitCode.USAGE
    return str(caught.value)


class TestSources:
    def test_without_any_every_setting_is_at_its_default(self, loaded: Loader) -> None:
        config, origins = loaded()

        assert config == Config()
        assert set(origins.values()) == {"default"}
        assert set(origins) == {each.name for each in settings()}

    def test_each_source_yields_to_the_one_before(self, loaded: Loader) -> None:
        sources: dict[str, Any] = {
            "flags": {"stop_timeout": 1.0},
            "environ": {"KIQ_STOP_TIMEOUT": "2"},
            "toml": "stop.timeout = 3",
            "configured": {"stop_timeout": 4},
        }

        seen = []
        for name in list(sources):
            config, origins = loaded(**sources)
            seen.append((config.stop_timeout, origins["stop_timeout"].split(" ")[0]))
            del sources[name]
            if name == "toml":
                sources["toml"] = "# nothing"

        assert seen == [(1.0, "flag"), (2.0, "environment"), (3.0, "file"), (4.0, "configure()")]

    def test_a_flag_that_was_not_given_hides_nothing_even_where_its_default_differs(self, loaded: Loader) -> None:
        config, origins = loaded("concurrency = 7\nstrict = true", flags={"stop_timeout": 30.0})

        assert (config.concurrency, config.strict, config.stop_timeout) == (7, True, 30.0)
        assert origins["concurrency"].startswith("file")

    def test_a_value_that_equals_the_default_still_wins_over_what_comes_after(self, loaded: Loader) -> None:
        config, origins = loaded("max_concurrency = 50", flags={"max_concurrency": Config.max_concurrency})

        assert (config.max_concurrency, origins["max_concurrency"]) == (Config.max_concurrency, "flag")

    def test_false_given_wins_over_true_from_a_file(self, loaded: Loader) -> None:
        assert loaded("strict = true", flags={"strict": False})[0].strict is False

    @pytest.mark.parametrize(
        ("environ", "name", "expected"),
        [
            ({"REDIS_URL": "redis://one/1"}, "redis", "redis://one/1"),
            ({"KIQ_REDIS": "redis://two/2", "REDIS_URL": "redis://one/1"}, "redis", "redis://two/2"),
            ({"KIQ_ENV": "staging"}, "environment", "staging"),
            ({"KIQ_CONCURRENCY": "5"}, "concurrency", 5),
            ({"KIQ_STRICT": "yes"}, "strict", True),
            ({"KIQ_STRICT": "Off"}, "strict", False),
            ({"KIQ_REQUIRE": "app.jobs other.py"}, "require", ("app.jobs", "other.py")),
            ({"KIQ_GROUPS": "cronjob:* default,mailers"}, "groups", ("cronjob:*", "default,mailers")),
            ({"KIQ_STOP_TIMEOUT": "2.5"}, "stop_timeout", 2.5),
        ],
    )
    def test_variables_are_named_after_the_settings(
        self, loaded: Loader, environ: dict[str, str], name: str, expected: object
    ) -> None:
        config, origins = loaded(environ=environ)

        assert getattr(config, name) == expected
        assert origins[name] == f"environment ({next(iter(environ))})"

    def test_an_empty_variable_is_an_unset_one(self, loaded: Loader) -> None:
        config, origins = loaded("stop.timeout = 3", environ={"KIQ_STOP_TIMEOUT": "", "REDIS_URL": ""})

        assert (config.stop_timeout, config.redis) == (3.0, Config.redis)
        assert origins["redis"] == "default"

    def test_variables_of_others_do_not_matter(self, loaded: Loader) -> None:
        others = {"KIQ_SLOT": "3", "KIQ_REQUIRE_ALL": "1", "KIQ_DASHBOARD_COLOUR": "red", "TIMEOUT": "9", "HOME": "/"}

        assert loaded(environ=others)[0] == Config()

    @pytest.mark.parametrize(
        ("variable", "meant"),
        [
            ("KIQ_CONCURENCY", "KIQ_CONCURRENCY"),
            ("KIQ_QUEUE", "KIQ_QUEUES"),
            ("KIQ_STOP_TIMEOUTS", "KIQ_STOP_TIMEOUT"),
            ("KIQ_REDDIS", "KIQ_REDIS"),
        ],
    )
    def test_a_variable_that_looks_like_a_slip_is_refused_with_what_was_meant(
        self, loaded: Loader, variable: str, meant: str
    ) -> None:
        assert f"did you mean {meant}?" in refusal(loaded, environ={variable: "1"})


class TestFiles:
    def test_pyproject_has_a_table_for_us(self, loaded: Loader) -> None:
        config, origins = loaded('[project]\nname = "x"\n[tool.kiqcluster]\nstop.timeout = 3\n', name="pyproject.toml")

        assert config.stop_timeout == 3.0
        assert "pyproject.toml" in origins["stop_timeout"]

    def test_pyproject_without_that_table_says_nothing(self, loaded: Loader) -> None:
        assert loaded('[tool.other]\nstop.timeout = 3\nodd = "x"\n', name="pyproject.toml")[0] == Config()

    def test_our_own_file_comes_first_and_alone(self, loaded: Loader) -> None:
        loaded("[tool.kiqcluster]\nstop.timeout = 3\nmax_retries = 3\n", name="pyproject.toml")

        config, _ = loaded("stop.timeout = 4")

        assert (config.stop_timeout, config.max_retries) == (4.0, Config.max_retries)

    def test_a_named_file_is_read_in_place_of_them(self, loaded: Loader, tmp_path: Path) -> None:
        other = tmp_path / "other.toml"
        other.write_text("stop.timeout = 9")

        assert loaded("stop.timeout = 4", file=str(other))[0].stop_timeout == 9.0

    def test_a_named_file_that_is_not_there_is_an_error(self, loaded: Loader, tmp_path: Path) -> None:
        assert "does not exist" in refusal(loaded, file=str(tmp_path / "none.toml"))

    def test_a_file_with_a_byte_order_mark_is_read(self, loaded: Loader, tmp_path: Path) -> None:
        (tmp_path / "kiqcluster.toml").write_bytes(b"\xef\xbb\xbfconcurrency = 7\n")
        config, _ = loaded()

        assert config.concurrency == 7

    @pytest.mark.parametrize("text", [b"timeout =", b"\xff\xfe", b"a = 1\na = 2"])
    def test_a_file_that_is_no_toml_is_named(self, loaded: Loader, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "kiqcluster.toml").write_bytes(text)

        assert "kiqcluster.toml is not valid TOML" in refusal(loaded)

    def test_the_section_of_the_environment_wins_over_the_common_part(self, loaded: Loader) -> None:
        toml = (
            "stop.timeout = 3\nmax_retries = 5\n[env.production]\nstop.timeout = 7\n[env.staging]\nstop.timeout = 8\n"
        )

        config, origins = loaded(toml, flags={"environment": "production"})

        assert (config.stop_timeout, config.max_retries) == (7.0, 5)
        assert "[env.production]" in origins["stop_timeout"]

    @pytest.mark.parametrize(
        "sources",
        [
            {"flags": {"environment": "staging"}, "environ": {"KIQ_ENV": "production"}},
            {"environ": {"KIQ_ENV": "staging"}, "configured": {"environment": "production"}},
            {"environ": {"KIQ_ENVIRONMENT": "staging", "KIQ_ENV": "production"}},
            {"configured": {"environment": "staging"}},
        ],
    )
    def test_the_section_is_that_of_the_environment_in_force(self, loaded: Loader, sources: dict[str, Any]) -> None:
        config, _ = loaded("[env.production]\nstop.timeout = 7\n[env.staging]\nstop.timeout = 8\n", **sources)

        assert (config.environment, config.stop_timeout) == ("staging", 8.0)

    def test_the_file_may_choose_its_section_itself(self, loaded: Loader) -> None:
        assert loaded('environment = "staging"\n[env.staging]\nstop.timeout = 8\n')[0].stop_timeout == 8.0

    def test_the_default_environment_has_its_section_too(self, loaded: Loader) -> None:
        config, _ = loaded(f"stop.timeout = 3\n[env.{Config.environment}]\nstop.timeout = 8\n")

        assert config.stop_timeout == 8.0

    def test_variables_win_over_a_section(self, loaded: Loader) -> None:
        config, _ = loaded(
            "[env.production]\nstop.timeout = 7\n", environ={"KIQ_ENV": "production", "KIQ_STOP_TIMEOUT": "2"}
        )

        assert config.stop_timeout == 2.0

    def test_a_section_of_another_environment_is_not_read(self, loaded: Loader) -> None:
        assert (
            loaded("[env.production]\nstop.timeout = 7\n", environ={"KIQ_ENV": "test"})[0].stop_timeout
            == Config.stop_timeout
        )

    @pytest.mark.parametrize(
        ("toml", "environ", "is_warned"),
        [
            ("[env.production]\n[env.staging]\n", {"KIQ_ENV": "prodution"}, True),
            ("[env.production]\n", {"KIQ_ENV": "production"}, False),
            ("[env.production]\n", {}, False),
            ("stop.timeout = 3\n", {"KIQ_ENV": "prodution"}, False),
        ],
    )
    def test_an_environment_without_a_section_is_told_where_others_have_one(
        self,
        loaded: Loader,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        toml: str,
        environ: dict[str, str],
        is_warned: bool,
    ) -> None:
        config, origins = loaded(toml, environ=environ)
        monkeypatch.chdir(tmp_path)

        warning = missing_section(config, origins)

        assert (warning is not None) is is_warned
        assert warning is None or ("[env.prodution]" in warning and "[env.production], [env.staging]" in warning)

    @pytest.mark.parametrize("toml", ["env = 3", 'env = "production"', "env.production = 3"])
    def test_sections_that_are_none_are_refused(self, loaded: Loader, toml: str) -> None:
        assert "[env.production]" in refusal(loaded, toml)


class TestRemovedDirectory:
    """Of a process that lives longer than the folder of its release."""

    @pytest.fixture(autouse=True)
    def removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "release"
        folder.mkdir()
        monkeypatch.chdir(folder)
        folder.rmdir()

    @pytest.mark.parametrize(
        "sources",
        [
            {"flags": {"redis": "redis://there/1"}},
            {"environ": {"REDIS_URL": "redis://there/1"}},
            {"configured": {"redis": "redis://there/1"}},
        ],
        ids=["flag", "environment", "configure"],
    )
    def test_the_other_sources_hold(self, sources: dict[str, Any]) -> None:
        config, _ = load(sources.pop("flags", {}), environ=sources.pop("environ", {}), **sources)

        assert config.redis == "redis://there/1"

    def test_without_a_redis_that_they_name_nothing_goes_to_the_default_one(self) -> None:
        for read in (lambda: load({}, environ={}), lambda: load_part(frozenset({"redis"}), {}, environ={})):
            with pytest.raises(UsageError, match="working directory was removed"):
                read()

    def test_a_file_that_is_named_is_read(self, tmp_path: Path) -> None:
        file = tmp_path / "other.toml"
        file.write_text("stop.timeout = 7")

        assert load({}, file=str(file), environ={})[0].stop_timeout == 7

    def test_a_cluster_says_so(self) -> None:
        with pytest.raises(UsageError, match="start this process in a directory that exists"):
            Config().known_directory()


class TestNames:
    def test_an_unknown_name_is_refused_with_the_nearest_known_one(self, loaded: Loader) -> None:
        message = refusal(loaded, "concurency = 3")

        assert "did you mean 'concurrency'?" in message
        assert "kiqcluster.toml" in message

    def test_a_name_like_no_other_is_refused_with_all_that_there_are(self, loaded: Loader) -> None:
        message = refusal(loaded, "xyzzy = 3")

        assert all(key_of(each) in message for each in settings())

    def test_names_in_sections_are_checked_with_the_section_named(self, loaded: Loader) -> None:
        assert "[env.production]" in refusal(
            loaded, "[env.production]\ntimeuot = 1\n", environ={"KIQ_ENV": "production"}
        )

    def test_names_in_sections_of_other_environments_are_checked_too(self, loaded: Loader) -> None:
        assert "[env.production]" in refusal(loaded, "[env.production]\ntimeuot = 1\n", environ={"KIQ_ENV": "test"})

    def test_names_given_to_configure_are_checked(self, setup: Setup) -> None:
        with pytest.raises(UsageError, match=r"configure\(\): there is no setting 'timeuot'; did you mean"):
            setup.configure(timeuot=3)  # type: ignore[call-arg]


def in_tables() -> list[Any]:
    return [each for each in settings() if each.metadata["table"]]


class TestTables:
    def test_one_name_holds_in_every_place(self, loaded: Loader, setup: Setup) -> None:
        setup.configure(dead={"max_jobs": 7})
        places: list[dict[str, Any]] = [
            {"toml": "[dead]\nmax_jobs = 7"},
            {"toml": "dead.max_jobs = 7"},
            {"toml": "[env.development.dead]\nmax_jobs = 7"},
            {"environ": {"KIQ_DEAD_MAX_JOBS": "7"}, "toml": "dead.max_jobs = 3"},
            {"flags": read_assignments(["dead.max_jobs=7"]), "toml": "dead.max_jobs = 3"},
            {"configured": setup.settings, "toml": "# nothing"},
        ]

        assert [loaded(**place)[0].dead_max_jobs for place in places] == [7] * len(places)

    def test_a_section_and_a_second_call_change_single_keys(self, loaded: Loader, setup: Setup) -> None:
        config, _ = loaded("[dead]\nmax_jobs = 7\ntimeout = 9\n[env.development]\ndead.timeout = '1m30s'")
        setup.configure(dead={"max_jobs": 7})
        setup.configure(dead={"timeout": timedelta(seconds=90)})

        assert (config.dead_max_jobs, config.dead_timeout) == (7, 90.0)
        assert loaded("# nothing", configured=setup.settings)[0] == dataclasses.replace(
            Config(dead_max_jobs=7, dead_timeout=90.0), declared=frozenset({"dead_max_jobs", "dead_timeout"})
        )

    def test_no_two_settings_share_a_variable_and_each_key_follows_from_the_field(self) -> None:
        assert len({variable_of(each) for each in settings()}) == len(list(settings()))
        for each in in_tables():
            assert key_of(each).replace(".", "_") == each.name
            assert key_of(each).count(".") == 1

    @pytest.mark.parametrize("name", [each.name for each in in_tables()])
    def test_a_key_without_its_table_is_refused_with_the_table(self, loaded: Loader, name: str) -> None:
        (key,) = [key_of(each) for each in settings() if each.name == name]

        assert f"there is no setting '{name}'; it is" in refusal(loaded, f"{name} = 5")
        assert key in refusal(loaded, f"{name} = 5")

    @pytest.mark.parametrize(
        ("toml", "said"),
        [
            ("dead = 5", "dead is a table of settings, not 5"),
            ("[dead]\nmax_job = 5", "there is no setting 'dead.max_job'; did you mean 'dead.max_jobs'?"),
            ("[env.test.dead]\nmax_job = 5", "[env.test]: there is no setting 'dead.max_job'"),
        ],
    )
    def test_a_slip_in_a_table_is_refused(self, loaded: Loader, toml: str, said: str) -> None:
        assert said in refusal(loaded, toml)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("dead.max_jobs", "write KEY=VALUE"),
            ("=5", "write KEY=VALUE"),
            ("dead.max_job=5", "--set: there is no setting 'dead.max_job'; did you mean 'dead.max_jobs'?"),
            ("broker_url=x", "broker_url of Celery is here: redis"),
        ],
    )
    def test_an_assignment_that_is_none_is_refused(self, text: str, said: str) -> None:
        with pytest.raises(UsageError) as caught:
            read_assignments([text])

        assert said in str(caught.value)


class TestValues:
    @pytest.mark.parametrize(
        "toml",
        [
            'concurrency = "many"',
            "concurrency = 2.5",
            "concurrency = true",
            "concurrency = inf",
            "concurrency = []",
            'stop.timeout = "soon"',
            "stop.timeout = true",
            "stop.timeout = nan",
            "stop.timeout = inf",
            f"stop.timeout = {'9' * 400}",
            'strict = "perhaps"',
            "strict = 2",
            "redis = 5",
            "require = 5",
            "require = [1]",
            "groups = { a = 1 }",
            "log.level = 3",
            "environment = 3",
        ],
    )
    def test_a_value_of_the_wrong_kind_is_refused_with_its_source(self, loaded: Loader, toml: str) -> None:
        message = refusal(loaded, toml)

        assert message.startswith(toml.split(" ")[0])
        assert "kiqcluster.toml" in message

    @pytest.mark.parametrize(
        ("variable", "value", "words"),
        [
            ("KIQ_STOP_TIMEOUT", "soon", "it takes a number"),
            ("KIQ_STOP_TIMEOUT", "5 minutes", "90s, 15m"),
            ("KIQ_STOP_TIMEOUT", "9" * 400, "it takes a number"),
            ("KIQ_CONCURRENCY", "many", "it takes an integer"),
            ("KIQ_CONCURRENCY", "2.5", "it takes an integer"),
            ("KIQ_REQUIRE", "app.jobs,other", "spaces between them"),
            ("KIQ_REQUIRE", '["app.jobs"]', "spaces between them"),
            ("KIQ_QUEUES", "a,b", "spaces between them"),
            ("KIQ_GROUPS", '["a", "b"]', "cronjob:* default,mailers"),
        ],
    )
    def test_a_variable_of_the_wrong_kind_is_refused_in_words_of_ours(
        self, loaded: Loader, variable: str, value: str, words: str
    ) -> None:
        message = refusal(loaded, environ={variable: value})

        assert words in message
        assert variable in message
        assert "could not convert" not in message
        assert "invalid literal" not in message

    @pytest.mark.parametrize(
        ("toml", "name", "expected"),
        [
            ("concurrency = 3.0", "concurrency", 3),
            ("stop.timeout = 3", "stop_timeout", 3.0),
            ('stop.timeout = "1m30s"', "stop_timeout", 90.0),
            ('quiet_lease = "15m"', "quiet_lease", 900.0),
            ('quiet_lease = "0"', "quiet_lease", 0.0),
            ('concurrency = "3"', "concurrency", 3),
            ('require = "a b"', "require", ("a", "b")),
            ('require = ["a b", "c"]', "require", ("a b", "c")),
            ('strict = "true"', "strict", True),
            ("strict = 0", "strict", False),
        ],
    )
    def test_values_are_taken_for_what_they_mean(self, loaded: Loader, toml: str, name: str, expected: object) -> None:
        value = getattr(loaded(toml)[0], name)

        assert value == expected
        assert type(value) is type(expected)

    @pytest.mark.parametrize(
        ("values", "word"),
        [
            ({"concurrency": 0}, "concurrency"),
            ({"concurrency": -1}, "concurrency"),
            ({"min_concurrency": -1}, "min_concurrency"),
            ({"max_concurrency": -1}, "max_concurrency"),
            ({"preload": True, "watch": True}, "leave one of them out"),
            ({"queues": ("a b",)}, "'a b' in `queues`"),
            ({"queues": ("",)}, "'' in `queues`"),
            ({"queues": ("a,b",)}, "'a,b' in `queues`"),
            ({"queues": ("cronjob:*",)}, "'cronjob:*' in `queues`"),
            ({"stop_timeout": 0}, "timeout"),
            ({"stop_timeout": -5}, "timeout"),
            ({"health_boot_timeout": 0}, "health.boot_timeout"),
            ({"health_silence_timeout": -1}, "health.silence_timeout"),
            ({"health_silence_timeout": 60}, "health.recover_after"),
            ({"health_recover_after": 45}, "health.silence_timeout (45 s) must be below health.recover_after (45 s)"),
            ({"health_recover_after": 0}, "health.recover_after must be more than 0"),
            ({"health_recover_after": -1, "health_silence_timeout": 0}, "health.recover_after must be more than 0"),
            ({"stop_platform_timeout": 25 + STOP_GRACE_SECONDS}, "TimeoutStopSec"),
            ({"stop_platform_timeout": 60, "stop_timeout": 55}, "terminationGracePeriodSeconds"),
            ({"stop_platform_timeout": -1}, "stop.platform_timeout"),
            ({"health_respawn_burst": 0}, "health.respawn_burst"),
            ({"max_retries": -1}, "max_retries"),
            ({"dead_max_jobs": 0}, "dead.max_jobs"),
            ({"dead_timeout": 0}, "dead.timeout"),
            ({"average_scheduled_poll_interval": 0}, "average_scheduled_poll_interval"),
            ({"log_format": "xml"}, "auto, pretty, json"),
            ({"log_level": "INFO"}, "debug, info, warning, error"),
            ({"strict_args": "maybe"}, "raise, warn, off"),
            ({"redis": "http://host"}, "redis://HOST:PORT/DB"),
            ({"redis": "redis://host:port/0"}, "redis://HOST:PORT/DB"),
            ({"redis": "redis://[::1"}, "redis://HOST:PORT/DB"),
            ({"redis": ""}, "redis://HOST:PORT/DB"),
            ({"redis": "redis://host:6379/0x"}, "number of the database"),
            ({"redis": "rediss://:s3cret@host/shop"}, "number of the database"),
            ({"embedded": "/" + "x" * 200}, "shorter folder"),
        ],
    )
    def test_a_value_that_cannot_work_is_refused_with_the_remedy(
        self, loaded: Loader, values: dict[str, Any], word: str
    ) -> None:
        assert word in refusal(loaded, configured=values)

    @pytest.mark.parametrize(
        "values",
        [
            {"concurrency": 1},
            {"max_concurrency": 0},
            {"queues": ("default", "cronjob:nightly", "a.b-c_d")},
            {"health_silence_timeout": 0},
            {"health_silence_timeout": 59.9},
            {"health_silence_timeout": 0, "health_recover_after": 0.5},
            {"health_silence_timeout": 100, "health_recover_after": 101},
            {"stop_platform_timeout": 0},
            {"stop_platform_timeout": 25 + STOP_GRACE_SECONDS + 1},
            {"max_retries": 0},
            {"redis": "unix:///tmp/redis.sock?db=2"},
            {"redis": "rediss://user:secret@host:6380/1"},
            {"redis": "embedded:/tmp/kiq"},
            {"redis": "redis://host:6379"},
            {"redis": "redis://host:6379/"},
            {"redis": "redis://host:6379/12?socket_timeout=3"},
        ],
    )
    def test_values_at_the_edge_work(self, loaded: Loader, values: dict[str, Any]) -> None:
        config, origins = loaded(configured=values)

        assert {name: getattr(config, name) for name in values} == values
        assert all(origins[name] == "configure()" for name in values)


class TestDescribe:
    def test_every_setting_is_shown_with_its_origin(self, loaded: Loader) -> None:
        rows = describe(*loaded("stop.timeout = 3\ngroups = ['a,b', '*']", flags={"concurrency": 4}))

        shown = {name: (value, origin) for name, value, origin in rows}
        assert list(shown) == [key_of(each) for each in settings()]
        assert shown["concurrency"] == ("4", "flag")
        assert shown["groups"][0] == "a,b *"  # as the variable takes it: which queues go together is to be seen
        assert shown["max_retries"] == ("25", "default")

    @pytest.mark.parametrize(
        "address",
        [
            "redis://:s3cret@host/0",
            "rediss://ann:s3cret@host:6380/0",
            "unix:///tmp/redis.sock?db=1&password=s3cret",
            "redis://host/0?password=s3cret&db=2",
        ],
    )
    def test_no_secret_is_shown(self, loaded: Loader, address: str) -> None:
        rows = describe(*loaded(flags={"redis": address}))

        assert "s3cret" not in repr(rows)
        assert "***" in repr(rows)

    def test_a_secret_that_cannot_be_used_is_not_shown_either(self, loaded: Loader) -> None:
        complaints = [
            refusal(loaded, "encryption.keys = ['1:s3cret']"),
            refusal(loaded, configured={"encryption_keys": ["1:s3cret"]}),
        ]
        with pytest.raises(UsageError) as caught:
            with_configured(loaded()[0], {"encryption_keys": ["1:s3cret"]})

        for said in (*complaints, str(caught.value)):
            assert "s3cret" not in said
            assert "encryption.keys" in said
            assert "it takes a string" in said


class TestListen:
    @pytest.mark.parametrize(
        ("address", "place"),
        [
            ("off", None),
            ("127.0.0.1:8082", ("127.0.0.1", 8082)),
            (":8082", ("0.0.0.0", 8082)),
            ("[::1]:0", ("::1", 0)),
            ("metrics.internal:80", ("metrics.internal", 80)),
            ("unix:/run/kiq.sock", "/run/kiq.sock"),
        ],
    )
    def test_its_forms_are_these(self, address: str, place: object) -> None:
        assert parse_listen(address) == place

    @pytest.mark.parametrize("address", ["", "8082", "host:", "host:-1", "host:65536", "host:²", ":", "unix:", "Off"])
    def test_others_are_refused_with_the_configuration(self, loaded: Loader, address: str) -> None:
        assert "HOST:PORT, unix:PATH or off" in refusal(loaded, flags={"listen": address})

    @pytest.mark.parametrize(
        ("address", "advice"),
        [
            ("127.0.0.1:8082", "write another port, for example --listen 127.0.0.1:8092, or --listen off"),
            ("[::1]:65535", "write another port, for example --listen [::1]:65525, or --listen off"),
            ("unix:/run/kiq.sock", "write another path, or --listen off"),
        ],
    )
    def test_the_error_of_an_address_in_use_says_what_to_write(self, address: str, advice: str) -> None:
        error = listen_error(address, OSError(errno.EADDRINUSE, "Address already in use"), can_be_off=True)

        assert str(error).endswith(advice)
        assert error.exit_code == ExitCode.ADDRESS_IN_USE


class TestEmbedded:
    def test_an_embedded_server_is_the_one_to_connect_to(self) -> None:
        assert Config(embedded="/tmp/kiq", redis="redis://other").known_redis() == "embedded:/tmp/kiq"
        assert Config(redis="redis://other").known_redis() == "redis://other"


class TestTag:
    @pytest.mark.parametrize(
        ("directory", "tag"),
        [
            ("/srv/shop", "shop"),
            ("/srv/shop/releases/20261120", "shop"),
            ("/srv/shop/releases/next", "next"),
            ("/srv/shop/current", "current"),
        ],
    )
    def test_it_is_the_directorys_name_or_that_of_the_release(self, directory: str, tag: str) -> None:
        assert Config(directory=directory).known_tag() == tag

    @pytest.mark.parametrize("tag", ["web", ""])
    def test_it_is_what_was_given(self, tag: str) -> None:
        assert Config(directory="/srv/shop", tag=tag).known_tag() == tag


def test_every_setting_is_declared_with_help_and_a_name_that_makes_a_flag() -> None:
    for each in settings():
        assert each.metadata["help"], each.name
        assert each.name.replace("_", "").isalpha(), each.name
        assert each.name == each.name.lower()


def test_configure_in_an_application_fills_in_defaults_of_its_workers_only() -> None:
    config, _ = load({"stop_timeout": 3.0}, environ={}, directory=Path("/nonexistent"))

    merged = with_configured(config, {"stop_timeout": 9, "max_retries": "4"})

    assert (merged.stop_timeout, merged.max_retries) == (3.0, 4)


OTHER = "redis://other:1/0"


@pytest.mark.parametrize(
    ("flags", "environ", "known"),
    [
        ({"redis": OTHER}, {}, OTHER),
        ({}, {"REDIS_URL": OTHER}, OTHER),
        ({}, {"KIQ_REDIS": OTHER}, OTHER),
        ({"redis": OTHER}, {"KIQ_EMBEDDED": "data"}, OTHER),
        ({}, {"REDIS_URL": OTHER, "KIQ_EMBEDDED": "data"}, "embedded:data"),
        ({"embedded": "data"}, {"REDIS_URL": OTHER}, "embedded:data"),
    ],
)
def test_an_embedded_server_yields_to_a_redis_from_a_closer_source(
    flags: dict[str, str], environ: dict[str, str], known: str, tmp_path: Path
) -> None:
    (tmp_path / "kiqcluster.toml").write_text('embedded = "data"\nredis = "redis://file:1/0"\n')

    assert load(flags, environ=environ, directory=tmp_path)[0].known_redis() == known


def test_an_address_of_the_embedded_server_does_not_keep_it_from_being_started(tmp_path: Path) -> None:
    (tmp_path / "kiqcluster.toml").write_text('embedded = "data"\n')

    assert load({}, environ={"REDIS_URL": "embedded:./data"}, directory=tmp_path)[0].embedded == "data"


class TestPart:
    """What a tool needs that steers what runs already: a slip elsewhere does not take it away."""

    NEEDED = frozenset({"redis", "environment"})

    def part(
        self, directory: Path, toml: str, flags: Mapping[str, Any] | None = None, **environ: str
    ) -> tuple[str, str]:
        (directory / "kiqcluster.toml").write_text(toml)
        config, slip = load_part(self.NEEDED, flags or {}, environ={"PATH": "", **environ}, directory=directory)
        return config.redis, slip

    def test_where_all_is_well_nothing_is_said(self, tmp_path: Path) -> None:
        assert self.part(tmp_path, 'redis = "redis://file/0"') == ("redis://file/0", "")

    @pytest.mark.parametrize(
        ("toml", "environ", "word"),
        [
            ('redis = "redis://here/0"\nmax_concurency = 2', {}, "max_concurrency"),
            ('redis = "redis://here/0"\nstop.timeout = "long"', {}, "timeout"),
            ('redis = "redis://here/0"\nstop.timeout = -1', {}, "timeout"),
            ('redis = "redis://here/0"', {"KIQ_STOP_TIMEOUT": "abc"}, "timeout"),
            ('redis = "redis://here/0"', {"KIQ_STOP_TIMEOUTT": "1"}, "KIQ_STOP_TIMEOUT"),
            ('[env.development]\nredis = "redis://here/0"\nbogus = 1', {}, "bogus"),
            ("not toml", {"REDIS_URL": "redis://here/0"}, "TOML"),
        ],
    )
    def test_a_slip_in_another_setting_is_said_and_left_aside(
        self, tmp_path: Path, toml: str, environ: dict[str, str], word: str
    ) -> None:
        address, slip = self.part(tmp_path, toml, **environ)

        assert address == "redis://here/0"
        assert word in slip

    @pytest.mark.parametrize("toml", ["not toml", "redis = 1", 'redis = "http://x"'])
    def test_a_slip_in_one_that_is_needed_is_refused(self, tmp_path: Path, toml: str) -> None:
        with pytest.raises(UsageError):
            self.part(tmp_path, toml)

    def test_a_flag_needs_no_file(self, tmp_path: Path) -> None:
        assert self.part(tmp_path, "not toml", {"redis": "redis://flag/0"})[0] == "redis://flag/0"


def test_what_type_checkers_know_of_configure_is_what_it_takes() -> None:
    known = {
        f"{name}.{key}" if is_typeddict(kind) else name
        for name, kind in get_type_hints(CodeSettings).items()
        for key in (kind.__annotations__ if is_typeddict(kind) else [""])
    }

    assert known == {key_of(each) for each in settings() if each.metadata["in_code"]}
