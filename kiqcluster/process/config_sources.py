"""Sources of the configuration: flag > environment > file > configure() > default.

1. load        merges them; unset is distinct from a default, so a default never hides a file's value
2. sources     environment, files; an unknown name is refused, with the nearest known name
3. values      converts text and numbers to the setting's type

Key in files = field name; flag = `--` + the name with dashes; variable = `KIQ_` + the name in capitals (and
REDIS_URL, KIQ_ENV).  This module alone reads settings from os.environ and configuration files.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any, get_type_hints

from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config, Origins, settings, working_directory
from kiqcluster.process.config_checks import check
from kiqcluster.process.durations import parse_duration
from kiqcluster.sidekiq.cron_entries import CronEntry, parse_entries
from kiqcluster.sidekiq.queue_groups import GroupSetting
from kiqcluster.sidekiq.routing import Rules, parse_rules
from kiqcluster.store.embedded import SCHEME, directory_of
from kiqcluster.store.shards import Shard, parse_shards
from kiqcluster.words import hint_of

__all__ = ["check_configurable", "load", "load_part", "missing_section", "read_cron_file", "with_configured"]

CONFIG_FILES = ("kiqcluster.toml", "pyproject.toml")
NON_SETTING_VARIABLES = frozenset({"KIQ_SLOT", "KIQ_REQUIRE_ALL"})  # a worker's slot, a switch of the tests
TYPO_SIMILARITY = 0.8  # a variable this similar to a setting's is a typo; other programs may use KIQ_ names too


def load(
    flags: Mapping[str, Any],
    *,
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    configured: Mapping[str, Any] | None = None,
    knows_shards: bool = True,
) -> tuple[Config, Origins]:
    """Return the merged configuration and where each value comes from.

    flags: only those given on the command line.  file: -C; without it kiqcluster.toml, else [tool.kiqcluster]
    of pyproject.toml, in `directory`; a working directory that was removed has none.  knows_shards: False where
    sources are left out that may declare shards.
    Raises UsageError that names the source of the invalid value.
    """
    environ = os.environ if environ is None else environ
    gone: UsageError | None = None
    try:
        directory = directory or working_directory()
    except UsageError as error:
        gone = error
    path, document = _read_file(file, directory)
    _check_variables(environ)
    config, origins = _merged(flags, environ, path, document, configured or {}, knows_shards=knows_shards)
    if gone is not None and file is None and not (config.is_declared("redis") or config.is_declared("embedded")):
        raise gone  # the file may have named another Redis than the default one
    return config, origins


def load_part(
    names: frozenset[str],
    flags: Mapping[str, Any],
    *,
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> tuple[Config, str]:
    """Return a configuration of only these settings, and a complaint about another setting ("" if there is none).

    For tools that control running processes: an invalid setting that they do not need must not stop them.
    Raises UsageError for an invalid value of these settings.
    """
    try:
        return load(flags, file=file, environ=environ, directory=directory)[0], ""
    except UsageError as error:
        slip = error
    variables = {each.name: {f"KIQ_{each.name.upper()}", each.metadata["variable"]} for each in settings()}
    wanted = {variable for name in names for variable in variables[name]}
    environ = {name: value for name, value in (environ or os.environ).items() if name in wanted}
    try:
        path, document = _read_file(file, directory or working_directory())
    except UsageError:
        if file is not None or not (names & flags.keys() or environ):  # the file may have had the needed settings
            raise
        path, document = "", {}
    sections = document.get("env")
    part = {name: value for name, value in document.items() if name in names}
    if isinstance(sections, dict):
        tables = {name: values for name, values in sections.items() if isinstance(values, dict)}
        part["env"] = {
            name: {key: value for key, value in values.items() if key in names} for name, values in tables.items()
        }
    return _merged(flags, environ, path, part, {})[0], str(slip)


def _merged(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    path: str,
    document: dict[str, Any],
    configured: Mapping[str, Any],
    *,
    knows_shards: bool = True,
) -> tuple[Config, Origins]:
    """Return the configuration from all sources; the closest source wins."""
    from_flags = {name: (value, "flag") for name, value in flags.items()}
    from_environ = dict(_from_environ(environ))
    from_code = {name: (value, "configure()") for name, value in configured.items()}
    named = {**from_code, **{name: (value, "file") for name, value in document.items()}, **from_environ, **from_flags}
    environment = named.get("environment", (Config.environment, "default"))[0]
    from_file = dict(_from_file(document, str(environment), path))
    _check_names(from_code, "configure()")
    values: dict[str, Any] = {}
    origins: Origins = {}
    distances: dict[str, int] = {}
    for each in settings():
        for distance, source in enumerate((from_flags, from_environ, from_file, from_code)):
            if each.name in source:
                raw, origins[each.name] = source[each.name]
                values[each.name] = _converted(each, raw, origins[each.name])
                distances[each.name] = distance
                break
        else:
            origins[each.name] = "default"
    is_closer = "embedded" in values and distances.get("redis", inf) < distances["embedded"]
    if is_closer and not _is_embedded(values["redis"], values["embedded"]):
        values["embedded"], origins["embedded"] = None, "default"
    config = Config(**values, declared=frozenset(each for each in origins if origins[each] != "default"))
    check(config, knows_shards=knows_shards)
    return config, origins


def _is_embedded(address: str, folder: str) -> bool:
    """Return whether an address is that of the private server with its data in a folder."""
    return address.startswith(SCHEME) and directory_of(address) == directory_of(folder)


def check_configurable(names: Iterable[str]) -> None:
    """Raise UsageError for settings that code cannot set: the supervisor never imports the application."""
    late = sorted({each.name for each in settings() if not each.metadata["in_code"]} & set(names))
    if late:
        raise UsageError(
            f"{', '.join(late)} cannot be set by configure(): it is read before the application is imported; "
            "set it by flag, environment or kiqcluster.toml"
        )


def with_configured(config: Config, configured: Mapping[str, Any]) -> Config:
    """Return a worker's configuration after its application called configure(), which replaces only defaults."""
    by_name = {each.name: each for each in settings()}
    values = {
        name: _converted(by_name[name], value, "configure()")
        for name, value in configured.items()
        if not config.is_declared(name)
    }
    merged = dataclasses.replace(config, **values, declared=config.declared | values.keys())
    check(merged)
    return merged


def missing_section(config: Config, origins: Origins, file: str | None = None) -> str | None:
    """Return a warning when the file has sections but none for the requested environment, else None."""
    if origins["environment"] == "default":
        return None
    path, document = _read_file(file, working_directory())
    sections = document.get("env", {})
    if not sections or config.environment in sections:
        return None
    there = ", ".join(f"[env.{name}]" for name in sections)
    return f"{path} has no section [env.{config.environment}], only {there}; its common part holds alone"


def read_cron_file(path: Path) -> tuple[CronEntry, ...]:
    """Return the cron entries of a TOML file, or of a YAML file such as sidekiq-cron's.  Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text) if path.suffix == ".toml" else _read_yaml(path, text)
    except (OSError, ValueError) as error:  # also of TOML and UTF-8
        raise UsageError(f"cron_file {path} cannot be read ({error})") from error
    try:
        return parse_entries({} if document is None else document)
    except UsageError as error:
        raise UsageError(f"cron_file {path}: {error}") from error


def _read_yaml(path: Path, text: str) -> Any:
    try:
        import yaml  # an extra
    except ImportError as error:
        raise UsageError(f"cron_file {path} is YAML, which needs an extra: pip install 'kiqcluster[yaml]'") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is not valid YAML: {error}") from error


# sources


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[Any, str]]]:
    for each in settings():
        for variable in (f"KIQ_{each.name.upper()}", each.metadata["variable"]):
            if variable and environ.get(variable):
                yield each.name, (environ[variable], f"environment ({variable})")
                break


def _read_file(file: str | None, directory: Path | None) -> tuple[str, dict[str, Any]]:
    """Return path and content of the configuration file, empty ones if there is none, or no directory."""
    if file is not None and not Path(file).is_file():
        raise UsageError(f"configuration file {file!r} does not exist; name one with -C, or leave the flag out")
    beside = [] if directory is None else [directory / name for name in CONFIG_FILES]
    for path in beside if file is None else [Path(file)]:
        if not path.is_file():
            continue
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not valid TOML ({error})") from error
        if path.name == "pyproject.toml":
            document = document.get("tool", {}).get("kiqcluster")
            if document is None:
                continue
        return str(path), document
    return "", {}


def _from_file(document: dict[str, Any], environment: str, path: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    sections = document.get("env", {})
    if not isinstance(sections, dict) or not all(isinstance(section, dict) for section in sections.values()):
        raise UsageError(f"{path}: `env` holds a section for each environment; write them as in [env.production]")
    common = {name: value for name, value in document.items() if name != "env"}
    _check_names(common, path)
    for name, values in sections.items():
        _check_names(values, f"{path} [env.{name}]")
    for values, place in ((common, path), (sections.get(environment, {}), f"{path} [env.{environment}]")):
        for name, value in values.items():
            yield name, (value, f"file ({place})")


def _check_names(values: Mapping[str, Any], place: str) -> None:
    known = [each.name for each in settings()]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(known)}"
            raise UsageError(f"{place}: there is no setting {name!r}; {hint_of('setting', name) or hint}")


def _check_variables(environ: Mapping[str, str]) -> None:
    """Raise UsageError for a variable that looks like a typo; an ignored setting is noticed too late."""
    known = {f"KIQ_{each.name.upper()}" for each in settings()} | {"KIQ_ENV"}
    ours = {name for name in environ if name.startswith("KIQ_")}
    for variable in ours - known - NON_SETTING_VARIABLES:
        hint = hint_of("setting", variable.removeprefix("KIQ_").lower())
        if hint is not None:
            raise UsageError(f"environment: there is no setting {variable}; {hint}")
        bare = [name.removeprefix("KIQ_") for name in known]
        near = difflib.get_close_matches(variable.removeprefix("KIQ_"), bare, 1, TYPO_SIMILARITY)
        if near:
            raise UsageError(f"environment: there is no setting {variable}; did you mean KIQ_{near[0]}?")


# values

FIELD_TYPES = get_type_hints(Config)
READERS: dict[Any, Callable[[Any], Any]] = {  # type → function that reads its values; raises UsageError or ValueError
    Rules: parse_rules,
    tuple[Shard, ...]: parse_shards,
    tuple[CronEntry, ...]: parse_entries,
    tuple[str | GroupSetting, ...]: lambda raw: _as_groups(raw),
    Mapping[str, Any] | None: lambda raw: _as_table(raw),
}
DURATION_HELP = "it takes a number of seconds, or a duration as in 90s, 15m or 1h30m"
TRUE_WORDS, FALSE_WORDS = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _converted(each: dataclasses.Field[Any], raw: Any, origin: str) -> Any:
    kind = FIELD_TYPES[each.name]
    try:
        if kind in READERS:
            return READERS[kind](raw)
        return _as_list(each.name, raw) if kind == tuple[str, ...] else _as(kind, raw)
    except UsageError as error:  # of rules, whose text is long
        raise UsageError(f"{each.name} from {origin} cannot be used: {error}") from error
    except ValueError as error:
        shown = "" if each.metadata["is_secret"] else f" = {raw!r}"
        raise UsageError(f"{each.name}{shown} from {origin} cannot be used: {error}") from error


def _as_list(name: str, raw: Any) -> tuple[str, ...]:
    """Return a list; in text, as in variables, spaces separate the items."""
    if isinstance(raw, str):
        foreign = "[" if name == "groups" else "[,"  # commas separate the queues of one group
        example = "cronjob:* default,mailers" if name == "groups" else "one two"
        _require(not set(foreign) & set(raw), f"its items have spaces between them, as in {example!r}")
    words = raw.split() if isinstance(raw, str) else raw
    _require(isinstance(words, list | tuple) and all(isinstance(word, str) for word in words), "it takes strings")
    return tuple(words)


def _as_table(raw: Any) -> Mapping[str, Any]:
    """Return a table, which its reader checks; in text, as in variables, it is JSON."""
    try:
        table = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError as error:
        raise UsageError('it is no JSON; write a table, as in {"read_only": true}') from error
    _require(isinstance(table, Mapping), "it takes a table")
    return dict(table)


def _as_groups(raw: Any) -> tuple[str | GroupSetting, ...]:
    """Return queue groups: texts, and tables with a shard."""
    if not isinstance(raw, list | tuple):
        return _as_list("groups", raw)
    return tuple(each if isinstance(each, GroupSetting) else _as_group(each) for each in raw)


def _as_group(raw: Any) -> str | GroupSetting:
    if isinstance(raw, str):
        return raw
    _require(isinstance(raw, Mapping), "it takes strings")
    form = 'a group is a text, or a table as in [[groups]] queues = "a,b", shard = "reports"'
    unknown = sorted(raw.keys() - {"queues", "shard"})
    _require(not unknown, f"there is no key {', '.join(unknown)}; {form}")
    queues, shard = raw.get("queues"), raw.get("shard", "")
    _require(isinstance(queues, str) and isinstance(shard, str), form)
    return GroupSetting(queues, shard) if shard else queues


def _as(kind: Any, raw: Any) -> Any:
    if kind is bool:
        word = str(raw).lower()
        _require(word in TRUE_WORDS or word in FALSE_WORDS, "it takes true or false")
        return word in TRUE_WORDS
    if kind in (float, int, int | None):
        wanted, complaint = (_seconds, DURATION_HELP) if kind is float else (int, "it takes an integer")
        whole = kind is float or not isinstance(raw, float) or raw.is_integer()
        _require(not isinstance(raw, bool) and whole, complaint)
        try:
            number = wanted(raw)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(complaint) from error
        _require(isfinite(number), complaint)  # timers do not accept NaN or infinity
        return number
    _require(isinstance(raw, str), "it takes a string")
    return raw


def _seconds(raw: Any) -> float:
    """Return the seconds of a number, or of text like 15m: all settings that are not integers are durations."""
    try:
        return float(raw)
    except ValueError:
        return parse_duration(raw)


def _require(fine: bool, complaint: str) -> None:
    if not fine:
        raise ValueError(complaint)
