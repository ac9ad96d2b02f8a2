"""Encryption: the last argument of a job with `encrypt` is a secret, from the push to `perform`.

on_encode  the client half: the payload to write; called after middleware and all other features
on_open    the server half: the arguments for `perform`, and for nothing else: middleware, hooks, handlers, logs and
           pages see what is stored
keyed      the digest by which deduplication tells equal arguments, which must not tell a guessed secret

Price: no round trip and no key in Redis.  A job without the option costs one look-up at the push and one at the run;
with it 15 µs and 10 µs.
Counterpart: Sidekiq Enterprise's encryption.
"""

from __future__ import annotations

from kiqcluster.application.registry import Definition
from kiqcluster.errors import EncryptionError
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq import encryption
from kiqcluster.sidekiq.encryption import KEY_VERSION
from kiqcluster.sidekiq.payload import ENCRYPT, WRAPPERS, Payload
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["ClientEncryption", "ServerEncryption", "is_secret", "keyed"]


def is_secret(payload: Payload) -> bool:
    """Return whether the last argument is to be encrypted, and is not yet."""
    return bool(payload.get(ENCRYPT)) and KEY_VERSION not in payload and bool(payload["args"])


class ClientEncryption:
    """The client half."""

    key = ENCRYPT

    def on_encode(self, setup: Setup, push: Push, definition: Definition | None) -> None:
        """Encrypt the last argument, if it is to be.  Raises EncryptionError, InvalidPush."""
        push.payload = _sealed(setup, push.payload, is_registered=definition is not None)


def _sealed(setup: Setup, payload: Payload, *, is_registered: bool) -> Payload:
    """Return the payload with its last argument encrypted, if it is to be.  Raises EncryptionError, InvalidPush.

    Without keys, two kinds of jobs stay as they are: those of a test that takes them in place of Redis, and those of
    classes that are not registered here, which may be encrypted already and for a process of Sidekiq Enterprise.
    """
    if not is_secret(payload):
        return payload
    name, keys = payload["class"], _keys(setup)
    if name in WRAPPERS:
        raise EncryptionError(
            f"{payload.get('wrapped', name)}: encrypt does not go with ActiveJob's envelope; leave it out"
        )
    if not keys:
        if setup.delivery is not None or not is_registered:
            return payload
        raise EncryptionError(f"{name} has encrypt=True, and there are no encryption.keys; it was not enqueued")
    return encryption.encrypted(payload, keys)


class ServerEncryption:
    """The server half."""

    name = "encryption"
    keys = frozenset({KEY_VERSION})

    def is_used_by(self, _definition: Definition, /) -> bool:
        return False  # what counts is the payload

    def on_open(self, setup: Setup, payload: Payload, arguments: list[JSON]) -> list[JSON]:
        """Return the arguments for `perform`.  Raises PayloadDecryptionError."""
        if KEY_VERSION not in payload:  # middleware has taken it out
            return arguments
        return encryption.decrypted({**payload, "args": arguments}, _keys(setup))


def keyed(setup: Setup, text: str) -> str | None:
    """Return the digest of a text with a secret in it; None without keys."""
    keys = _keys(setup)
    return encryption.digest(text, keys) if keys else None


def _keys(setup: Setup) -> encryption.Keys:
    return encryption.parse_keys(setup.current_config().encryption_keys)
