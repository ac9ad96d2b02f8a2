"""Selectors: expressions over the attributes of job classes.  Pure.

`urgency=high&tags!=heavy|feature_category=billing,mail`   `&` binds tighter than `|`, a comma lists values
`(urgency=high|tags=vip)&resource_boundary!=memory`        parentheses group        `*`   every job

1. attributes_of   what a job class declares → the values that selectors compare; described: the same of another process
2. parse           text → Selector, or SelectorError with the position
3. matches         Selector, attributes → whether the job is selected

Queue groups (--queue-selector), routing rules and kiqctl share this language.  Counterpart: GitLab's worker_matcher.rb,
which ignores what follows the first term's values (`name=my-queue` selects `my`).  Here all of the text counts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from kiqcluster.errors import UsageError
from kiqcluster.words import WORDS, hint_of

__all__ = [
    "ATTRIBUTES",
    "DECLARED",
    "AnyOf",
    "DataConsistency",
    "JobAttributes",
    "Part",
    "ResourceBoundary",
    "Selector",
    "SelectorError",
    "Term",
    "Urgency",
    "Values",
    "attributes_of",
    "described",
    "parse",
]

EVERY_JOB = "*"
Urgency = Literal["low", "high", "throttled"]
ResourceBoundary = Literal["unknown", "memory", "cpu"]
DataConsistency = Literal["always", "sticky", "delayed"]
ATTRIBUTES: dict[str, tuple[str, ...]] = {  # attribute → its values, () for any; the first of several is the default
    "worker_name": (),
    "name": (),  # of the queue
    "queue_namespace": (),
    "feature_category": (),
    "urgency": get_args(Urgency),
    "resource_boundary": get_args(ResourceBoundary),
    "has_external_dependencies": ("false", "true"),
    "tags": (),
    "idempotent": ("false", "true"),
    "data_consistency": get_args(DataConsistency),
}
DECLARED = (  # options of jobs that selectors know
    *("queue_namespace", "feature_category", "urgency", "resource_boundary", "external_dependencies"),
    *("tags", "idempotent", "data_consistency", "weight"),
)
ALIASES = {"queue": "name", "external_dependencies": "has_external_dependencies"}  # name of the option → attribute
MAX_DEPTH = 50  # of parentheses in one another
TOKEN = re.compile(r"(?P<sign>!=|[|&(),=])|(?P<word>[^\s|&(),=!]+)|(?P<other>\S)")

Values = Mapping[str, frozenset[str]]  # attribute → the job's values; absent: none


class SelectorError(UsageError):
    """A selector that cannot be used.  position: of the mistake, in characters from 0."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"selector {text!r}, character {position + 1}: {problem}")
        self.position = position


@dataclass(frozen=True, slots=True)
class JobAttributes:
    """A job as selectors see it.  values: by attribute; only tags may be several.  weight: of its queue.

    shard: of its queue, "" for the default one.  own: the queue that the class declares, where a rule decides.
    is_queue_declared: whether the class or a rule names its queue.
    """

    queue: str
    values: Values
    weight: int = 1
    shard: str = ""
    own: str = ""
    is_queue_declared: bool = True

    def is_in(self, shard: str) -> bool:
        """Return whether its queue may be in a shard; a queue whose classes are not known may be in any."""
        return self.shard == shard or not self.values["worker_name"]

    def in_queue(self, queue: str) -> JobAttributes:
        """Return the same job in another queue."""
        return replace(self, queue=queue, values={**self.values, "name": frozenset((queue,))})


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison."""

    attribute: str
    values: tuple[str, ...]
    is_negated: bool = False

    def matches(self, job: Values) -> bool:
        return job.get(self.attribute, frozenset()).isdisjoint(self.values) is self.is_negated


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Parts joined by `|`."""

    parts: tuple[Part, ...]

    def matches(self, job: Values) -> bool:
        return any(part.matches(job) for part in self.parts)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Parts joined by `&`; without any it is `*`, which matches every job."""

    parts: tuple[Part, ...]

    def matches(self, job: Values) -> bool:
        return all(part.matches(job) for part in self.parts)


Part = Term | AnyOf | AllOf


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector.  terms: all comparisons, in the order written."""

    text: str
    root: Part
    terms: tuple[Term, ...]

    def matches(self, job: Values) -> bool:
        """Return whether a job with these values is selected."""
        return self.root.matches(job)

    def unheard_of(self, jobs: Collection[JobAttributes]) -> Iterator[tuple[str, str, str]]:
        """Yield attribute, value and the nearest known value (or "") of each value that no job has.

        Only for attributes with any values: those of the others have been checked.
        """
        for term in self.terms:
            if not ATTRIBUTES[term.attribute]:
                known = sorted({value for job in jobs for value in job.values.get(term.attribute, ())})
                for value in term.values:
                    if value not in known:
                        yield term.attribute, value, _nearest(value, known)


def attributes_of(name: str | None, queue: str, options: Mapping[str, Any]) -> JobAttributes:
    """Return the attributes of a job class.

    name: on the wire; None for a queue whose classes are not known.  options: those that the class declares; GitLab's
    defaults hold for the others.
    """
    values = {attribute: frozenset(known[:1]) for attribute, known in ATTRIBUTES.items()}
    values["worker_name"] = frozenset(() if name is None else (name,))
    values["name"] = frozenset((queue,))
    namespace, colon, _ = queue.partition(":")
    values["queue_namespace"] = frozenset((namespace,) if colon else ())
    for option in options.keys() & set(DECLARED) - {"weight"}:
        value = options[option]
        values[ALIASES.get(option, option)] = frozenset(map(_text, value if isinstance(value, list) else [value]))
    return JobAttributes(queue, values, options.get("weight", 1))


def described(job: Mapping[str, Any]) -> JobAttributes:
    """Return the attributes of a job that `application.loading.describe` has described."""
    found = attributes_of(job["name"], job["queue"], job["attributes"])
    return replace(found, is_queue_declared=job["declares_queue"])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse(text: str, attributes: Collection[str] = tuple(ATTRIBUTES), why: str = "") -> Selector:
    """Return the selector.  Raises SelectorError.

    attributes: those that may be used here.  why: the reason that others may not.
    """
    return _Parser(text, attributes, why).selector()


@dataclass(frozen=True, slots=True)
class Token:
    """A sign, a word, or "" at the end."""

    text: str
    at: int
    is_word: bool = False


class _Parser:
    """Recursive descent.

    any_of := all_of ("|" all_of)*      all_of := part ("&" part)*
    part := "(" any_of ")" | "*" | attribute ("=" | "!=") value ("," value)*
    """

    def __init__(self, text: str, attributes: Collection[str], why: str) -> None:
        self._text, self._attributes, self._why = text, attributes, why
        self._terms: list[Term] = []
        self._depth = 0
        self._tokens = self._split(text)
        self._token = next(self._tokens)

    def selector(self) -> Selector:
        root = self._any_of()
        if self._token.text:
            raise self._error(self._token, f"{self._token.text!r} is one too many; write | or & between terms")
        return Selector(self._text, root, tuple(self._terms))

    def _split(self, text: str) -> Iterator[Token]:
        for at, character in enumerate(text):
            if not character.isprintable():
                raise SelectorError(
                    text, at, "it holds a line break or another control character; write it on one line"
                )
        for match in TOKEN.finditer(text):
            if match.lastgroup == "other":
                raise SelectorError(text, match.start(), f"{match[0]!r} has no meaning here; {_FORM}")
            yield Token(match[0], match.start(), match.lastgroup == "word")
        end = Token("", len(text))
        while True:
            yield end

    def _error(self, token: Token, problem: str) -> SelectorError:
        return SelectorError(self._text, token.at, problem)

    def _take(self) -> Token:
        token, self._token = self._token, next(self._tokens)
        return token

    def _any_of(self) -> Part:
        parts = [self._all_of()]
        while self._token.text == "|":
            self._take()
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self) -> Part:
        parts = [self._part()]
        while self._token.text == "&":
            self._take()
            parts.append(self._part())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _part(self) -> Part:
        token = self._take()
        if token.text == "(":
            return self._group(token)
        if token.text == EVERY_JOB:
            return AllOf(())
        if not token.is_word:
            found = f"before {token.text!r}" if token.text else "at the end"
            raise self._error(token, f"a term is missing {found}; {_FORM}")
        return self._term(token)

    def _group(self, opening: Token) -> Part:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(opening, f"there are more than {MAX_DEPTH} parentheses in one another; write fewer")
        inner = self._any_of()
        if self._token.text != ")":
            problem = f"{self._token.text!r} is one too many" if self._token.text else "a ) is missing"
            raise self._error(self._token, f"{problem}; the ( is character {opening.at + 1}")
        self._take()
        self._depth -= 1
        return inner

    def _term(self, word: Token) -> Term:
        attribute = self._attribute(word)
        sign = self._take()
        if sign.text not in ("=", "!="):
            raise self._error(sign, f"after {word.text!r} comes = or !=, as in {_example(attribute)}")
        values = [self._value(attribute)]
        while self._token.text == ",":
            self._take()
            values.append(self._value(attribute))
        term = Term(attribute, tuple(values), sign.text == "!=")
        self._terms.append(term)
        return term

    def _attribute(self, word: Token) -> str:
        attribute = ALIASES.get(word.text, word.text)
        if attribute in self._attributes:
            return attribute
        if attribute in ATTRIBUTES:
            raise self._error(word, f"{word.text!r} is not known here{self._why}; {self._known()}")
        near = _nearest(word.text, [*self._attributes, *ALIASES])
        hint = f"did you mean {near!r}?" if near else self._known()
        if (found := WORDS.get(("selector", word.text))) is not None:
            hint = str(hint_of("selector", word.text)) if found.target in self._attributes else self._known()
        raise self._error(word, f"there is no attribute {word.text!r}; {hint}")

    def _known(self) -> str:
        return f"the attributes are {', '.join(self._attributes)}"

    def _value(self, attribute: str) -> str:
        token = self._take()
        if not token.is_word:
            found = f"before {token.text!r}" if token.text else "at the end"
            raise self._error(token, f"a value of {attribute} is missing {found}")
        known = ATTRIBUTES[attribute]
        if known and token.text not in known:
            near = _nearest(token.text, known)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
            raise self._error(token, f"{attribute} has no value {token.text!r}; {hint}")
        if EVERY_JOB in token.text:
            raise self._error(token, "'*' stands alone, for every job; values are names in full")
        return token.text


_FORM = "terms are like urgency=high or tags!=a,b, with | (or), & (and) and parentheses between them"


def _example(attribute: str) -> str:
    return f"{attribute}={(ATTRIBUTES[attribute] or ('a',))[-1]}"


def _nearest(word: str, known: Collection[str]) -> str:
    return next(iter(difflib.get_close_matches(word, known, 1)), "")
