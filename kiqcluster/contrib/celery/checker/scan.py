"""Scan: the uses of Celery in the files of a code base, each with what it becomes here.

Finding   one use: file, line, its kind and name, a verdict and advice of the catalogue
scan      sources → findings, in the order of files and lines
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kiqcluster.contrib.celery.catalogue import (
    APPLY,
    BASE,
    CALL,
    DECLARATION,
    GET,
    NAMES,
    REQUEST,
    RESULT,
    RETRY,
    REVOKE,
    SIGNATURE,
    TASK,
    Entry,
    find,
)
from kiqcluster.contrib.celery.checker.assigned import settings_of
from kiqcluster.contrib.celery.checker.beat import beat_entries, schedule_findings
from kiqcluster.contrib.celery.checker.finding import Finding, finding
from kiqcluster.contrib.celery.checker.known import Known, decorators_of
from kiqcluster.contrib.celery.checker.options import Rules, no_rules, of_build, of_keywords, values_of
from kiqcluster.contrib.celery.checker.settings import setting_findings
from kiqcluster.contrib.celery.checker.signals import PACKAGES, SIGNALS
from kiqcluster.contrib.celery.checker.source import Source, call_name, dotted, is_celery, public_name
from kiqcluster.contrib.celery.checker.unfollowed import unfollowed_findings, unread_findings
from kiqcluster.contrib.celery.rules import UNREAD as ANY
from kiqcluster.contrib.celery.rules import most_retries, of_call, of_declaration, of_retry, of_revoke
from kiqcluster.contrib.celery.settings import APP, BUILD
from kiqcluster.words import page

__all__ = ["scan"]

UNREAD = Entry("none", "it cannot be read")
IMPORTED = Entry("works", "import it from kiqcluster.contrib.celery")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SENDS = ("delay", "apply_async", "send_task", "AsyncResult")  # calls that return a result
CANVAS = ("chain", "group", "chord", "chunks", "signature", "subtask", "Signature", "xmap", "xstarmap")
SIGNATURES = ("s", "si", "signature", "subtask", "map", "starmap", "chunks")
IS_CANVAS = Entry("change", SIGNATURE)
IS_COROUTINE = Entry("change", f"declare it with @kiqcluster.job, which takes coroutines ({page('guides/async')})")
VERBS: Mapping[str, tuple[Mapping[str, Entry], Rules]] = {  # calls of a task whose options have a table
    "retry": (RETRY, partial(of_retry, declared=ANY)),
    "apply": (APPLY, no_rules),
}
RESULT_VERBS: Mapping[str, tuple[Mapping[str, Entry], Rules]] = {"get": (GET, no_rules), "revoke": (REVOKE, of_revoke)}
IS_CLASS = Entry("none", f"declare a function; hooks are options ({page('guides/middleware')})")


@dataclass(frozen=True, slots=True)
class _File:
    """One file, and the names of all files."""

    source: Source
    known: Known

    def found(self, node: ast.AST, kind: str, name: str, entry: Entry) -> Finding:
        return finding(self.source.path, node, kind, name, entry)

    def keywords(
        self, keywords: Sequence[ast.keyword], kind: str, table: Mapping[str, Entry], rules: Rules = no_rules
    ) -> Iterator[Finding]:
        return of_keywords(self.source, keywords, kind, table, rules)

    def is_app(self, node: ast.AST) -> bool:
        return self.known.is_app(self.source, node)

    def may_be_app(self, node: ast.AST) -> bool:
        return self.is_app(node) or self.known.is_unfollowed(self.source, node)

    def is_task(self, node: ast.AST) -> bool:
        return self.known.is_task(self.source, node)


def scan(sources: Sequence[Source]) -> list[Finding]:
    """Return all uses of Celery."""
    known = Known.of(sources)
    findings: set[Finding] = set()
    for source in sources:
        file = _File(source, known)
        if source.error:
            findings.add(file.found(source.tree, "file", source.error, UNREAD))
        for node in source.nodes:
            findings.update(_of_node(file, node))
        findings.update(unfollowed_findings(source, known))
    settings = list(settings_of(sources, known))
    findings.update(setting_findings(sources, settings))
    findings.update(unread_findings(known.modules))
    findings.update(schedule_findings(beat_entries(sources, known, settings)))
    return sorted(findings, key=lambda each: (each.path, each.line, each.kind, each.name))


def _of_node(file: _File, node: ast.AST) -> Iterator[Finding]:
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from _of_import(file, node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _of_function(file, node)
        case ast.ClassDef():
            for base in node.bases:
                is_of_app = isinstance(base, ast.Attribute) and base.attr == "Task" and file.may_be_app(base.value)
                if public_name(file.source.resolve(base)) == "Task" or is_of_app:
                    yield file.found(node, "task", node.name, IS_CLASS)
        case ast.Call():
            yield from _of_call(file, node)
        case ast.Attribute():
            yield from _of_attribute(file, node)
        case ast.Constant() if isinstance(node.value, str) and node.value in PACKAGES and "_" in node.value:
            yield file.found(node, "package", node.value, PACKAGES[node.value])
    yield from _of_results(file, node)


def _of_import(file: _File, node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
    for module in modules:
        package = module.partition(".")[0]
        if package in PACKAGES and not getattr(node, "level", 0):
            yield file.found(node, "package", module, PACKAGES[package])
    if isinstance(node, ast.Import):
        for alias in node.names:
            if is_celery(alias.name):
                yield file.found(node, "import", alias.name, IMPORTED)
        return
    if node.level or not is_celery(node.module or ""):
        return
    for alias in node.names:
        full = f"{node.module}.{alias.name}"
        entry = find(SIGNALS, alias.name) if node.module == "celery.signals" else find(NAMES, public_name(full))
        is_plain = entry.verdict == "works" and not entry.advice
        kind = "signal" if node.module == "celery.signals" else "import"
        yield file.found(node, kind, full, IMPORTED if is_plain else entry)


def _of_function(file: _File, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Finding]:
    """Yield the declaration of a task, its options, and what it does with `self`."""
    for decorator in decorators_of(file.source, file.known, node):
        is_async = isinstance(node, ast.AsyncFunctionDef)
        yield file.found(node, "task", node.name, IS_COROUTINE if is_async else Entry("works"))
        keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
        yield from file.keywords(keywords, "option", DECLARATION, of_declaration)
        if any(each.arg == "bind" and _constant(each.value) is True for each in keywords) and node.args.args:
            most = most_retries(values_of(file.source, keywords))
            yield from _of_self(file, node, node.args.args[0].arg, partial(of_retry, declared=most))


def _of_self(file: _File, function: ast.AST, own: str, retries: Rules) -> Iterator[Finding]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and dotted(node.func) == f"{own}.retry":
            yield file.found(node, "retry", "retry", TASK["retry"])
            yield from file.keywords(node.keywords, "retry", RETRY, retries)
        elif isinstance(node, ast.Attribute) and dotted(node).startswith(f"{own}.request."):
            name = dotted(node).split(".")[2]
            yield file.found(node, "request", name, find(REQUEST, name))
        elif isinstance(node, ast.Attribute) and dotted(node.value) == own and node.attr not in ("request", "retry"):
            yield file.found(node, "task", f"{own}.{node.attr}", TASK.get(node.attr, BASE))


def _of_call(file: _File, node: ast.Call) -> Iterator[Finding]:
    name = call_name(file.source, node)
    if name == "Celery":
        yield from file.keywords(node.keywords, "app", BUILD, of_build)
        return
    if name and find(NAMES, name).verdict != "works":
        kind = "schedule" if name in ("crontab", "schedule", "solar") else "call"
        yield file.found(node, kind, name, find(NAMES, name))
    if not isinstance(node.func, ast.Attribute):
        return
    verb, owner = node.func.attr, node.func.value
    if verb in ("delay", "apply_async") and _is_canvas(file, owner):
        yield file.found(node, "canvas", f"….{verb}", IS_CANVAS)
        return
    if verb in ("delay", "apply_async") or (verb == "send_task" and file.is_app(owner)):
        yield file.found(node, "call", f"{dotted(owner) or '…'}.{verb}", Entry("works"))
        yield from file.keywords(node.keywords if verb != "delay" else [], "call", CALL, of_call)
    elif file.is_task(owner):
        kind = "call" if find(TASK, verb).verdict == "works" else "canvas"
        yield file.found(node, kind, f"{dotted(owner)}.{verb}", find(TASK, verb))
        if verb in VERBS:
            yield from file.keywords(node.keywords, verb, *VERBS[verb])


def _is_canvas(file: _File, node: ast.AST) -> bool:
    """Return whether an expression makes a signature: chain(…), add.s(1), first.s() | second.s()."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _is_canvas(file, node.left) or _is_canvas(file, node.right)
    if not isinstance(node, ast.Call):
        return False
    if call_name(file.source, node) in CANVAS:
        return True
    method = node.func if isinstance(node.func, ast.Attribute) else None
    return method is not None and (
        (method.attr in SIGNATURES and file.is_task(method.value)) or _is_canvas(file, method.value)
    )


def _of_attribute(file: _File, node: ast.Attribute) -> Iterator[Finding]:
    if file.is_app(node.value) and node.attr not in ("task", "conf", "send_task"):
        yield file.found(node, "app", f"{dotted(node.value) or '…'}.{node.attr}", find(APP, node.attr))
    resolved = file.source.resolve(node)
    if resolved.startswith("celery.signals."):
        name = resolved.split(".")[2]
        yield file.found(node, "signal", name, find(SIGNALS, name))


def _of_results(file: _File, scope: ast.AST) -> Iterator[Finding]:
    """Yield what is done with results: of a call, and of a name that a call was assigned to in the same scope."""
    if isinstance(scope, ast.Attribute) and _is_send(scope.value):
        yield file.found(scope, "result", scope.attr, find(RESULT, scope.attr))
    if isinstance(scope, ast.Call) and isinstance(scope.func, ast.Attribute) and _is_send(scope.func.value):
        yield from _of_result_call(file, scope)
    if not isinstance(scope, (ast.Module, *FUNCTIONS)):
        return
    names = {
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _is_send(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield file.found(node, "result", node.attr, find(RESULT, node.attr))
        elif isinstance(node, ast.Call) and dotted(node.func).partition(".")[0] in names:
            yield from _of_result_call(file, node)


def _of_result_call(file: _File, node: ast.Call) -> Iterator[Finding]:
    """Yield the options of get(…) and revoke(…)."""
    verb = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if verb in RESULT_VERBS:
        yield from file.keywords(node.keywords, "result", *RESULT_VERBS[verb])


def _is_send(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in SENDS


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None
