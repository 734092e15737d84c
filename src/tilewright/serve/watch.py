"""Watches a folder of models: new or changed ones are opened, removed ones unloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.serve.errors import ServeError
from tilewright.serve.opening import Source, in_folder

_Mark = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a folder of models since the last look: versions to open, and (name, version) of each that was
    removed."""

    opened: Sequence[Source]
    gone: Sequence[tuple[str, str]]

    def __bool__(self) -> bool:
        return bool(self.opened or self.gone)


class Watcher:
    """The models of a folder, with the state of their files when last checked.

    A file is opened once two checks in a row find it unchanged, so that a file that is still being written is not; this
    delays a file that is renamed into place by one check.

    Args:
        options: of all models, as `Source` takes them.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder, self._options = folder, options
        self._known: dict[tuple[str, str], _Mark] = {}
        self._before: dict[tuple[str, str], _Mark] = {}

    def accept(self) -> list[Source]:
        """Take the present state of the folder as known, and return the sources of all models in it: to be called once,
        by a server that opens them when it starts."""
        sources, marks = self._look()
        self._known, self._before = dict(marks), dict(marks)
        return sources

    def changes(self) -> Changes:
        """The changes since the state that is known: models that are new or whose file was changed, once two calls in a
        row have found it the same, and models that are gone. They count as known afterwards."""
        sources, marks = self._look()
        steady = {key: mark for key, mark in marks.items() if self._before.get(key) == mark}
        opened = [s for s in sources if (key := (s.name, s.version)) in steady and self._known.get(key) != steady[key]]
        gone = [key for key in self._known if key not in marks]
        for source in opened:
            self._known[source.name, source.version] = steady[source.name, source.version]
        for key in gone:
            del self._known[key]
        self._before = marks
        return Changes(opened, gone)

    def _look(self) -> tuple[list[Source], dict[tuple[str, str], _Mark]]:
        marks: dict[tuple[str, str], _Mark] = {}
        sources = []
        try:
            listed = list(in_folder(self._folder, **self._options))
        except (ServeError, OSError):
            listed = []
        for source in listed:
            assert source.path is not None
            try:
                there = source.path.stat()
            except OSError:  # it went while we looked
                continue
            marks[source.name, source.version] = there.st_mtime_ns, there.st_size, there.st_ino
            sources.append(source)
        return sources, marks


__all__ = ["Changes", "Watcher"]
