"""Configs: the modules, classes and mappings that config_from_object(…) is given, found in the files of a code base.

Config       one of them: the file in which it is, and its syntax
configs_of   sources → configs; a module `celeryconfig` is one, since Celery reads it without being told
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kiqcluster.contrib.celery.checker.source import Source, dotted

__all__ = ["Config", "configs_of"]

DEFAULT = "celeryconfig"


class Config(NamedTuple):
    """What has the settings.  body: a module, a class or a mapping.  namespace: prefix of the keys, "" for none."""

    source: Source
    body: ast.AST
    namespace: str = ""


def configs_of(sources: Sequence[Source]) -> Iterator[Config]:
    """Yield each config once."""
    found: dict[int, Config] = {}
    for source in sources:
        if source.module == DEFAULT:
            found[id(source.tree)] = Config(source, source.tree)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and dotted(node.func).endswith("config_from_object"):
                for config in _of_call(sources, source, node):
                    found[id(config.body)] = config
    yield from found.values()


def _of_call(sources: Sequence[Source], source: Source, node: ast.Call) -> Iterator[Config]:
    given = {str(each.arg): each.value for each in node.keywords}
    thing = node.args[0] if node.args else given.get("obj")
    prefix = given.get("namespace")
    namespace = str(prefix.value) if isinstance(prefix, ast.Constant) else ""
    if isinstance(thing, ast.Dict):
        yield Config(source, thing, namespace)
    elif isinstance(thing, ast.Constant) and isinstance(thing.value, str):
        yield from _named(sources, thing.value.replace(":", "."), namespace)
    elif thing is not None:
        name = dotted(thing)
        body = _inside(source, name)
        if body is not None:
            yield Config(source, body, namespace)
        else:
            first, dot, rest = name.partition(".")
            yield from _named(sources, f"{_imports(source).get(first, first)}{dot}{rest}", namespace)


def _named(sources: Sequence[Source], name: str, namespace: str) -> Iterator[Config]:
    """Yield what a full name stands for: a module, or a class or mapping of a module."""
    module, _, attribute = name.rpartition(".")
    for source in sources:
        if _is_module(source, name):
            yield Config(source, source.tree, namespace)
        elif module and _is_module(source, module) and (body := _inside(source, attribute)) is not None:
            yield Config(source, body, namespace)


def _is_module(source: Source, name: str) -> bool:
    path = Path(source.path).resolve().with_suffix("")
    parts = path.parts[:-1] if path.name == "__init__" else path.parts
    wanted = tuple(name.split("."))
    return bool(name) and parts[-len(wanted) :] == wanted


def _inside(source: Source, name: str) -> ast.AST | None:
    """Return the class or the mapping that a file has under a name."""
    value = source.constants.get(name)
    classes = (each for each in ast.walk(source.tree) if isinstance(each, ast.ClassDef) and each.name == name)
    return value if isinstance(value, ast.Dict) else next(classes, None)


def _imports(source: Source) -> dict[str, str]:
    """Return local name → full name of what a file imports; of a relative import, the part that is written."""
    names: dict[str, str] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom):
            before = f"{node.module}." if node.module else ""
            names |= {each.asname or each.name: before + each.name for each in node.names}
    return names
