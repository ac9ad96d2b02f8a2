"""Declarations: removes jobs, middleware, handlers and settings that a test has declared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiqcluster.application.registry import Registry, current_registry, using_registry
from kiqcluster.process.events import LIFECYCLE
from kiqcluster.process.runtime import Setup, current_setup

__all__ = ["forgetting_declarations", "forgetting_local_jobs"]

LOCAL_MARKER = "<locals>"  # in the qualified name of a class or function defined within a function


@contextmanager
def forgetting_local_jobs() -> Iterator[Registry]:
    """Remove jobs defined within functions at the end of a `with` block, so that the next test may use their names.

    Jobs of modules stay: a module that is imported in the block is not imported again after it.
    """
    before = current_registry()
    registry = Registry()
    for definition in before:
        registry.add(definition)
    try:
        with using_registry(registry):
            yield registry
    finally:
        for definition in registry:
            if LOCAL_MARKER not in definition.origin[1]:
                before.add(definition)


@contextmanager
def forgetting_declarations() -> Iterator[Setup]:
    """Remove middleware, handlers, hooks and settings that a `with` block adds at its end.

    This also removes those of a module that is first imported in the block: import the application before.
    """
    setup = current_setup()
    chains = {chain: chain.stack for chain in (setup.client_middleware, setup.server_middleware)}
    error_handlers, death_handlers = list(setup.error_handlers), list(setup.death_handlers)
    hooks = {event: setup.hooks.of(event) for event in LIFECYCLE}
    settings, config, store = dict(setup.settings), setup.config, setup.store
    try:
        with forgetting_local_jobs():
            yield setup
    finally:
        for chain, stack in chains.items():
            chain.stack = stack
        setup.error_handlers[:] = error_handlers
        setup.death_handlers[:] = death_handlers
        for event, kept in hooks.items():
            setup.hooks.keep(event, kept)
        if setup.settings != settings:
            setup.settings.clear()
            setup.settings.update(settings)
            setup.configure()  # so that they are read again
        setup.config, setup.store = config, store
