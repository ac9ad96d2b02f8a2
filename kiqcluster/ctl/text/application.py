"""Application: imported for commands that ask to which queue each job class goes, or what it declares."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from kiqcluster.application import loading
from kiqcluster.application.registry import current_registry
from kiqcluster.client.router import route, rules_of
from kiqcluster.ctl.text.options import ADDRESS_SETTINGS, store_options
from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.routing import Rules
from kiqcluster.sidekiq.selectors import JobAttributes, described

__all__ = ["ClassRoute", "load_application", "load_attributes", "load_routes", "routing_options"]

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class ClassRoute:
    """Where the jobs of a class go.

    own: the queue that the class declares.  index: of the rule, None for none.  shard: "" for the default one.
    """

    name: str
    own: str
    queue: str
    index: int | None
    shard: str


def routing_options(function: F) -> F:
    """Add -r, and what says where Redis is; the command is given its Store, and `require` for load_routes."""
    option = click.option(
        "-r", "--require", multiple=True, metavar="APP", help="module or file that defines the jobs  [configuration]"
    )
    return option(store_options(function, ADDRESS_SETTINGS | {"routing", "require", "directory", "shards"}))


def load_application(require: Sequence[str]) -> list[Mapping[str, Any]]:
    """Import the application; return what its classes say of themselves.

    What it prints goes to standard error.  Raises ApplicationError, also for one without jobs.
    """
    with contextlib.redirect_stdout(sys.stderr):
        loading.load(require, Config().known_directory())
        return list(loading.describe(require))


def load_attributes(require: Sequence[str]) -> dict[str, JobAttributes]:
    """Import the application; return class → what it declares of itself.

    What the application prints goes to standard error.  Raises ApplicationError.
    """
    return {each["name"]: described(each) for each in load_application(require)}


def load_routes(require: Sequence[str]) -> tuple[Rules, list[ClassRoute]]:
    """Import the application; return the routing rules and the route of each class, by name.

    What the application prints goes to standard error.  Raises UsageError, ApplicationError.
    """
    setup = current_setup()
    config = setup.current_config()
    wanted = require or config.require
    if not wanted:
        raise UsageError("no application given: name the module or file that defines the jobs, as in -r app.jobs")
    with contextlib.redirect_stdout(sys.stderr):
        loading.load(wanted, config.known_directory())
        loading.describe(wanted)  # refuses one without jobs
    rules = rules_of(config, setup)
    found = [(definition, route(rules, definition)) for definition in current_registry()]
    routes = [
        ClassRoute(definition.name, definition.queue, each.queue, each.index, each.shard) for definition, each in found
    ]
    return rules, sorted(routes, key=lambda each: each.name)
