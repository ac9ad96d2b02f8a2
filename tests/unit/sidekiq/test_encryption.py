"""Encryption: keys of several versions, the form, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kiqcluster.errors import PayloadDecryptionError, UsageError
from kiqcluster.process.config import Config, describe, settings
from kiqcluster.process.config_checks import check
from kiqcluster.sidekiq.encryption import decrypted, digest, encrypted, parse_keys
from tests.kit import require_module

require_module("cryptography")
FIRST, SECOND = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
PAYLOAD: dict[str, Any] = {"class": "Pay", "args": [7, {"card": "4111", "none": None}], "jid": "a" * 24}


def keys(*words: str) -> Any:
    return parse_keys(" ".join(words))


def test_what_was_encrypted_is_decrypted_with_the_same_key() -> None:
    found = encrypted(PAYLOAD, keys(f"1:{FIRST}"))

    assert (found["args"][0], found["encrypt"], found["kiq_key_version"]) == (7, True, 1)
    assert "4111" not in repr(found)
    assert decrypted(found, keys(f"1:{FIRST}")) == PAYLOAD["args"]


def test_equal_arguments_look_different_each_time() -> None:
    assert encrypted(PAYLOAD, keys(f"1:{FIRST}"))["args"] != encrypted(PAYLOAD, keys(f"1:{FIRST}"))["args"]


def test_the_newest_key_encrypts_and_older_ones_still_decrypt() -> None:
    old = encrypted(PAYLOAD, keys(f"9:{FIRST}"))
    both = keys(f"9:{FIRST}", f"10:{SECOND}")

    new = encrypted(PAYLOAD, both)

    assert new["kiq_key_version"] == 10
    assert decrypted(old, both) == decrypted(new, both) == PAYLOAD["args"]


@pytest.mark.parametrize(
    ("changes", "words", "reason"),
    [
        ({}, [f"2:{FIRST}"], "with key 1, and this process has the keys 2; add it"),
        ({}, [], "has the keys none"),
        ({}, [f"1:{SECOND}"], "cannot be decrypted with key 1"),
        ({"class": "Other"}, [f"1:{FIRST}"], "cannot be decrypted with key 1"),
        ({"args": [7, "bm9uc2Vuc2U="]}, [f"1:{FIRST}"], "cannot be decrypted"),
        ({"args": [7, "no base64"]}, [f"1:{FIRST}"], "cannot be decrypted"),
        ({"args": [7, {}]}, [f"1:{FIRST}"], "something has changed it"),
        ({"args": []}, [f"1:{FIRST}"], "something has changed it"),
        ({"kiq_key_version": "1"}, [f"1:{FIRST}"], "with key '1'"),
    ],
)
def test_what_cannot_be_decrypted_says_why_and_shows_nothing(
    changes: dict[str, Any], words: list[str], reason: str
) -> None:
    found = {**encrypted(PAYLOAD, keys(f"1:{FIRST}")), **changes}

    with pytest.raises(PayloadDecryptionError, match=reason) as caught:
        decrypted(found, keys(*words))

    assert FIRST not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["abc", f"0:{FIRST}", f"x:{FIRST}", f":{FIRST}", f"1:{FIRST} 1:{SECOND}", "1:", "1:c2hvcnQ="]
)
def test_keys_that_do_not_fit_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(Config(encryption_keys=text))

    assert FIRST not in str(caught.value)
    assert "c2hvcnQ" not in str(caught.value)


def test_no_listing_of_settings_shows_a_key() -> None:
    config = Config(encryption_keys=f"1:{FIRST}")
    origins = dict.fromkeys((each.name for each in settings()), "default")

    assert FIRST not in repr(config)
    assert ("encryption.keys", "***", "default") in describe(config, origins)


def test_equal_texts_have_equal_digests_that_need_the_key() -> None:
    assert digest("a", keys(f"1:{FIRST}")) == digest("a", keys(f"1:{FIRST}")) != digest("b", keys(f"1:{FIRST}"))
    assert digest("a", keys(f"1:{FIRST}")) != digest("a", keys(f"1:{SECOND}"))
