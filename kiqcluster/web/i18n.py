"""Languages: message catalogues, and which language an answer has.

A message is English text; locale/<language>/LC_MESSAGES/*.po have the others, one file for each group of pages.  They
are read as they are: nothing has to be compiled before.
"""

from __future__ import annotations

import gettext
from functools import cache
from importlib.resources import files
from io import BytesIO

import polib
from werkzeug.wrappers import Request

from kiqcluster.web.cookies import LANGUAGE

__all__ = ["LANGUAGES", "choose_language", "direction", "message", "messages", "translations"]

FOLDER = files("kiqcluster.web") / "locale"
LANGUAGES = {"en": "English", "zh": "中文", "ja": "日本語"}  # code → how its speakers call it
DIRECTIONS: dict[str, str] = {}  # code → rtl, for languages that are written so
PLURALS = {"en": "nplurals=2; plural=(n != 1);"}
NO_PLURALS = "nplurals=1; plural=0;"


def message(text: str) -> str:
    """Return a text as it is; marks it for the catalogues where it is translated later."""
    return text


def messages(one: str, many: str) -> tuple[str, str]:
    """Return a text for one and for several as they are; marks them as `message` does."""
    return one, many


@cache
def translations(language: str) -> gettext.NullTranslations:
    """Return the messages of a language; English ones are the messages themselves."""
    folder = FOLDER / language / "LC_MESSAGES"
    if not folder.is_dir():
        return gettext.NullTranslations()
    catalogue = polib.POFile()
    catalogue.metadata = {
        "Content-Type": "text/plain; charset=UTF-8",
        "Plural-Forms": PLURALS.get(language, NO_PLURALS),
    }
    seen: set[str] = set()
    for file in sorted((each for each in folder.iterdir() if each.name.endswith(".po")), key=lambda each: each.name):
        for entry in polib.pofile(file.read_text(encoding="utf-8")):
            if entry.msgid not in seen and not entry.obsolete:
                seen.add(entry.msgid)
                catalogue.append(entry)
    return gettext.GNUTranslations(BytesIO(catalogue.to_binary()))


def direction(language: str) -> str:
    """Return in which direction a language is written: ltr or rtl."""
    return DIRECTIONS.get(language, "ltr")


def choose_language(request: Request, default: str) -> str:
    """Return the language of an answer: what was chosen, else what the browser prefers, else the default."""
    chosen = request.cookies.get(LANGUAGE, "")
    if chosen in LANGUAGES:
        return chosen
    wanted = (code.partition("-")[0].lower() for code in request.accept_languages.values())
    return next((code for code in wanted if code in LANGUAGES), default)
