"""The checker and the layer agree: a value that the layer refuses, the checker names, and the other way round.

Each case is a text.  The layer runs it, and the checker reads it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.contrib.celery import Celery, Retry, Unsupported, rules, shared_task
from kiqcluster.contrib.celery.catalogue import APPLY, CALL, DECLARATION, GET, RETRY, REVOKE
from kiqcluster.contrib.celery.checker.scan import scan
from kiqcluster.contrib.celery.checker.source import Source
from kiqcluster.contrib.celery.settings import BUILD, OF_BUILD, SETTINGS
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.testing import Fake, fake

VALUES = (
    "None", "True", "False", "0", "1", "-1", "1.5", "60 * 60", "1e999", "1e9", "ONCE",
    "''", "'x'", "'two words'", "'0'", "'10/m'", "'1.5/s'", "'10/day'", "'json'", "'pickle'", "['json']", "['pickle']",
    "()", "(ValueError,)", "[KeyError, 5]", "ValueError", "{}", "{'what': 1}",
    "{'max_retries': 2}", "{'max_retries': '2'}", "{'countdown': 5}", "{'countdown': timedelta(seconds=5)}",
    "timedelta(hours=1)", "timedelta(0)", "timedelta(seconds=1.5)",
    "'redis://one/0'", "'amqp://one//'", "'rpc://'", "{'a.*': 'q'}", "{'a.*': {'exchange': 'q'}}",
)  # fmt: skip
FEW = ("None", "1", "60 * 60", "{'max_retries': 2}", "(ValueError,)", "timedelta(hours=1)")
ETA = "eta=datetime(2090, 1, 1, tzinfo=UTC)"
IMPORTS = "from celery import Celery, shared_task\nfrom datetime import UTC, datetime, timedelta\nONCE = 90\n"
NAMES = {"Celery": Celery, "shared_task": shared_task, "UTC": UTC, "datetime": datetime, "timedelta": timedelta}


def options(table: Iterable[str], kinds: Iterable[str], *others: str) -> Iterator[str]:
    """Yield the options of a table, those that have rules with each value, and with some beside each other option."""
    yield from (f"{name}=1" for name in {*table, "what_is_this"})
    yield from (f"{name}={value}" for name, value in product(kinds, VALUES))
    for name, value, other in product(kinds, FEW, others):
        if not other.startswith(f"{name}="):
            yield f"{name}={value}, {other}"


LEFT_OUT = re.compile(
    r"\b(kw)?args=|exc=|main="  # take any value
    r"|task\(result_expires="  # a setting, which is an option only within the layer
    r"|expires=.*, eta="  # depends on the time of the call
)
TASK = "@shared_task\ndef f(): ...\n"
BOUND = "@shared_task(bind=True{})\ndef f(self): self.retry({})\nf()"
MORE = ("", ", max_retries=0", ", max_retries=None", ", autoretry_for=(ValueError,), retry_kwargs={'max_retries': 90}")
IN_PAIRS = ("autoretry_for=(ValueError,)", "time_limit=60", "max_retries=5", "retry_kwargs={'max_retries': 1}")
CASES: dict[str, list[str]] = {
    "declaration": [f"@shared_task({each})\ndef f(): ..." for each in options(DECLARATION, rules.DECLARED, *IN_PAIRS)],
    "call": [f"{TASK}f.apply_async({each})" for each in options(CALL, rules.CALLED, "countdown=30", ETA, "expires=40")],
    "retry": [BOUND.format(*each) for each in product(MORE, options(RETRY, rules.RETRIED, "countdown=5"))],
    "apply": [f"{TASK}f.apply({each})" for each in options(APPLY, ())],
    "get": [f"{TASK}f.apply_async().get({each})" for each in options(GET, ())],
    "revoke": [f"{TASK}made = f.delay()\nmade.revoke({each})" for each in options(REVOKE, rules.REVOKED)],
    "app": [f"app = Celery({each})" for each in options(BUILD, OF_BUILD, "backend='redis://two/0'")],
    "setting": [f"app = Celery('shop')\napp.conf.{each}" for each in options(SETTINGS, rules.SET)],
    "two settings": [
        f"app = Celery('shop', broker={one!r})\napp.conf['result_backend'] = {two!r}"
        for one, two in product(("redis://one/0", "redis://two/0"), ("redis://one/0", "rpc://"))
    ],
}


def refuses(text: str) -> bool:
    """Return whether the layer refuses a text.  Any other mistake in it is an error of this test."""
    with using_registry(Registry()), using_setup(Setup()), fake():
        try:
            exec(text, {**NAMES, "__name__": "shop", "ONCE": 90})
        except Unsupported:
            return True
        except (Retry, UsageError, TimeoutError):  # as it should; these jobs do not run
            return False
    return False


@pytest.mark.parametrize("place", CASES)
def test_the_checker_names_what_the_layer_refuses(place: str, kiq_fake: Fake) -> None:
    texts = [text for text in CASES[place] if not LEFT_OUT.search(text)]
    sources = [Source(f"case{number}.py", ast.parse(IMPORTS + text)) for number, text in enumerate(texts)]
    said: dict[str, set[str]] = defaultdict(set)
    for each in scan(sources):
        said[each.path] |= {each.verdict} if each.kind != "import" else set()

    refused = {source.path: refuses(text) for source, text in zip(sources, texts, strict=True)}

    text_of = {source.path: text for source, text in zip(sources, texts, strict=True)}
    assert [text_of[path] for path in refused if refused[path] and not said[path] & {"change", "none"}] == []
    assert [text_of[path] for path in refused if not refused[path] and "none" in said[path]] == []
    assert True in refused.values()


def verdict(text: str, option: str) -> str:
    """Return what the checker says of an option in a text."""
    (found,) = [each for each in scan([Source("shop.py", ast.parse(IMPORTS + text))]) if each.name == option]
    return found.verdict


def test_a_name_that_a_module_sets_once_has_its_value() -> None:
    app = "Celery('shop', broker=BROKER)"

    assert verdict(f"BROKER = 'amqp://one//'\n{app}", "broker") == "none"
    assert verdict(f"BROKER = 'amqp://one//'\nif ONCE: BROKER = environ['B']\n{app}", "broker") == "works"
    assert verdict(f"BROKER = BROKER\n{app}", "broker") == "works"


def test_options_that_are_not_written_out_may_be_any() -> None:
    declared = "@shared_task(bind=True, retry_backoff=True, **more)\ndef f(self): self.retry(max_retries=9)"

    assert verdict(declared, "retry_backoff") == "works"
    assert verdict(declared, "max_retries") == "works"
    assert verdict(declared.replace(", **more", ""), "retry_backoff") == "none"
    assert verdict(declared.replace(", **more", ""), "max_retries") == "none"
    assert verdict(declared, "**") == "change"


def test_settings_of_two_apps_are_not_compared() -> None:
    first = "one = Celery('one', broker='redis://one/0')\n"

    assert verdict(f"{first}one.conf.result_backend = 'redis://two/0'", "result_backend") == "none"
    assert (
        verdict(f"{first}two = Celery('two')\ntwo.conf.result_backend = 'redis://two/0'", "result_backend") == "works"
    )
