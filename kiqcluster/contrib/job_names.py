"""Job names: by which name integrations show a job."""

from __future__ import annotations

from kiqcluster.sidekiq.payload import Payload

__all__ = ["job_class"]


def job_class(payload: Payload) -> str:
    """Return the name of what runs: of ActiveJob's jobs the one inside the envelope."""
    return str(payload.get("wrapped") or payload.get("class"))
