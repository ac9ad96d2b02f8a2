"""What tests of Sentry share: a client whose envelopes stay in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sentry_sdk
from sentry_sdk.consts import DEFAULT_OPTIONS
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from kiqcluster.contrib import sentry

DSN = "http://key@127.0.0.1:1/1"


class Received(Transport):
    """The items that the SDK has sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(str(item.type), item.payload.json) for item in envelope.items]

    def of(self, kind: str) -> list[Any]:
        """Return the items of a kind: event, transaction, check_in."""
        return [item for found, item in self.items if found == kind]

    def one(self, kind: str) -> Any:
        (item,) = self.of(kind)
        return item


def _collecting(queues: bool) -> dict[str, Any]:
    """Return the option that decides about arguments, as this release of the SDK names it."""
    is_new = "data_collection" in DEFAULT_OPTIONS
    return {"data_collection": {"queues": queues}} if is_new else {"send_default_pii": queues}


@contextmanager
def reporting(
    *, traces: float | None = 1.0, queues: bool | None = None, attach_stacktrace: bool = False, **options: Any
) -> Iterator[Received]:
    """Have this process report to memory for a `with` block.  Integrations would change the process for good."""
    received = Received()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            DSN,
            transport=received,
            traces_sample_rate=traces,
            default_integrations=False,
            attach_stacktrace=attach_stacktrace,
            **({} if queues is None else _collecting(queues)),
        )
        sentry.instrument(**options)
        try:
            yield received
        finally:
            sentry.uninstrument()
            sentry_sdk.get_client().close(0)
            sentry_sdk.get_global_scope().set_client(None)
