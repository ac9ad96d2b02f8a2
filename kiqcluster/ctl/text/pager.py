"""Pager: the group whose default command is `list`, and the pages of long lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import click

from kiqcluster.ctl.text.tables import format_number, pluralize

__all__ = ["DefaultListGroup", "Page", "page_options"]

MAX_PAGE_LINES = 10_000  # lines: a table is as wide as its widest cell, so all of a page is read before it is shown
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class DefaultListGroup(click.Group):
    """A group that runs `list` when no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class Page:
    """number: 1 is the first.  size: how many lines it has."""

    number: int
    size: int

    @property
    def start(self) -> int:
        return (self.number - 1) * self.size

    def of(self, found: Iterable[T]) -> list[T]:
        """Return this page of what is found one after the other."""
        return list(islice(found, self.start, self.start + self.size))

    def of_reversed(self, length: int, page: Callable[[int, int], Sequence[T]]) -> list[T]:
        """Return this page, counted from the end of what `page(start, count)` reads from its beginning."""
        end = max(0, length - self.start)
        start = max(0, end - self.size)
        return list(page(start, end - start))[::-1]

    def in_words(self, shown: int, what: str, many: str, size: int, *, has_filters: bool) -> str:
        """Return what is shown, and how to see more.  size: of everything, of which a filter has left some out."""
        if has_filters:
            words = f"{pluralize(shown, what, many)} of that kind, among {format_number(size)}"
        else:
            words = f"{format_number(shown)} of {pluralize(size, what, many)}"
        is_last = shown < self.size if has_filters else self.start + shown >= size
        return words if is_last else f"{words}; for more: --page {self.number + 1}, or a larger --limit"


def page_options(function: F) -> F:
    """Add --limit and --page; the command is given its Page."""

    @functools.wraps(function)
    def run(*arguments: Any, limit: int, page_number: int, **options: Any) -> Any:
        return function(*arguments, page=Page(page_number, limit), **options)

    for option in (
        click.option("--page", "page_number", type=click.IntRange(1), default=1, help="which page of them  [1]"),
        click.option("--limit", type=click.IntRange(1, MAX_PAGE_LINES), default=25, help="how many to show  [25]"),
    ):
        run = option(run)
    return run  # type: ignore[return-value]  # click's wrapper has the place of the function
