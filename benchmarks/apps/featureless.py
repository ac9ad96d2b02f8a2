"""The jobs of guarded.py in a worker that has no features at all: what their seams cost jobs that use none."""

from __future__ import annotations

from benchmarks.apps.guarded import DESCRIPTION, push, push_many
from kiqcluster.features.stacks import STACKS, Stacks

__all__ = ["DESCRIPTION", "push", "push_many"]

STACKS.value = Stacks()
