"""Size limiter: large arguments are reported, compressed or refused when a job is pushed, and unpacked when it runs.

limited   the client half: the bytes to write, for a payload of at least MIN_LIMITED_BYTES

| mode     | arguments of the threshold or more | arguments beyond the limit, compressed or not |
|----------|------------------------------------|-----------------------------------------------|
| track    | stay                               | error handlers are told, and the job is pushed |
| compress | are compressed                     | ExceedLimitError                              |
| raise    | stay                               | ExceedLimitError                              |

Sizes are those of the arguments' JSON, as in GitLab.  A class with `big_payload=True` is compressed, but never refused.
Price: no round trip.  A push of fewer bytes costs one comparison, a run one look-up of a key.
The server half is a step of worker/run/read_job, before all other features: they see the arguments.
Counterpart: GitLab's size_limiter/validator.rb.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiqcluster.application.registry import Definition
from kiqcluster.errors import ExceedLimitError
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.compression import (
    can_be_unpacked,
    compressed,
    may_be_compressed,
)

__all__ = ["SizeLimiter", "limited"]


class SizeLimiter:
    """The client half."""

    def looks_at(self, setup: Setup, size: int) -> bool:
        return _looks_at(setup.current_config(), size)

    def on_encoded(self, setup: Setup, name: str, definition: Definition | None, encoded: bytes) -> bytes:
        return limited(setup, name, encoded, definition)


def _looks_at(config: Config, size: int) -> bool:
    """Return whether a payload of so many bytes may be concerned."""
    limit = config.size_limiter_limit
    threshold = config.size_limiter_compression_threshold
    return (0 < limit < size) or (config.size_limiter_mode == "compress" and size >= threshold)


def limited(setup: Setup, name: str, encoded: bytes, definition: Definition | None) -> bytes:
    """Return the bytes to write for a payload.  Raises ExceedLimitError.

    name: of the job, in messages.  definition: None for a job that is not registered here.
    """
    config = setup.current_config()
    if not _looks_at(config, len(encoded)):
        return encoded
    fields = ruby_json.members(encoded)
    arguments = bytes(fields["args"])
    size, is_lenient = len(arguments), config.size_limiter_mode == "track"
    if config.size_limiter_mode == "compress":
        encoded, size = _compressed(encoded, arguments, fields, config)
    limit = config.size_limiter_limit
    if not limit or size <= limit or (definition is not None and definition.local.get("big_payload", False)):
        return encoded
    error = ExceedLimitError(name if definition is None else definition.name, size, limit)
    if not is_lenient:
        raise error
    setup.notify_error_handlers(error, {"context": "size limiter"})
    return encoded


def _compressed(encoded: bytes, arguments: bytes, fields: Mapping[str, Any], config: Config) -> tuple[bytes, int]:
    """Return the payload, compressed if that is due and saves anything, and the bytes of its arguments."""
    size = len(arguments)
    if size < config.size_limiter_compression_threshold or not can_be_unpacked(arguments):
        return encoded, size
    if not may_be_compressed({key: ruby_json.decode(bytes(value)) for key, value in fields.items() if key != "args"}):
        return encoded, size
    smaller, smaller_size = compressed(encoded, arguments)
    return (smaller, smaller_size) if len(smaller) < len(encoded) else (encoded, size)
