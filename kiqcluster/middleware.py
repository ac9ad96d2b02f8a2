"""Middleware: links around a push (client) and around a run (server), and the chain that holds them.

A server link is `(run, proceed) -> Outcome | None`, a client link `(push, proceed) -> Push | None`.  A link
calls `proceed()` once and returns what it returned; a client link that returns None stops the push.  A link
given as a class is instantiated once, when it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from kiqcluster.errors import UsageError

__all__ = ["Chain"]

Subject = TypeVar("Subject")
Result = TypeVar("Result")
Proceed = Callable[[], Result]
Link = Callable[[Subject, Proceed[Result]], Result]


class Chain(Generic[Subject, Result]):
    """An ordered list of links; the first is the outermost.

    Changed at set-up time, before threads start.  Links are named by themselves or by their class.
    links: the tuple in force, replaced at each change.
    """

    def __init__(self) -> None:
        self.links: tuple[Link[Subject, Result], ...] = ()

    def __iter__(self) -> Iterator[Link[Subject, Result]]:
        return iter(self.links)

    def __len__(self) -> int:
        return len(self.links)

    def add(self, link: Link[Subject, Result]) -> Link[Subject, Result]:
        """Put a link innermost.  Returns it, so that `@server_middleware.add` decorates a function."""
        self.links = (*self.links, _made(link))
        return link

    def prepend(self, link: Link[Subject, Result]) -> Link[Subject, Result]:
        """Put a link outermost."""
        self.links = (_made(link), *self.links)
        return link

    def insert_before(self, existing: object, link: Link[Subject, Result]) -> None:
        """Put a link just outside an existing one.  Raises UsageError when there is none."""
        at = self._find(existing)
        self.links = (*self.links[:at], _made(link), *self.links[at:])

    def insert_after(self, existing: object, link: Link[Subject, Result]) -> None:
        """Put a link just inside an existing one.  Raises UsageError when there is none."""
        at = self._find(existing) + 1
        self.links = (*self.links[:at], _made(link), *self.links[at:])

    def replace(self, existing: object, link: Link[Subject, Result]) -> None:
        """Put a link in the place of an existing one.  Raises UsageError when there is none."""
        at = self._find(existing)
        self.links = (*self.links[:at], _made(link), *self.links[at + 1 :])

    def remove(self, existing: object) -> None:
        """Take a link out.  Raises UsageError when there is none."""
        at = self._find(existing)
        self.links = (*self.links[:at], *self.links[at + 1 :])

    def clear(self) -> None:
        """Take all links out."""
        self.links = ()

    def invoke(self, subject: Subject, last: Proceed[Result]) -> Result:
        """Run the links around `last` and return what the outermost returned."""
        links = self.links
        if not links:
            return last()

        def step(at: int) -> Result:
            if at == len(links):
                return last()
            return links[at](subject, lambda: step(at + 1))

        return step(0)

    def _find(self, wanted: object) -> int:
        for at, link in enumerate(self.links):
            if link is wanted or type(link) is wanted:
                return at
        names = ", ".join(getattr(link, "__name__", type(link).__name__) for link in self.links) or "no links"
        raise UsageError(f"{wanted!r} is not in the chain, which has {names}")


def _made(link: Link[Subject, Result]) -> Link[Subject, Result]:
    return link() if isinstance(link, type) else link
