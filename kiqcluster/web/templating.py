"""Templating: templates → HTML, escaped in every case.

One environment per language, so that macros know it too.  A page is a template, and a live part one of its blocks,
rendered alone.  What a terminal would obey and a browser may be misled by (control characters, halves of surrogate
pairs, characters that turn the direction of text) is shown as a sign, wherever it stands.
"""

from __future__ import annotations

import gettext
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from kiqcluster.sidekiq.ruby_json import is_unicode
from kiqcluster.web import formats
from kiqcluster.web.arguments import as_json, shorten
from kiqcluster.web.i18n import direction, translations

__all__ = ["encode_page", "environment", "render"]

MACROS = "macros.html"
MAX_LINKED_CHARACTERS = 500  # of a name in a path
MAX_MESSAGES = 2_000  # that a process keeps, of each language
MAX_TEXT_CHARACTERS = 100_000  # of one value, whatever a template does with it
UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
CONTROL_PICTURES = 0x2400  # in Unicode: ␀ for NUL, and so on
REPLACEMENT = "\ufffd"


class Constants(NodeTransformer):
    """Replaces messages without values by what they say: one environment has one language."""

    def __init__(self, home: Environment) -> None:
        self._home = home
        self._messages: Any = home.globals

    def _said(self, text: str) -> str:
        return str(self._messages["_"](text))

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802  # the name of the node, as jinja2 calls it
        """Replace `_("…")`."""
        self.generic_visit(node)
        match node:
            case nodes.Call(node=nodes.Name(name="_"), args=[nodes.Const(value=str(text))], kwargs=[], dyn_kwargs=None):
                said = nodes.MarkSafe(nodes.Const(self._said(text)), lineno=node.lineno)
                return said.set_environment(self._home)
        return node


class Generator(CodeGenerator):
    """Compiles messages without values as a part of the text around them."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802  # as above
        super().visit_Template(Constants(self.environment).visit(node), frame)


class Templates(Environment):
    code_generator_class = Generator


@cache
def environment(language: str) -> Environment:
    """Return the environment of a language."""
    made = Templates(
        loader=PackageLoader("kiqcluster.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=["jinja2.ext.i18n"],
        finalize=_finalize,
    )
    made.globals |= _messages(translations(language))
    made.filters |= {
        "number": formats.number,
        "rate": formats.rate,
        "duration": formats.duration,
        "compact": formats.compact,
        "ms": formats.milliseconds,
        "bytes": formats.count_bytes,
        "iso": formats.iso_time,
        "time": formats.shown_time,
        "short": shorten,
        "json": as_json,
    }
    made.tests["linkable"] = _is_linkable
    made.globals |= {"language": language, "direction": direction(language)}
    return made


def _messages(words: gettext.NullTranslations) -> dict[str, Any]:
    """Return the functions of templates that translate.

    They do what those of Jinja's extension do, of which each call takes longer than the rest of a cell: a message is
    looked up and marked as safe once.
    """

    @lru_cache(MAX_MESSAGES)
    def form(text: str) -> Markup:
        return Markup(words.gettext(text))  # noqa: S704  # a message of ours

    @lru_cache(MAX_MESSAGES)
    def plain(text: str) -> Markup:
        return form(text) % {}

    def translated(text: str, /, **values: Any) -> Markup:
        return form(text) % _finalized(values) if values else plain(text)

    def counted(singular: str, plural: str, number: int, /, **values: Any) -> Markup:
        found = Markup(words.ngettext(singular, plural, number))  # noqa: S704  # a message of ours
        return found % _finalized({"num": number, **values})

    return {"_": translated, "gettext": translated, "ngettext": counted}


def render(language: str, template: str, data: Mapping[str, Any], shared: Mapping[str, Any], block: str = "") -> str:
    """Return a page, or one block of it.

    data: of the view.  shared: what macros may use, too: urls, the token, who asks.
    """
    here = environment(language)
    macros = here.get_template(MACROS).make_module(dict(shared))
    found = here.get_template(template)
    values = {**shared, **data, "ui": macros}
    if not block:
        return found.render(values)
    context = found.new_context(values)
    return here.concat(found.blocks[block](context))


def encode_page(text: str) -> bytes:
    """Return the bytes of a page, without what could mislead a reader."""
    return UNSAFE.sub(_sign, text).encode("utf-8", "replace")


def _is_linkable(name: str) -> bool:
    """Return whether a path can hold a name: it is not enormous, and has no half of a surrogate pair."""
    return len(name) <= MAX_LINKED_CHARACTERS and is_unicode(name)


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(CONTROL_PICTURES + code) if code < 0x20 else REPLACEMENT


def _finalized(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a message as a template prints them."""
    return {name: _finalize(value) for name, value in values.items()}


def _finalize(value: Any) -> Any:
    """Return what a template prints for a value: numbers of any size, and no text beyond all limits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < formats.MAX_PLAIN_NUMBER else formats.number(value)
    if isinstance(value, str) and not isinstance(value, Markup) and len(value) > MAX_TEXT_CHARACTERS:
        return shorten(value, MAX_TEXT_CHARACTERS)
    return value
