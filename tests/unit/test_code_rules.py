"""Rules that a reading of the code can check.  ruff, mypy and import-linter check the others."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import kiqcluster
from kiqcluster.client import results
from kiqcluster.contrib.celery import catalogue
from kiqcluster.contrib.celery import results as celery_results
from kiqcluster.contrib.celery.checker import report
from kiqcluster.process import metrics
from kiqcluster.sidekiq.selectors import Urgency
from tests.django_stage import set_up_django

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(kiqcluster.__file__).parent

# Who may ask the operating system for what, and why.
READS_TIME = {
    "process/clock.py": "hands the time to all other code as an argument",
    "store/connection.py": "how long a connection has been unused, below the layer of the clock",
    "store/names.py": "the deadline of a look-up, below the layer of the clock",
    "store/store.py": "how long a connection has been unused, below the layer of the clock",
    "store/wire.py": "the deadline and the pace of an exchange, below the layer of the clock",
}
MAKES_CHANCE = {
    "supervisor/supervisor.py": "the one generator of the supervisor",
    "worker/child.py": "the one of a worker, seeded after the fork",
    "supervisor/fork.py": "reseeds the application's own, which the fork has copied",
    "testing/running.py": "the one of jobs that tests run, seeded so that their retries fall on the same seconds",
}
TOUCHES_ENVIRONMENT = {
    "process/config_sources.py": "reads settings",
    "process/config.py": "knows what $PWD says of the directory, where sockets go, and NO_COLOR",
    "cli.py": "hands KIQ_ENV and REDIS_URL to the application, and what systemd says to the supervisor",
    "contrib/django/commands.py": "hands the settings of Django to the command that it becomes",
    "ipc/site_hooks.py": "starts the program again with another PYTHONPATH, and puts the former back",
    "worker/child.py": "hands KIQ_SLOT and SIDEKIQ_WORKER_ID to the application",
    "worker/identity.py": "DYNO, which takes the host's place in an identity as in Sidekiq",
    "worker/process_entry.py": "DYNO again, for the process list",
    "testing/cluster.py": "hands it to the cluster of a test",
    "contrib/flask.py": "hands the REDIS_URL of the application to the commands",
}
ENDS_PROCESSES = {"ipc/exits.py"}
FORKS = {"supervisor/fork.py"}
STARTS_THREADS = {"process/service.py", "store/names.py"}  # the second: a look-up that may hang is nobody's to wait for

# Who may know where modules lie.  Data is read by importlib.resources, also out of an archive or a frozen program.
KNOWS_PLACES = {
    "application/loading.py": "leaves its own frames out of a traceback",
    "contrib/pyinstaller/__init__.py": "names the folder of the hook",
    "contrib/sentry.py": "which frames are ours",
    "features/history.py": "which frames are ours",
    "ipc/site_hooks.py": "a folder for PYTHONPATH",
    "process/logs/log.py": "the file of a record of the log",
    "worker/run/retry.py": "which frames are ours",
}

# Locks of what any process of the application uses, which it may fork while a thread holds one.
LOCKS_OF_CLIENTS = (
    "application",
    "client",
    "contrib",
    "features",
    "iterable",
    "job",
    "limits",
    "process",
    "store",
    "batches",
)
MAY_LOCK_OTHERWISE = {
    "iterable/loop.py": "of a worker's job: a process that it forks iterates no further",
    "limits.py": "of a running job: a process that it forks has no places",
    "process/boundary/beat_guard.py": "of a worker, which alone beats",
    "process/metrics.py": "of a worker and the supervisor",
    "process/service.py": "a client's threads are made anew in a forked process (client/store_service)",
    "store/engine/begin_calls.py": "of a worker, which alone begins jobs",
}

# How much a reader meets at once (docs/adr/0029).  A path in an exception is relative to the package.
LINES_OF_A_FILE = 500  # fewer; a tighter rule has code go where there is room, not where it belongs
LINES_OF_A_FUNCTION = 50  # fewer, without its decorators
MAX_FIELDS = 16  # of a class
MAX_MODULES = 16  # of a folder, besides its __init__
MAX_ROOT_MODULES = 14
MAX_PLACES, MAX_ARROWS = 27, 170  # folders and modules of the root; imports from one to another
MAY_BE_LONGER = {
    "worker/fetch/coordinator.py": "one state, which one lock guards",
    "worker/run/execution.py": "the steps of one run, in their order",
}
MAY_HAVE_MORE_FIELDS = {
    "worker/fetch/fetch.py:ReliableFetch": "its counters are written where each batch ends, without a call",
    "worker/parts.py:Parts": "each field is one part of a worker",
    "supervisor/supervisor.py:Supervisor": "makes the parts of the process, and each field is one part",
    "supervisor/cluster/state.py:ClusterState": "the state of the whole cluster, which pages and metrics read",
    "process/job_context.py:JobContext": "a field for each thing that is known of a run, without a further object",
    "process/config.py:Config": "a field for each setting",
    "application/options.py:JobOptions": "a field for each option of a job",
    "contrib/celery/declare.py:TaskOptions": "a field for each option of a task of Celery",
    "control/process_registry.py:RegisteredProcess": "a field for each column of Sidekiq's process list",
    "batches/records.py:BatchStatus": "a field for each thing that is known of a batch",
    "control/cluster_document.py:ClusterStatus": "a field for each key of /status",
}

# Who asks for errors among replies, each of which says what becomes of them (store/replies.py).
ASKS_FOR_ERRORS = ("exchange_each", "run_scripts_each", "finish_scripts")
HANDLES_ERRORS = {
    "client": "some of the jobs of a push are written, and others refused",
    "control/cancellation.py": "a process that is not told reads the mark with its next beat",
    "store": "the engine goes on with what was not refused",
    "web/security/guard.py": "a full Redis refuses a new secret, and has one already",
    "web/views/dashboard.py": "shows the refusal in the place of what INFO says",
    "worker": "the work goes on with what was not refused",
}
PASSES_ERRORS_ON = {"_send_text", "run_scripts_each"}

# Who catches whatever is raised, and goes on.  Others raise it again at the end of the handler.
GOES_ON_AFTER_ANYTHING = {
    "contrib/django/task_backend/runner.py": "raises an error so that receivers of a signal find it as the handled one",
    "contrib/run_errors.py": "a boundary of its own, a block: the libraries of integrations",
    "errors.py": "the text of a value, below the layer of the boundary",
    "process/boundary/calls.py": "the boundary",
    "process/logs/job_logger.py": "a logger that fails after the job",
    "process/service.py": "the top of a thread, and what a thread raises for its caller",
    "supervisor/fork.py": "the top of a process",
    "worker/run/async_processor.py": "a step of a job, and a unit that goes back although a handler fails",
    "worker/run/execution.py": "a run",
    "worker/run/feature_rows.py": "rows of a unit that is not begun: the error comes again at its turn",
    "worker/run/processor.py": "a unit goes back although a handler fails",
    "worker/run/retry.py": "a traceback, whose error may be anything",
    "worker/run/timed_out.py": "a unit goes back although a handler fails",
}

MAY_SLEEP = re.compile(r"\b(?:time|asyncio)\.sleep\b|from (?:time|asyncio) import")  # else a file need not be parsed
RAISES_INTO_THREADS = re.compile(r"SetAsyncExc|ctypes\.pythonapi|interrupt_main|pthread_kill")

# Spellings that only keys.py knows.
KEY = re.compile(r"^(queue:|kiq:|stat:|[jh]\|)|:(work|workers)$|-(signals|marks)$")
# The home of one person, or the workshop of one machine.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:home|Users|root|work|workspace)/[\w.-]+|[A-Z]:\\Users\\")
NOT_OURS = {".git", ".venv", "dist", "build", "__pycache__", ".hypothesis", "node_modules"}
SOURCE_KINDS = {".py", ".pyi", ".lua", ".rb", ".md", ".toml", ".cfg", ".yml", ".yaml", ".sh", ".service", ".txt", ""}


def module_paths() -> list[str]:
    """Return the path of each module within the package."""
    paths = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    return sorted(path for path in paths if "-" not in path)  # else it is no module: a hook of PyInstaller


@cache
def modules() -> dict[str, ast.Module]:
    """Return path within the package → syntax tree.  Takes seconds, so nothing calls it while tests are collected."""
    return {path: ast.parse((PACKAGE / path).read_text(), path) for path in module_paths()}


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Return all nodes of a module: each rule looks at them, and a walk takes a second and a half."""
    return list(ast.walk(tree))


@cache
def spelt(tree: ast.Module) -> list[tuple[int, str]]:
    """Return line and dotted name of each attribute, and of each name that is imported from a module."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Attribute):
            found.append((node.lineno, dotted(node)))
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Keep half a million nodes for these tests alone."""
    yield
    for each in (modules, nodes, spelt):
        each.cache_clear()


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for such an expression, else nothing."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def uses(tree: ast.Module, *names: str) -> Iterator[str]:
    """Yield `line: name` for each use of a dotted name, whether it is spelt out or imported by itself."""
    yield from (f"{line}: {name}" for line, name in spelt(tree) if name in names)


def imports(tree: ast.Module, module: str) -> bool:
    """Return whether a module is imported, as a whole or in part."""
    return any(
        (isinstance(node, ast.Import) and any(alias.name == module for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == module)
        for node in nodes(tree)
    )


def outside(allowed: object, *names: str) -> list[str]:
    """Return where names are used by modules that may not."""
    assert isinstance(allowed, set | dict)
    return [f"{path}:{use}" for path, tree in modules().items() if path not in allowed for use in uses(tree, *names)]


def idle(allowed: set[str] | dict[str, str], *names: str) -> list[str]:
    """Return the modules that may use names and do not: an exception that has lost its reason."""
    return [path for path in allowed if not list(uses(modules()[path], *names))]


def docstrings(tree: ast.Module) -> set[int]:
    """Return the ids of the nodes that are docstrings."""
    return {
        id(node.body[0].value)
        for node in nodes(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }


class TestTimeAndChance:
    def test_only_the_clock_and_the_store_ask_for_the_time(self) -> None:
        assert [path for path, tree in modules().items() if imports(tree, "time")] == sorted(READS_TIME)
        assert outside(READS_TIME, "datetime.now", "datetime.utcnow", "datetime.today", "date.today") == []
        assert outside(READS_TIME, "datetime.datetime.now", "datetime.date.today") == []

    def test_chance_is_passed_in(self) -> None:
        calls = {
            path: [node.lineno for node in nodes(tree) if isinstance(node, ast.Call) and dotted(node.func) == "Random"]
            for path, tree in modules().items()
        }
        shared = [path for path, tree in modules().items() if imports(tree, "random") and "random" in _bound(tree)]

        assert {path for path, lines in calls.items() if lines} | set(shared) == set(MAKES_CHANCE)


def _bound(tree: ast.Module) -> set[str]:
    """Return the modules that are imported as a whole."""
    return {alias.name for node in nodes(tree) if isinstance(node, ast.Import) for alias in node.names}


class TestOperatingSystem:
    def test_the_environment_is_the_configurations(self) -> None:
        assert outside(TOUCHES_ENVIRONMENT, "os.environ", "os.getenv", "os.putenv") == []
        assert idle(TOUCHES_ENVIRONMENT, "os.environ") == []

    def test_the_environment_is_never_looked_at_while_importing(self) -> None:
        for path, tree in modules().items():
            top = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
            assert list(uses(ast.Module(top, []), "os.environ", "os.getenv")) == [], path

    def test_a_process_is_left_in_one_place(self) -> None:
        assert outside(ENDS_PROCESSES, "os._exit") == []
        assert outside(set(), "sys.exit") == []

    def test_forks_happen_in_one_place(self) -> None:
        assert outside(FORKS, "os.fork") == []

    def test_every_thread_is_a_service(self) -> None:
        assert outside(STARTS_THREADS, "threading.Thread", "threading.Timer") == []
        assert outside(set(), "concurrent.futures.ThreadPoolExecutor") == []

    def test_locks_of_clients_are_free_in_forked_processes(self) -> None:
        kinds = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")
        names = [f"threading.{kind}" for kind in kinds]
        found = [
            f"{path}:{use}"
            for path, tree in modules().items()
            if path.startswith(LOCKS_OF_CLIENTS) and path not in MAY_LOCK_OTHERWISE
            for use in uses(tree, *names)
        ]

        assert found == [], "\n".join(found)

    def test_nothing_is_raised_into_the_thread_of_a_job(self) -> None:
        """Timeouts, cancellations and stops ask the job, or end its process."""
        found = [path for path in module_paths() if RAISES_INTO_THREADS.search((PACKAGE / path).read_text())]

        assert found == []

    def test_nobody_sleeps_where_nothing_can_wake_them(self) -> None:
        assert outside(set(), "time.sleep") == []


def test_every_text_is_read_and_written_in_a_named_encoding() -> None:
    """The locale's encoding is not that of our files.  ruff (PLW1514) knows only paths whose type it can see."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and _is_of_text(node) and "encoding" not in {each.arg for each in node.keywords}
    ]

    assert found == []


def _is_of_text(call: ast.Call) -> bool:
    """Return whether a call reads or writes a file, or the streams of a process, as text."""
    name = dotted(call.func) or getattr(call.func, "attr", "")
    keywords = {each.arg: each.value for each in call.keywords}
    if "text" in keywords and name.partition(".")[0] == "subprocess":
        return True
    if name.rpartition(".")[2] in ("read_text", "write_text", "TextIOWrapper", "fdopen"):
        return True
    mode = keywords.get("mode", call.args[0] if call.args else ast.Constant("r"))
    is_method = (
        isinstance(call.func, ast.Attribute) and call.func.attr == "open" and not name.startswith(("os.", "self."))
    )
    return is_method and isinstance(mode, ast.Constant) and bool(re.fullmatch(r"[rwax+]+t?", str(mode.value)))


def test_an_assertion_asks_nobody() -> None:
    """It says of our own values which type they have.  What the environment can break is an error that says so."""
    found = [
        f"{path}:{call.lineno}: {dotted(call.func)}"
        for path, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Assert)
        for call in ast.walk(node.test)
        if isinstance(call, ast.Call) and dotted(call.func) != "isinstance"
    ]

    assert found == []


def test_only_those_go_on_after_anything_who_say_why() -> None:
    found = {path for path, tree in modules().items() for node in nodes(tree) if _goes_on_after_anything(node)}

    assert found == GOES_ON_AFTER_ANYTHING.keys()


def _goes_on_after_anything(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        is_any = node.type is None or any(dotted(kind) == "BaseException" for kind in kinds if kind is not None)
        last = node.body[-1]
        return is_any and not (isinstance(last, ast.Raise) and (last.exc is None or isinstance(last.exc, ast.Name)))
    if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "suppress":
        return any(dotted(each) == "BaseException" for each in node.args)
    is_exit = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in ("__exit__", "__aexit__")
    return is_exit and not (isinstance(node.returns, ast.Constant) and node.returns.value is None)


def test_a_keyword_of_a_job_may_have_any_name() -> None:
    """Also `self` or `cls`: what takes the arguments of a job takes nothing else by keyword."""
    found = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.args.kwarg and node.args.kwarg.annotation and dotted(node.args.kwarg.annotation).endswith(".kwargs")
        if {"self", "cls"} & {each.arg for each in node.args.args}
        if not _is_declaration(node)
    ]

    assert found == []


def _is_declaration(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is one of a protocol, or the form of an overload: `...`."""
    body = function.body[-1]
    return isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant) and body.value.value is ...


def test_data_is_read_by_importlib_resources() -> None:
    found = {
        path
        for path, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Name) and node.id == "__file__"
    }

    assert found == set(KNOWS_PLACES)


def test_no_lock_of_fetch_is_held_over_a_round_trip() -> None:
    """Whose turn it is has the lock and no connection; what fetches has the connection and no lock."""
    engine, connection = "kiqcluster.store.engine.engine.Engine", "kiqcluster.store.Connection"

    assert (
        list(
            uses(modules()["worker/fetch/coordinator.py"], engine, connection, "kiqcluster.store.connection.Connection")
        )
        == []
    )
    assert not imports(modules()["worker/fetch/coordinator.py"], "kiqcluster.store")
    for path in ("worker/fetch/fetch.py", "worker/fetch/membership.py"):
        attributes = {node.attr for node in nodes(modules()[path]) if isinstance(node, ast.Attribute)}
        assert "lock" not in attributes
        assert list(uses(modules()[path], "threading.Lock", "threading.RLock", "threading.Condition")) == []


class TestErrorReplies:
    def test_only_those_ask_for_them_who_say_why(self) -> None:
        found = {path for path, tree in modules().items() if any(_asking(tree))}

        assert {path for path in found if not any(path.startswith(home) for home in HANDLES_ERRORS)} == set()
        assert [home for home in HANDLES_ERRORS if not any(path.startswith(home) for path in found)] == []

    def test_who_asks_for_them_looks_at_them(self) -> None:
        """A function that binds answers names ErrorReply, or hands them to `readable`, which does."""
        for path, tree in modules().items():
            for function, is_bound in _asking(tree):
                names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
                looks = bool(names & {"ErrorReply", "readable", "unwrapped"}) or function.name in PASSES_ERRORS_ON
                assert looks or not is_bound, f"{path}: {function.name}"


def _asking(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, bool]]:
    """Yield the functions that ask for errors among replies, and whether they use the answers."""
    calls = {id(node) for node in nodes(tree) if isinstance(node, ast.Call) and _asks_for_errors(node)}
    dropped = {id(node.value) for node in nodes(tree) if isinstance(node, ast.Expr)} if calls else set()
    for function in nodes(tree) if calls else ():
        if isinstance(function, ast.FunctionDef):
            asking = calls & {id(node) for node in ast.walk(function)}
            yield from ((function, call not in dropped) for call in asking)


def _asks_for_errors(call: ast.Call) -> bool:
    return dotted(call.func).rpartition(".")[2] in ASKS_FOR_ERRORS


def test_a_list_of_words_is_written_once() -> None:
    """What one module accepts, and another one checks or shows, is one list: a type, or a constant."""
    places: dict[frozenset[str], set[str]] = {}
    for path, tree in modules().items():
        for words in _word_lists(tree):
            places.setdefault(words, set()).add(path)

    assert {words: paths for words, paths in places.items() if len(paths) > 1} == {}


def _word_lists(tree: ast.Module) -> Iterator[frozenset[str]]:
    """Yield the tuples and sets of texts in constants of a module, and the texts of its literal types."""
    constants = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None)
    whole = [
        node for node in constants if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple))
    ]
    found = [each for node in whole for each in ast.walk(node) if isinstance(each, ast.Tuple | ast.Set)]
    found += [
        node.slice
        for node in nodes(tree)
        if isinstance(node, ast.Subscript) and dotted(node.value) == "Literal" and isinstance(node.slice, ast.Tuple)
    ]
    for each in found:
        texts = [item.value for item in each.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        if len(texts) == len(each.elts) > 1:
            yield frozenset(texts)


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (Urgency, metrics.TARGETS),
        (results.State, celery_results.STATES),
        (catalogue.Verdict, report.WORDS),
    ],
)
def test_a_table_has_a_row_for_each_word(words: object, rows: Mapping[str, object]) -> None:
    assert set(get_args(words)) == rows.keys()


def test_only_keys_spells_redis_keys() -> None:
    spelt = []
    for path in modules().keys() - {"sidekiq/keys.py"}:
        ours = docstrings(modules()[path])
        for node in nodes(modules()[path]):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in ours and KEY.search(node.value):
                spelt.append(f"{path}:{node.lineno}: {node.value!r}")

    assert spelt == []


class TestModules:
    def test_each_says_what_it_is_for(self) -> None:
        assert [path for path, tree in modules().items() if not ast.get_docstring(tree)] == []

    def test_all_names_exist_and_are_sorted_as_ruff_sorts_them(self) -> None:
        set_up_django()  # models are imported only where Django is set up
        for path in module_paths():
            if path == "__main__.py":
                continue
            module = importlib.import_module(_module_name(path))
            names = list(getattr(module, "__all__", []))

            assert [name for name in names if not hasattr(module, name)] == [], path
            assert names == sorted(names, key=_ruff_order), path
            assert len(set(names)) == len(names), path

    def test_what_others_import_is_among_them(self) -> None:
        set_up_django()
        missing = set()
        for path, tree in modules().items():
            for node in nodes(tree):
                if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("kiqcluster"):
                    continue
                source = importlib.import_module(node.module or "")
                for alias in node.names:
                    is_module = (
                        Path(PACKAGE.parent, *f"{node.module}.{alias.name}".split(".")).with_suffix(".py").exists()
                    )
                    is_folder = Path(PACKAGE.parent, *f"{node.module}.{alias.name}".split(".")).is_dir()
                    if not (is_module or is_folder or alias.name in getattr(source, "__all__", [])):
                        missing.add(f"{node.module}.__all__ lacks {alias.name} (used by {path})")

        assert sorted(missing) == []


class TestSizes:
    def test_files(self) -> None:
        lines = {path: len((PACKAGE / path).read_text().splitlines()) for path in module_paths()}

        assert {path for path, count in lines.items() if count >= LINES_OF_A_FILE} == set(MAY_BE_LONGER)

    def test_functions(self) -> None:
        long = [
            f"{path}:{node.lineno}: {node.name}"
            for path, tree in modules().items()
            for node in nodes(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or 0) - node.lineno + 1 >= LINES_OF_A_FUNCTION
        ]

        assert long == []

    def test_classes(self) -> None:
        large = {
            f"{path}:{node.name}"
            for path, tree in modules().items()
            for node in nodes(tree)
            if isinstance(node, ast.ClassDef) and len(fields(node)) > MAX_FIELDS
        }

        assert large == set(MAY_HAVE_MORE_FIELDS)

    def test_folders(self) -> None:
        counts = Counter(str(Path(path).parent) for path in module_paths() if not path.endswith("__init__.py"))

        assert counts["."] <= MAX_ROOT_MODULES
        assert [folder for folder, count in counts.items() if count > MAX_MODULES] == []

    def test_the_whole_can_be_drawn(self) -> None:
        arrows = {
            (place(path), target)
            for path, tree in modules().items()
            for target in imported_places(tree) - {place(path)}
        }

        assert len({place(path) for path in modules()}) <= MAX_PLACES
        assert len(arrows) <= MAX_ARROWS


def fields(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class: those that it declares, and those that its methods set."""
    found = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return found | {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and dotted(each.value) == "self"
    }


def place(path: str) -> str:
    """Return the folder of the root that a module is in, or the module of the root that it is."""
    return Path(path).parts[0].removesuffix(".py")


def imported_places(tree: ast.Module) -> set[str]:
    """Return the places that a module imports; `from kiqcluster import x` counts as x, or as the root's __init__."""
    found = set()
    for node in nodes(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            package, _, rest = name.partition(".")
            first = rest.partition(".")[0]
            if package == PACKAGE.name:
                is_place = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").exists()
                found.add(first if first and is_place else "__init__")
    return found


FOLDER_ROW = re.compile(r"\*\*`([\w/]+)/`\*\*")
NAME = re.compile(r"`(\w+)`")


def architecture(title: str) -> str:
    """Return the part of ARCHITECTURE.md under a title."""
    return (ROOT / "ARCHITECTURE.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def described_modules() -> Counter[str]:
    """Return `folder/module` → number of rows that describe it, in ARCHITECTURE.md."""
    found: Counter[str] = Counter()
    folder = ""
    for line in architecture("Where things are").splitlines():
        if not line.startswith(("| **", "| `")):
            continue
        first = line.split("|")[1]
        if match := FOLDER_ROW.search(first):
            folder = "" if match[1] == PACKAGE.name else f"{match[1]}/"
        found.update(f"{folder}{name}" for name in NAME.findall(FOLDER_ROW.sub("", first)))
    return found


class TestMaps:
    """The lists of modules are complete: they tell a reader which file has a rule."""

    def test_a_folder_lists_its_modules(self) -> None:
        for path in [path for path in module_paths() if path.endswith("/__init__.py")]:
            text = ast.get_docstring(modules()[path]) or ""
            folder = (PACKAGE / path).parent
            names = {each.stem for each in folder.glob("*.py") if not each.stem.startswith("__")}

            assert {name for name in names if not re.search(rf"(?<!\w){name}(?!\w)", text)} == set(), path

    def test_architecture_describes_each_module_once(self) -> None:
        ours = {path.removesuffix(".py") for path in modules() if not path.endswith("__init__.py")}
        scripts = {path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.lua")}

        assert described_modules() == Counter(ours | scripts)

    def test_architecture_has_the_layers_that_are_checked(self) -> None:
        contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        (layers,) = [each["layers"] for each in contracts if each.get("containers") == ["kiqcluster"]]

        assert " → ".join(f"`{each}`" for each in layers) in " ".join(architecture("Where things are").split())

    def test_the_reading_path_can_be_read_in_a_day(self) -> None:
        text = architecture("Reading path")
        lines, folder = 0, ""
        for name in re.findall(r"`([\w/.]+)`", text.partition("\n\n[docs/")[0]):
            folder = name if name.endswith("/") else folder
            lines += 0 if name.endswith("/") else len((PACKAGE / folder.rstrip("/") / name).read_text().splitlines())

        assert 1_000 < lines <= 3_000


def _module_name(path: str) -> str:
    parts = ["kiqcluster", *Path(path).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _ruff_order(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """CONSTANTS, then Classes, then the rest; digits by their value (RUF022)."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    words = re.findall(r"\d+|\D+", name)
    return kind, [(0, int(word)) if word.isdigit() else (1, word) for word in words]


def test_the_public_names_are_these() -> None:
    assert set(kiqcluster.__all__) == {
        "DISCARD",
        "KILL",
        "Client",
        "Interrupted",
        "Job",
        "JobCancelled",
        "JobContext",
        "JobLogger",
        "KiqError",
        "Outcome",
        "Push",
        "RetryError",
        "Run",
        "Store",
        "__version__",
        "allow_unrouted",
        "application_context",
        "cancel",
        "client_middleware",
        "configure",
        "current_context",
        "current_job",
        "death_handler",
        "error_handler",
        "job",
        "job_logger",
        "limits",
        "on",
        "policies",
        "server_middleware",
    }


class TestTests:
    def test_none_of_them_sleeps(self) -> None:
        for path in sorted((ROOT / "tests").rglob("test_*.py")):
            text = path.read_text()

            assert not MAY_SLEEP.search(text) or list(uses(ast.parse(text), "time.sleep", "asyncio.sleep")) == [], path
            assert text.startswith('"""'), f"{path} opens without a docstring"


def test_no_file_names_a_place_of_one_machine() -> None:
    found = []
    for path in sorted(_own_files(ROOT)):
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE_PATH.finditer(text)]

    assert found == []


def _own_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in NOT_OURS:  # also where .git is a file, in a worktree
            continue
        if path.is_dir():
            is_cache = path.name.endswith(("_cache", ".egg-info")) or path.name == ".kiqcluster"
            if not is_cache:
                yield from _own_files(path)
        elif path.suffix in SOURCE_KINDS and not path.is_symlink():
            yield path
