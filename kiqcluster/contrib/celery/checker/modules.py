"""Modules: the files of a code base by the whole names of modules, as imports of a file write them.

places     what an expression of a file names: (file, name there), followed through imports
find       the files that an imported module may be: none of them, one, or several that no file tells apart
name_of    the whole name of a file's module, None where the files do not tell it

A relative import names one file.  An absolute one begins in a folder of sys.path, which nobody tells: any folder may be
one that is no package itself, and the one that has the importing file below it is taken before others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiqcluster.contrib.celery.checker.source import Origin, Source

__all__ = ["Modules", "Place"]

Place = tuple[Path, str]  # a file, and a name in it: "app", "self.app"
Parts = tuple[str, ...]


@dataclass(slots=True)
class Modules:
    """The files of a code base."""

    sources: dict[Path, Source]
    _by_last_part: dict[str, list[tuple[Parts, Source]]] = field(default_factory=lambda: defaultdict(list))
    _places: dict[Place, tuple[Place, ...]] = field(default_factory=dict)
    _imported_as: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, sources: Sequence[Source]) -> Modules:
        modules = cls({each.file: each for each in sources})
        for each in sources:
            parts = _parts(each.file)
            modules._by_last_part[parts[-1]].append((parts, each))
        for source in sources:
            for parts in source.absolute:
                modules._note(source, parts)
        return modules

    def _note(self, source: Source, parts: Parts) -> None:
        """Note under which name a file is imported, where no other file can be meant."""
        files, rest = self._longest(source, Origin(None, parts))
        if len(files) == 1:
            self._imported_as[files[0].file].add(".".join(parts[: len(parts) - len(rest)]))

    def places(self, source: Source, name: str) -> tuple[Place, ...]:
        """Return where `a.b.c` of a file may be declared: there, and in the files from which it is imported.

        Several places, where the name is set several times or files cannot be told apart.
        """
        known = self._places.get((source.file, name))
        if known is None:
            known = tuple(dict.fromkeys(self._follow((source.file, name), set())))
            self._places[source.file, name] = known
        return known

    def _follow(self, place: Place, seen: set[Place]) -> Iterator[Place]:
        if place in seen or not place[1]:
            return
        seen.add(place)
        yield place
        source = self.sources[place[0]]
        origin = source.origin_of(place[1])
        origins = [Origin(each.folder, (*each.parts, *place[1].split("."))) for each in source.starred]
        for each in origins if origin is None else [origin]:
            files, rest = self._longest(source, each)
            for file in files:
                yield from self._follow((file.file, ".".join(rest)), seen)

    def find(self, source: Source, origin: Origin) -> list[tuple[Source, str]]:
        """Return the files that a module may be, each with the name in it where the import goes on: "", "Own"."""
        files, rest = self._longest(source, origin)
        return [(each, ".".join(rest)) for each in files]

    def _longest(self, source: Source, origin: Origin) -> tuple[list[Source], Parts]:
        """Return the files of the longest module with which a name begins, and what of the name follows."""
        for end in range(len(origin.parts), -1 if origin.folder else 0, -1):
            if files := self._files(source, Origin(origin.folder, origin.parts[:end])):
                return files, origin.parts[end:]
        return [], origin.parts

    def _files(self, source: Source, module: Origin) -> list[Source]:
        if module.folder is not None:
            below = module.folder.joinpath(*module.parts)
            named = [below / "__init__.py", *([below.with_name(below.name + ".py")] if module.parts else [])]
            return [self.sources[each] for each in named if each in self.sources][:1]
        wanted = module.parts
        found = [
            (Path(*parts[: -len(wanted)]), each)
            for parts, each in self._by_last_part.get(wanted[-1], ())
            if parts[-len(wanted) :] == wanted
        ]
        below_roots = [pair for pair in found if not _is_package(pair[0])]
        if not below_roots:  # of a script in a package: its folder is the first of sys.path
            return [each for root, each in found if root == source.file.parent]
        near = [pair for pair in below_roots if pair[0] in source.file.parents]
        return [each for _, each in near or below_roots]

    def name_of(self, source: Source) -> str | None:
        """Return the whole name of a file's module, as Celery has it in names of tasks; None where that is not known.

        By the packages around it, and by the imports of other files: a folder without __init__.py may be a package.
        """
        names = set(self._imported_as.get(source.file, ()))
        parts = [] if source.file.stem == "__init__" else [source.file.stem]
        folder = source.file.parent
        while _is_package(folder):
            parts.insert(0, folder.name)
            folder = folder.parent
        if folder != source.file.parent or (not names and folder == (source.root or folder)):
            names.add(".".join(parts))
        return names.pop() if len(names) == 1 else None


def _parts(file: Path) -> Parts:
    return (file.parent if file.stem == "__init__" else file.with_suffix("")).parts


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").exists()
