"""Encryption of an argument: the keys, and the form that a payload has.

Keys      `encryption.keys` is "VERSION:KEY …": versions are numbers, keys 32 bytes in Base64.  The highest version
          encrypts, all of them decrypt.
Form      the last argument is Base64 of a nonce (12 bytes), the ciphertext of its JSON, and the tag (16 bytes), by
          AES-256-GCM; `kiq_key_version` is the version of the key, beside Sidekiq Enterprise's `encrypt`.  The version
          and the class are authenticated: a ciphertext that is moved to another class cannot be read.

Sidekiq Enterprise documents no form.  The library `cryptography` is loaded at the first use.  No message has a key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kiqcluster.errors import InvalidPush, PayloadDecryptionError, UsageError
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import ENCRYPT, Payload
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["KEY_VERSION", "decrypted", "digest", "encrypted", "parse_keys"]

KEY_VERSION = "kiq_key_version"  # payload key: which key has encrypted the last argument
KEY_BYTES, NONCE_BYTES = 32, 12
Keys = Mapping[int, bytes]  # version → key, the highest first


@lru_cache(maxsize=8)
def parse_keys(text: str) -> Keys:
    """Return the keys of the setting `encryption.keys`.  Raises UsageError, which shows none of them."""
    found: dict[int, bytes] = {}
    for number, word in enumerate(text.replace(",", " ").split(), 1):
        version, colon, encoded = word.partition(":")
        if not (colon and version.isascii() and version.isdigit() and int(version)) or int(version) in found:
            raise UsageError(
                f"entry {number} of encryption.keys does not fit: write VERSION:KEY, each version once, from 1"
            )
        found[int(version)] = _key(encoded, f"key {version} of encryption.keys")
    if found:
        _aesgcm()
    return dict(sorted(found.items(), reverse=True))


def _key(encoded: str, what: str) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(f"{what} is not {KEY_BYTES} bytes in Base64; make one with: openssl rand -base64 {KEY_BYTES}")
    return key


def encrypted(payload: Payload, keys: Keys) -> Payload:
    """Return a payload with its last argument encrypted by the newest key.  There is an argument, and a key.

    Raises InvalidPush for an argument that JSON cannot hold.
    """
    version, key = next(iter(keys.items()))
    nonce = os.urandom(NONCE_BYTES)
    *others, last = payload["args"]
    try:
        plain = ruby_json.encode(last)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPush(f"{payload['class']}: the payload holds what JSON cannot ({error})") from error
    text = nonce + _aesgcm()(key).encrypt(nonce, plain, _context(payload, version))
    return {**payload, "args": [*others, base64.b64encode(text).decode()], ENCRYPT: True, KEY_VERSION: version}


def decrypted(payload: Payload, keys: Keys) -> list[JSON]:
    """Return the arguments of a payload with `kiq_key_version`.  Raises PayloadDecryptionError with the reason."""
    version, arguments = payload.get(KEY_VERSION), payload["args"]
    if type(version) is not int or version not in keys:
        known = ", ".join(map(str, keys)) or "none"
        error = PayloadDecryptionError(
            f"its last argument is encrypted with key {version!r}, and this process has the keys {known}; add it to "
            "encryption.keys, and retry the job"
        )
        error.is_key_unknown = type(version) is int
        raise error
    if not arguments or not isinstance(arguments[-1], str):
        raise PayloadDecryptionError("its last argument is not an encrypted one: something has changed it")
    *others, last = arguments
    try:
        text = base64.b64decode(last, validate=True)
        plain = _aesgcm()(keys[version]).decrypt(text[:NONCE_BYTES], text[NONCE_BYTES:], _context(payload, version))
        return [*others, ruby_json.decode(plain)]
    except (ValueError, _invalid_tag()):
        raise PayloadDecryptionError(
            f"its last argument cannot be decrypted with key {version}: it was changed, or that key is another one "
            "where it was pushed"
        ) from None


def digest(text: str, keys: Keys) -> str:
    """Return 64 hexadecimal digits that are equal for equal texts, and tell nothing of them without the newest key."""
    key = hmac.digest(next(iter(keys.values())), b"kiqcluster deduplicate", hashlib.sha256)
    return hmac.new(key, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()


def _context(payload: Payload, version: int) -> bytes:
    return f"kiqcluster:{version}:{payload['class']}".encode(errors="surrogatepass")


def _aesgcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # an extra
    except ImportError as error:
        raise UsageError(
            "encryption.keys needs the library cryptography: pip install 'kiqcluster[encryption]'"
        ) from error
    return AESGCM


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag  # an extra

    return InvalidTag
