"""Assigned: the settings of Celery that the files of a code base set, in all forms in which Celery takes them.

app.conf.NAME = …, app.conf["NAME"] = …     also of one entry: app.conf.beat_schedule["night"] = …
app.conf.update(NAME=…), update({…})         also app.conf.beat_schedule.update({…})
CELERY_NAME = …                              in the settings of Django
app.config_from_object(…)                    the names of the module, class or mapping that it is given

Setting     one of them: the file, its present name and its value
settings_of sources → settings
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kiqcluster.contrib.celery.checker.configs import Config, configs_of
from kiqcluster.contrib.celery.checker.known import Known
from kiqcluster.contrib.celery.checker.source import Source, assigned, dotted
from kiqcluster.contrib.celery.settings import SETTINGS, setting_name

__all__ = ["Setting", "settings_of"]

PREFIX = "CELERY"
OLD_PREFIXES = ("CELERY_", "CELERYD_", "CELERYBEAT_")


class Setting(NamedTuple):
    """A setting that is set at a place.  name: the present one, in lower case.

    owner: what it is set of, within its file: the name of the app, the line of a configuration, or nothing.
    """

    source: Source
    name: str
    value: ast.expr
    owner: str = ""


def settings_of(sources: Sequence[Source], known: Known) -> Iterator[Setting]:
    """Yield the settings of all files, in the order of files.  One that is set in two ways comes twice."""
    configs = list(configs_of(known.modules))
    for source in sources:
        for node in source.nodes:
            for written, value in _of_node(source, known, node):
                yield Setting(source, setting_name(written, PREFIX), value, _owner_of(node))
        for config in configs:
            if config.source is source:
                yield from _of_config(config)


def _owner_of(node: ast.AST) -> str:
    """Return the name of the app whose `conf` a statement sets, else nothing."""
    return next(
        (dotted(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr == "conf"), ""
    )


def _of_node(source: Source, known: Known, node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for target, value in assigned(node):
        if isinstance(target, ast.Name) and target.id.startswith(OLD_PREFIXES):
            yield target.id, value
        elif isinstance(target, ast.Attribute) and _is_conf(source, known, target.value, target.attr):
            yield target.attr, value
        elif isinstance(target, ast.Subscript):
            yield from _of_item(source, known, target, value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        owner = node.func.value
        if isinstance(owner, ast.Attribute) and _is_conf(source, known, owner.value, owner.attr):
            yield from ((owner.attr, each) for each in node.args)
        else:
            yield from (pair for pair in _pairs(node) if _is_conf(source, known, owner, pair[0]))


def _of_item(source: Source, known: Known, target: ast.Subscript, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield app.conf["NAME"] = …, and one entry of a table: app.conf.NAME["entry"] = …."""
    owner = target.value
    if isinstance(owner, ast.Attribute) and _is_conf(source, known, owner.value, owner.attr):
        yield owner.attr, ast.copy_location(ast.Dict([target.slice], [value]), value)
    elif isinstance(target.slice, ast.Constant) and _is_conf(source, known, owner, str(target.slice.value)):
        yield str(target.slice.value), value


def _is_conf(source: Source, known: Known, node: ast.AST, name: str) -> bool:
    """Return whether a node is `….conf` of an app.  name: the key, which tells where the app is not known."""
    if not dotted(node).endswith(".conf"):
        return False
    return known.is_app(source, getattr(node, "value", node)) or setting_name(name, PREFIX) in SETTINGS


def _pairs(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the keys and values of conf.update(…), where they are written out."""
    for each in node.keywords:
        if each.arg is not None:
            yield each.arg, each.value
    for mapping in node.args:
        yield from _of_mapping(mapping)


def _of_mapping(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def _of_config(config: Config) -> Iterator[Setting]:
    """Yield the keys of what config_from_object is given."""
    for written, value in [*_of_mapping(config.body), *_of_body(config.body)]:
        name = setting_name(written, config.namespace or PREFIX)
        has_prefix = config.namespace and written.startswith(config.namespace + "_")
        is_read_already = written.startswith(OLD_PREFIXES)  # by its name, as in the settings of Django
        is_key = has_prefix if config.namespace else written.islower() or name in SETTINGS
        if is_key and not is_read_already and not written.startswith("_"):
            yield Setting(config.source, name, value, f"line {getattr(config.body, 'lineno', 0)}")


def _of_body(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a module or a class assigns, also below `if` and `try`."""
    if isinstance(node, ast.Dict):
        return
    for statement in ast.iter_child_nodes(node):
        for target, value in assigned(statement):
            if isinstance(target, ast.Name):
                yield target.id, value
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _of_body(statement)
