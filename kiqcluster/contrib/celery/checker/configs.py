"""Configs: the modules, classes and mappings that config_from_object(…) is given, found in the files of a code base.

Config       one of them: the file in which it is, and its syntax
configs_of   sources → configs; a module `celeryconfig` is one, since Celery reads it without being told
unread_of    sources → the calls whose settings are in none of the files, or in one of several that may be meant

Flask keeps a mapping in its own settings, app.config["CELERY"].  conf.update(NAME) and update(**NAME) are read as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import NamedTuple

from kiqcluster.contrib.celery.checker.modules import Modules
from kiqcluster.contrib.celery.checker.source import Origin, Source, assigned, dotted

__all__ = ["Config", "configs_of", "unread_of"]

DEFAULT = "celeryconfig"
FLASK_SETTERS = ("from_mapping", "update")  # of app.config


class Config(NamedTuple):
    """What has the settings.  body: a module, a class or a mapping.  namespace: prefix of the keys, "" for none."""

    source: Source
    body: ast.AST
    namespace: str = ""


def configs_of(modules: Modules) -> Iterator[Config]:
    """Yield each config once."""
    found: dict[int, Config] = {}
    for source in modules.sources.values():
        if modules.name_of(source) in (DEFAULT, None) and source.file.stem == DEFAULT:
            found[id(source.tree)] = Config(source, source.tree)
        for call in _calls(source):
            for config in _of_call(modules, source, call):
                found[id(config.body)] = config
    yield from found.values()


def unread_of(modules: Modules) -> Iterator[tuple[Source, ast.Call, Sequence[Config]]]:
    """Yield the calls of which no file tells the settings, or several that may be meant: those are given."""
    for source in modules.sources.values():
        for call in _calls(source):
            is_named = isinstance(_given(call), ast.Constant)  # a module, which may be one of a library
            found = list(_of_call(modules, source, call))
            is_unread = _given(call) is not None and not is_named and not found
            if is_unread or (len(found) > 1 and not _flask_key(_given(call))):
                yield source, call, found


def _calls(source: Source) -> Iterator[ast.Call]:
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="config_from_object")):
                yield node
            case ast.Call(func=ast.Attribute(attr="update", value=ast.Attribute(attr="conf"))):
                if not isinstance(_given(node), ast.Dict | NoneType):  # what is written out there, assigned.py reads
                    yield node


def _given(call: ast.Call) -> ast.expr | None:
    return (
        call.args[0] if call.args else next((each.value for each in call.keywords if each.arg in ("obj", None)), None)
    )


def _flask_key(node: ast.AST | None) -> str:
    """Return the key of `app.config["KEY"]`, else nothing."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="config"), slice=ast.Constant(value=str(key))):
            return key
    return ""


def _of_flask(modules: Modules, key: str, namespace: str) -> Iterator[Config]:
    """Yield the mappings that files set as a key of Flask's settings."""
    for source in modules.sources.values():
        for node in source.nodes:
            for value in _set_as(node, key):
                named = source.constants.get(value.id, value) if isinstance(value, ast.Name) else value
                if (mapping := _mapping(named)) is not None:
                    yield Config(source, mapping, namespace)


def _set_as(node: ast.AST, key: str) -> Iterator[ast.expr]:
    """Yield the value of from_mapping(KEY=…), config["KEY"] = …, and of KEY = … in a module or a class."""
    if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in FLASK_SETTERS:
        yield from (each.value for each in node.keywords if each.arg == key)
    for target, value in assigned(node):
        if _flask_key(target) == key or (isinstance(target, ast.Name) and target.id == key):
            yield value


def _mapping(node: ast.AST) -> ast.Dict | None:
    """Return a mapping that is written out: {…} or dict(…)."""
    if isinstance(node, ast.Call) and dotted(node.func) == "dict" and not node.args:
        pairs = [(ast.Constant(each.arg), each.value) for each in node.keywords if each.arg is not None]
        return ast.copy_location(ast.Dict([key for key, _ in pairs], [value for _, value in pairs]), node)
    return node if isinstance(node, ast.Dict) else None


def _of_call(modules: Modules, source: Source, node: ast.Call) -> Iterator[Config]:
    given = {str(each.arg): each.value for each in node.keywords}
    thing = _given(node)
    prefix = given.get("namespace")
    namespace = str(prefix.value) if isinstance(prefix, ast.Constant) else ""
    if (mapping := _mapping(thing or ast.Pass())) is not None:
        yield Config(source, mapping, namespace)
    elif key := _flask_key(thing):
        yield from _of_flask(modules, key, namespace)
    elif isinstance(thing, ast.Constant) and isinstance(thing.value, str):
        full = thing.value.replace(":", ".")
        yield from _imported(modules, source, Origin(None, tuple(full.split("."))), namespace)
    elif thing is not None and dotted(thing):
        yield from _named(modules, source, dotted(thing), namespace)


def _named(modules: Modules, source: Source, name: str, namespace: str) -> Iterator[Config]:
    """Yield what an expression names: a class or mapping of a file, or a module that the file imports."""
    bodies = [
        Config(modules.sources[file], body, namespace)
        for file, there in modules.places(source, name)
        if (body := _inside(modules.sources[file], there)) is not None
    ]
    origin = source.origin_of(name)
    yield from bodies if bodies or origin is None else _imported(modules, source, origin, namespace)


def _imported(modules: Modules, source: Source, origin: Origin, namespace: str) -> Iterator[Config]:
    """Yield what a whole name stands for: a module, or a class or mapping of a module."""
    for file, rest in modules.find(source, origin):
        body = file.tree if not rest else _inside(file, rest)
        if body is not None:
            yield Config(file, body, namespace)


def _inside(source: Source, name: str) -> ast.AST | None:
    """Return the class or the mapping that a file has under a name."""
    value = _mapping(source.constants.get(name, ast.Pass()))
    classes = (each for each in source.nodes if isinstance(each, ast.ClassDef) and each.name == name)
    return value if value is not None else next(classes, None)
