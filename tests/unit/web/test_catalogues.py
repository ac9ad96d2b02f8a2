"""The catalogues are complete, and translations keep what messages have to be filled with."""

from __future__ import annotations

import re

import polib
import pytest
from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Request

from kiqcluster.web.i18n import FOLDER, LANGUAGES, choose_language
from tests.unit.web.messages import messages

TRANSLATED = [language for language in LANGUAGES if language != "en"]
VALUES = re.compile(r"%\(\w+\)s")


def catalogue(language: str) -> dict[str, polib.POEntry]:
    paths = sorted((FOLDER / language / "LC_MESSAGES").glob("*.po"))
    return {entry.msgid: entry for path in paths for entry in polib.pofile(str(path))}


@pytest.mark.parametrize("language", TRANSLATED)
class TestCatalogues:
    def test_every_message_is_translated(self, language: str) -> None:
        known = catalogue(language)

        missing = [f"{place}: {one}" for (one, _), place in messages().items() if one not in known]
        empty = [each.msgid for each in known.values() if not each.translated()]

        assert missing == []
        assert empty == []

    def test_none_is_left_of_a_message_that_is_gone(self, language: str) -> None:
        assert set(catalogue(language)) <= {one for one, _ in messages()}

    def test_translations_have_the_values_of_their_messages(self, language: str) -> None:
        for each in catalogue(language).values():
            texts = each.msgstr_plural.values() if each.msgid_plural else [each.msgstr]
            for text in texts:
                assert set(VALUES.findall(text)) == set(VALUES.findall(each.msgid)), each.msgid

    def test_plurals_are_plurals(self, language: str) -> None:
        plurals = {one: many for (one, many) in messages() if many}

        assert {one: entry.msgid_plural for one, entry in catalogue(language).items() if entry.msgid_plural} == plurals


@pytest.mark.parametrize(
    ("accepted", "cookie", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "", "zh"),
        ("ja-JP", "", "ja"),
        ("fr,de;q=0.9", "", "en"),
        ("fr,ja;q=0.5,en;q=0.4", "", "ja"),
        ("zh-CN", "kiqweb_language=ja", "ja"),
        ("zh-CN", "kiqweb_language=xx", "zh"),
        ("", "", "en"),
        ("*;q=x,,;", "", "en"),
    ],
)
def test_the_language_is_what_was_chosen_else_what_the_browser_prefers(
    accepted: str, cookie: str, language: str
) -> None:
    headers = {"Accept-Language": accepted, **({"Cookie": cookie} if cookie else {})}

    assert choose_language(Request(EnvironBuilder(headers=headers).get_environ()), "en") == language
