"""Rules of a release: which version may follow, and the section of CHANGELOG.md.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ENTRIES", "KINDS", "Refused", "changelog_with", "check_version", "latest", "section"]

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:rc([1-9]\d*))?")
TAG_PREFIX = "v"
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed"}  # ending of a fragment → heading
ENTRIES = "Entries of the next release are fragments in [changelog.d/](changelog.d)."
FINAL = 1 << 30  # a final release comes after all its candidates

Parts = tuple[int, int, int, int]  # major, minor, patch, release candidate


class Refused(Exception):
    """The release cannot be made; the text says what to do."""


def parse(version: str) -> Parts:
    """Return the parts of a version.  Raises Refused for anything but X.Y.Z or X.Y.ZrcN."""
    match = VERSION.fullmatch(version)
    if match is None:
        raise Refused(f"{version!r} is no version: write X.Y.Z, or X.Y.ZrcN for a release candidate")
    major, minor, patch, candidate = match.groups()
    return int(major), int(minor), int(patch), int(candidate) if candidate else FINAL


def latest(tags: Iterable[str]) -> str | None:
    """Return the newest version among the tags of a repository, None if no tag is a version."""
    versions = [tag.removeprefix(TAG_PREFIX) for tag in tags if tag.startswith(TAG_PREFIX)]
    return max((each for each in versions if VERSION.fullmatch(each)), key=parse, default=None)


def check_version(version: str, tags: Sequence[str]) -> None:
    """Raise Refused unless this version may follow those that are tagged: no gap, nothing twice, nothing backwards."""
    parts = parse(version)
    if f"{TAG_PREFIX}{version}" in tags:
        raise Refused(f"the tag {TAG_PREFIX}{version} exists: a released version never changes; choose the next one")
    before = latest(tags)
    if before is None:
        return
    major, minor, patch, candidate = parse(before)
    following = {(major, minor, patch + 1), (major, minor + 1, 0), (major + 1, 0, 0)}
    if candidate != FINAL:
        following = {(major, minor, patch)}
    if parts[:3] not in following or parts <= parse(before):
        allowed = ", ".join(".".join(map(str, each)) for each in sorted(following))
        raise Refused(f"{version} does not follow {before}: choose {allowed}, or a candidate (rc1) of it")
    _check_candidate(version, parts, before)


def _check_candidate(version: str, parts: Parts, before: str) -> None:
    last = parse(before)
    expected = last[3] + 1 if last[:3] == parts[:3] else 1
    if parts[3] not in (FINAL, expected):
        raise Refused(f"{version} leaves out a candidate: the next one is rc{expected}")


def section(version: str, date: str, fragments: Mapping[str, str]) -> str:
    """Return the section of a release.  fragments: file name → text.  Raises Refused for a name of no known kind."""
    unknown = [name for name in fragments if name.split(".")[-2] not in KINDS]
    if unknown:
        raise Refused(f"changelog.d/{unknown[0]}: the name must end in .{'.md, .'.join(KINDS)}.md")
    lines = [f"## {version} ({date})"]
    for kind, heading in KINDS.items():
        texts = [fragments[name] for name in sorted(fragments) if name.split(".")[-2] == kind]
        if texts:
            lines += ["", f"### {heading}", "", *map(_item, texts)]
    return "\n".join(lines) + "\n"


def _item(text: str) -> str:
    return "- " + text.strip().replace("\n", "\n  ")


def changelog_with(changelog: str, new: str) -> str:
    """Return the changelog with a new section before the earlier ones.  Raises Refused if its head was changed.

    A section whose heading has no date was written ahead of its release.  The release of that version gives it the
    date, and the new entries follow its own; until then it stays first, before the sections of its candidates.
    """
    head, found, rest = changelog.partition(ENTRIES)
    if not found:
        raise Refused(f"CHANGELOG.md lacks the line {ENTRIES!r}, below which sections are added")
    earlier = rest.strip()
    heading, _, entries = new.partition("\n")
    version = heading.partition(" (")[0]
    if earlier.startswith(f"{version.partition('rc')[0]}\n"):
        ahead, mark, earlier = earlier.partition("\n## ")
        earlier = mark.strip("\n") + earlier
        if "rc" in version:
            new = f"{ahead.rstrip()}\n\n{new}"
        else:
            _, _, written = ahead.partition("\n")
            new = f"{heading}\n{written.rstrip()}\n{entries}"
    return f"{head}{ENTRIES}\n\n{new}" + (f"\n{earlier}\n" if earlier else "")
