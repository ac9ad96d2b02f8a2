"""Configs: the modules, classes and mappings that config_from_object(…) is given, found in the files of a code base.

Config       one of them: the file in which it is, and its syntax
configs_of   sources → configs; a module `celeryconfig` is one, since Celery reads it without being told
unread_of    sources → the calls whose settings are in none of the files

Flask keeps a mapping in its own settings, app.config["CELERY"], which is also given to conf.update(…).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kiqcluster.contrib.celery.checker.source import Source, assigned, dotted

__all__ = ["Config", "configs_of", "unread_of"]

DEFAULT = "celeryconfig"
FLASK_SETTERS = ("from_mapping", "update")  # of app.config


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
        for call in _calls(source):
            for config in _of_call(sources, source, call):
                found[id(config.body)] = config
    yield from found.values()


def unread_of(sources: Sequence[Source]) -> Iterator[tuple[Source, ast.Call]]:
    """Yield the calls that are given an expression of which no file tells the settings."""
    for source in sources:
        for call in _calls(source):
            is_named = isinstance(_given(call), ast.Constant)  # a module, which may be one of a library
            if _given(call) is not None and not is_named and not any(_of_call(sources, source, call)):
                yield source, call


def _calls(source: Source) -> Iterator[ast.Call]:
    for node in source.nodes:
        if isinstance(node, ast.Call):
            is_update = dotted(node.func).endswith(".conf.update") and _flask_key(_given(node))
            if is_update or dotted(node.func).endswith("config_from_object"):
                yield node


def _given(call: ast.Call) -> ast.expr | None:
    return call.args[0] if call.args else next((each.value for each in call.keywords if each.arg == "obj"), None)


def _flask_key(node: ast.AST | None) -> str:
    """Return the key of `app.config["KEY"]`, else nothing."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="config"), slice=ast.Constant(value=str(key))):
            return key
    return ""


def _of_flask(sources: Sequence[Source], key: str, namespace: str) -> Iterator[Config]:
    """Yield the mappings that files set as a key of Flask's settings."""
    for source in sources:
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


def _of_call(sources: Sequence[Source], source: Source, node: ast.Call) -> Iterator[Config]:
    given = {str(each.arg): each.value for each in node.keywords}
    thing = _given(node)
    prefix = given.get("namespace")
    namespace = str(prefix.value) if isinstance(prefix, ast.Constant) else ""
    if (mapping := _mapping(thing or ast.Pass())) is not None:
        yield Config(source, mapping, namespace)
    elif key := _flask_key(thing):
        yield from _of_flask(sources, key, namespace)
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
    value = _mapping(source.constants.get(name, ast.Pass()))
    classes = (each for each in source.nodes if isinstance(each, ast.ClassDef) and each.name == name)
    return value if value is not None else next(classes, None)


def _imports(source: Source) -> dict[str, str]:
    """Return local name → full name of what a file imports; of a relative import, the part that is written."""
    names: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom):
            before = f"{node.module}." if node.module else ""
            names |= {each.asname or each.name: before + each.name for each in node.names}
    return names
