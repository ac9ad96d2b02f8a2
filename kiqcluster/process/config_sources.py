"""Sources of the configuration: flag > environment > file > configure() > default.

1. load        merges them; unset is distinct from a default, so a default never hides a file's value
2. sources     environment, files; an unknown name is refused, with the nearest known name
3. values      converts text and numbers to the setting's type

Key in files = field name, or table.key (`key_of`); variable = `KIQ_` + the field name in capitals (and REDIS_URL,
KIQ_ENV); --set takes any key; a flag of its own = `--` + the key with dashes.  This module alone reads settings from
os.environ and configuration files.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from math import inf, isfinite
from pathlib import Path
from typing import Any

from kiqcluster.errors import UsageError
from kiqcluster.process.config import FIELD_TYPES, Config, Origins, key_of, settings, variable_of, working_directory
from kiqcluster.process.config_checks import check
from kiqcluster.process.durations import Bytes, parse_duration, parse_size
from kiqcluster.sidekiq.cron_entries import CronEntry, parse_entries
from kiqcluster.sidekiq.queue_groups import GroupSetting
from kiqcluster.sidekiq.routing import Rules, parse_rules
from kiqcluster.store.embedded import SCHEME, directory_of
from kiqcluster.store.shards import Shard, parse_shards
from kiqcluster.words import WORDS, hint_of

__all__ = [
    "by_field",
    "configurable",
    "load",
    "load_part",
    "missing_section",
    "read_assignments",
    "read_cron_file",
    "with_configured",
]

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

    flags, configured: by field, as `by_field` returns them; flags are only those given on the command line.
    file: -C; without it kiqcluster.toml, else [tool.kiqcluster] of pyproject.toml, in `directory`;
    a working directory that was removed has none.
    knows_shards: False where sources are left out that may declare shards.
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
    variables = {each.name: {variable_of(each), each.metadata["variable"]} for each in settings()}
    wanted = {variable for name in names for variable in variables[name]}
    environ = {name: value for name, value in (environ or os.environ).items() if name in wanted}
    try:
        path, document = _read_file(file, directory or working_directory())
    except UsageError:
        if file is not None or not (names & flags.keys() or environ):  # the file may have had the needed settings
            raise
        path, document = "", {}
    sections = document.get("env")
    part = _only(names, document)
    if isinstance(sections, dict):
        part["env"] = {name: _only(names, values) for name, values in sections.items() if isinstance(values, dict)}
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
    given = {**from_code, **{name: (value, "file") for name, value in document.items()}, **from_environ, **from_flags}
    environment = given.get("environment", (Config.environment, "default"))[0]
    from_file = dict(_from_file(document, str(environment), path))
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


def by_field(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return settings by field: {"dead": {"max_jobs": 5}}, or {"dead.max_jobs": 5} → {"dead_max_jobs": 5}.

    place: for errors.  Raises UsageError for a name that is no setting, with the one that was meant.
    """
    fields = {key_of(each): each.name for each in settings()}
    found: dict[str, Any] = {}
    for key, value in _by_key(values, place):
        if key not in fields:
            raise UsageError(f"{place}: there is no setting {key!r}; {_meant(key)}")
        found[fields[key]] = value
    return found


def read_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Return the settings of `--set KEY=VALUE`, by field; a value has the form of a variable's.  Raises UsageError."""
    pairs = [text.partition("=") for text in texts]
    if bad := [key for key, sign, _ in pairs if not (key and sign)]:
        raise UsageError(f"--set {bad[0]} has no value; write KEY=VALUE, as in --set dead.max_jobs=5000")
    return by_field({key: value for key, _, value in pairs}, "--set")


def configurable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of configure() by field.

    Raises UsageError for one that there is not, that cannot work, or that code cannot set: the supervisor never imports
    the application.
    """
    values = by_field(given, "configure()")
    late = sorted(key_of(each) for each in settings() if not each.metadata["in_code"] and each.name in values)
    if late:
        raise UsageError(
            f"{', '.join(late)} cannot be set by configure(): it is read before the application is imported; "
            "set it by flag, environment or kiqcluster.toml"
        )
    load({}, environ={}, configured=values, knows_shards=False)
    return values


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
        for variable in (variable_of(each), each.metadata["variable"]):
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
    for values, place in ((common, path), *((each, f"{path} [env.{name}]") for name, each in sections.items())):
        found = by_field(values, place)  # also of other environments: a slip in one is noticed before it is used
        if values is common or values is sections.get(environment):
            for name, value in found.items():
                yield name, (value, f"file ({place})")


def _tables() -> set[str]:
    return {each.metadata["table"] for each in settings()} - {""}


def _by_key(values: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    """Yield the key and the value of each setting, also of those in tables."""
    tables = _tables()
    for name, value in values.items():
        if name not in tables:
            yield name, value
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        else:
            raise UsageError(f"{place}: {name} is a table of settings, not {value!r}; write {name}.KEY = …")


def _only(names: frozenset[str], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a document that has the settings of these fields."""
    keys = {key_of(each) for each in settings() if each.name in names}
    tables = {name: document[name] for name in _tables() if isinstance(document.get(name), dict)}
    inner = {
        name: {key: value for key, value in table.items() if f"{name}.{key}" in keys} for name, table in tables.items()
    }
    return {**{name: value for name, value in document.items() if name in keys}, **inner}


def _meant(key: str) -> str:
    """Return a hint for a name that is no setting."""
    by_name = {each.name: each for each in settings()}
    if key in by_name:
        table, _, inner = key_of(by_name[key]).partition(".")
        return f"it is {inner} in the table [{table}]: {table}.{inner}"
    known = [key_of(each) for each in by_name.values()]
    near = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(known)}"
    return hint_of("setting", key) or hint


def _check_variables(environ: Mapping[str, str]) -> None:
    """Raise UsageError for a variable that looks like a typo; an ignored setting is noticed too late."""
    variables = {key_of(each): variable_of(each) for each in settings()}
    known = {*variables.values(), "KIQ_ENV"}
    ours = {name for name in environ if name.startswith("KIQ_")}
    for variable in ours - known - NON_SETTING_VARIABLES:
        word = variable.removeprefix("KIQ_").lower()
        if (counterpart := WORDS.get(("setting", word))) is not None:
            hint = hint_of("setting", word, variables.get(counterpart.target, counterpart.target))
            raise UsageError(f"environment: there is no setting {variable}; {hint}")
        bare = [name.removeprefix("KIQ_") for name in known]
        near = difflib.get_close_matches(variable.removeprefix("KIQ_"), bare, 1, TYPO_SIMILARITY)
        if near:
            raise UsageError(f"environment: there is no setting {variable}; did you mean KIQ_{near[0]}?")


# values

READERS: dict[Any, Callable[[Any], Any]] = {  # type → function that reads its values; raises UsageError or ValueError
    Bytes: parse_size,
    Rules: parse_rules,
    tuple[Shard, ...]: parse_shards,
    tuple[CronEntry, ...]: parse_entries,
    tuple[str | GroupSetting, ...]: lambda raw: _as_groups(raw),
    Mapping[str, Any] | None: lambda raw: _as_table(raw),
}
DURATION_HELP = "it takes a number of seconds, a duration as in 90s, 15m or 1h30m, or a timedelta"
TRUE_WORDS, FALSE_WORDS = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _converted(each: dataclasses.Field[Any], raw: Any, origin: str) -> Any:
    kind = FIELD_TYPES[each.name]
    try:
        if kind in READERS:
            return READERS[kind](raw)
        return _as_list(each.name, raw) if kind == tuple[str, ...] else _as(kind, raw)
    except UsageError as error:  # of rules, whose text is long
        raise UsageError(f"{key_of(each)} from {origin} cannot be used: {error}") from error
    except ValueError as error:
        shown = "" if each.metadata["is_secret"] else f" = {raw!r}"
        raise UsageError(f"{key_of(each)}{shown} from {origin} cannot be used: {error}") from error


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
    """Return the seconds of a number, a timedelta or text like 15m: all settings that are no integers are durations."""
    if isinstance(raw, timedelta):
        return raw.total_seconds()
    try:
        return float(raw)
    except ValueError:
        return parse_duration(raw)


def _require(fine: bool, complaint: str) -> None:
    if not fine:
        raise ValueError(complaint)
