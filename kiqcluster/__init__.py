"""kiqcluster: background jobs in Sidekiq's Redis format, run by a multi-process supervisor.

Declare jobs with Job or @job, enqueue them with their verbs, run them with `kiqcluster -r APP QUEUES…`.
Everything public is named here; ARCHITECTURE.md says where the rest lives.
"""

from typing import TYPE_CHECKING, NoReturn

from kiqcluster import limits, policies
from kiqcluster.client.client import Client
from kiqcluster.control.cancellation import cancel
from kiqcluster.errors import Interrupted, JobCancelled, KiqError, RetryError
from kiqcluster.job import DISCARD, KILL, Job, job
from kiqcluster.process.context.application_context import application_context, current_context
from kiqcluster.process.delivery import allow_unrouted
from kiqcluster.process.job_context import JobContext, current_job
from kiqcluster.process.logs.job_logger import JobLogger, job_logger
from kiqcluster.process.runtime import Push, Run, current_setup
from kiqcluster.process.version import __version__
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.store import Store
from kiqcluster.words import hint_of

__all__ = [
    "DISCARD",
    "KILL",
    "Client",
    "Interrupted",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobLogger",
    "KiqError",
    "Outcome",
    "Push",
    "RetryError",
    "Run",
    "Store",
    "__version__",
    "allow_unrouted",
    "application_context",
    "cancel",
    "client_middleware",
    "configure",
    "current_context",
    "current_job",
    "death_handler",
    "error_handler",
    "job",
    "job_logger",
    "limits",
    "on",
    "policies",
    "server_middleware",
]

# The set-up API: methods of the process' one Setup (runtime.py).
client_middleware = current_setup().client_middleware
configure = current_setup().configure
death_handler = current_setup().death_handler
error_handler = current_setup().error_handler
on = current_setup().hooks.on
server_middleware = current_setup().server_middleware

if not TYPE_CHECKING:  # for mypy, the package has no other names than these

    def __getattr__(name: str) -> NoReturn:
        """Answer a name of another job system with ours.  `from … import` would not show an AttributeError."""
        if (hint := hint_of("name", name)) is not None:
            raise ImportError(f"kiqcluster has no {name}: {hint}")
        raise AttributeError(f"module 'kiqcluster' has no attribute {name!r}")
