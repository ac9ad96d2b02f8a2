"""Compression: large arguments in GitLab's form, which travels as one string.

compressed     a payload whose arguments are base64(zlib(JSON)), with two more keys; other keys keep their bytes
decompressed   the same payload with its arguments as they were, and without these keys
opened         for client middleware that sees a scheduled job again, with arguments that it can read; closed: and back

Any process may have written such a payload, so what is unpacked has limits: of bytes, and of values.
Counterpart: GitLab's size_limiter/compressor.rb.
"""

from __future__ import annotations

import base64
import binascii
import zlib

from kiqcluster.errors import PayloadDecompressionConflictError, PayloadDecompressionError
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.active_job import is_mail
from kiqcluster.sidekiq.payload import Payload

__all__ = [
    "COMPRESSED",
    "MAX_ARGUMENTS_BYTES",
    "MAX_ARGUMENTS_VALUES",
    "ORIGINAL_SIZE",
    "can_be_unpacked",
    "closed",
    "compressed",
    "decompressed",
    "is_compressed",
    "may_be_compressed",
    "opened",
]

COMPRESSED, ORIGINAL_SIZE = "compressed", "original_job_size_bytes"  # GitLab's keys
ZLIB_LEVEL = 5  # GitLab's choice between space and time
MAX_ARGUMENTS_BYTES = 100_000_000  # of arguments as JSON: more is neither compressed nor unpacked
MAX_ARGUMENTS_VALUES = 2_000_000  # in them; each takes up to 120 bytes of memory, beside the characters of texts


def is_compressed(payload: Payload) -> bool:
    """Return whether the payload's arguments are compressed."""
    return payload.get(COMPRESSED) is True


def can_be_unpacked(arguments: bytes) -> bool:
    """Return whether workers would unpack these arguments again, if they were compressed."""
    return len(arguments) <= MAX_ARGUMENTS_BYTES and not ruby_json.has_more_values(arguments, MAX_ARGUMENTS_VALUES)


def may_be_compressed(payload: Payload) -> bool:
    """Return whether this form fits a payload: it has it not yet, and Ruby's pages could show it.

    The pages look into the envelope of a mail of ActiveJob, and break where there is a string in its place.
    """
    return COMPRESSED not in payload and not is_mail(payload)


def compressed(raw: bytes, arguments: bytes) -> tuple[bytes, int]:
    """Return a payload with compressed arguments, and the bytes of the string that they have become.

    raw: the payload.  arguments: the value of its `args`, as JSON.
    """
    text = base64.b64encode(zlib.compress(arguments, ZLIB_LEVEL)).decode()
    changes = {"args": [text], COMPRESSED: True, ORIGINAL_SIZE: len(arguments)}
    return ruby_json.patch(raw, changes), len(text)


def decompressed(payload: Payload, limit: int = MAX_ARGUMENTS_BYTES, most: int = MAX_ARGUMENTS_VALUES) -> Payload:
    """Return a copy of a compressed payload with its arguments as they were.

    limit: bytes of their JSON.  most: values in them.  Raises PayloadDecompressionError.
    """
    arguments = payload.get("args")
    if not isinstance(arguments, list) or len(arguments) != 1:
        count = len(arguments) if isinstance(arguments, list) else "no list of"
        raise PayloadDecompressionConflictError(
            f"a compressed job has one argument, and this one has {count} arguments; some middleware has changed them"
        )
    text = _unpacked(arguments[0], limit)
    if ruby_json.has_more_values(text, most):
        raise PayloadDecompressionError(f"the arguments of the job have more than {most} values when decompressed")
    try:
        unpacked = ruby_json.decode(text)
    except ruby_json.Undecodable as error:
        raise PayloadDecompressionError(f"the compressed arguments of the job cannot be read ({error})") from error
    if not isinstance(unpacked, list):
        raise PayloadDecompressionError("the compressed arguments of the job are not a JSON array")
    opened = {**payload, "args": unpacked}  # keys keep their order
    opened.pop(COMPRESSED, None)
    opened.pop(ORIGINAL_SIZE, None)
    return opened


def _unpacked(stored: object, limit: int) -> bytes:
    """Return what was packed.  Raises PayloadDecompressionError, also where that is more than `limit` bytes."""
    if not isinstance(stored, str):
        raise PayloadDecompressionError(f"the compressed argument of the job is no text, but {type(stored).__name__}")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(base64.b64decode(stored, validate=True), limit + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise PayloadDecompressionError(f"the arguments of the job cannot be decompressed ({error})") from error
    if len(text) > limit:
        raise PayloadDecompressionError(f"the arguments of the job have more than {limit} bytes when decompressed")
    if not unpacker.eof:
        raise PayloadDecompressionError("the arguments of the job cannot be decompressed (their end is missing)")
    return text


def opened(payload: Payload) -> Payload:
    """Return a payload with the arguments that its job gets; unchanged where they cannot be decompressed."""
    if not is_compressed(payload):
        return payload
    try:
        return decompressed(payload)
    except PayloadDecompressionError:
        return payload


def closed(raw: bytes) -> bytes:
    """Return a payload of an opened one, compressed again: its arguments have changed."""
    plain = ruby_json.patch(raw, {}, (COMPRESSED, ORIGINAL_SIZE))
    return compressed(plain, bytes(ruby_json.members(plain)["args"]))[0]
