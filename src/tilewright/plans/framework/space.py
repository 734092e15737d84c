"""The space that a decision chooses from: settings, their knobs, and which settings are neighbours.

A space is the list of its legal settings, the preferred one first. Its knobs are read off that list: a combination of
values that is not in it violates a constraint of the plan or layout that made the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields

from tilewright.ir.key import digest
from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass
from tilewright.support.errors import ParseError

_LABEL = re.compile(r"(?P<kind>[a-z][a-z0-9_ ]*?)(?: (?P<knobs>[a-z]+=-?\d+(?:,[a-z]+=-?\d+)*))?")


def space_digest(labels: Iterable[str]) -> str:
    """A digest of the settings of a decision that does not depend on their order."""
    return digest(sorted(labels))


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of a decision: `kind` is the alternative ("direct", "winograd", a plan's name), `knobs` are its
    sizes."""

    kind: str
    knobs: tuple[tuple[str, int], ...] = ()

    @property
    def label(self) -> str:
        """The setting as text, "winograd tile=4,rows=2", by which decisions are forced and recorded."""
        knobs = ",".join(f"{name}={value}" for name, value in self.knobs)
        return f"{self.kind} {knobs}" if knobs else self.kind

    @classmethod
    def parse(cls, label: str) -> Setting:
        """The setting that a label describes. Raises ParseError."""
        match = _LABEL.fullmatch(label)
        if match is None:
            raise ParseError("no setting of a decision", expected='"kind" or "kind name=1,other=2"', got=repr(label))
        pairs = (pair.split("=") for pair in (match["knobs"] or "").split(",") if pair)
        return cls(match["kind"], tuple((name, int(value)) for name, value in pairs))

    @classmethod
    def of(cls, algorithm: Algorithm) -> Setting:
        """The setting that stands for an algorithm; its sizes are the knobs."""
        values = ((f.name, getattr(algorithm, f.name)) for f in fields(algorithm))
        return cls(algorithm.name, tuple((name, value) for name, value in values if isinstance(value, int)))

    def knob(self, name: str) -> int:
        return dict(self.knobs)[name]


@dataclass(frozen=True, slots=True)
class Knob:
    """A size of an alternative, with the values that occur in the space, in ascending order."""

    name: str
    values: tuple[int, ...]

    def neighbours(self, value: int) -> tuple[int, ...]:
        """The next smaller and the next larger value."""
        at = self.values.index(value)
        return tuple(self.values[k] for k in (at - 1, at + 1) if 0 <= k < len(self.values))


@dataclass(frozen=True, slots=True)
class Space:
    """The legal settings of a decision, the preferred one first."""

    settings: tuple[Setting, ...]

    def __len__(self) -> int:
        return len(self.settings)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.settings)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(s.label for s in self.settings)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of settings, such as plans or algorithms, each once."""
        return tuple(dict.fromkeys(s.kind for s in self.settings))

    def knobs(self, kind: str) -> tuple[Knob, ...]:
        """The knobs that settings of this kind have, each with all of its values."""
        values: dict[str, set[int]] = {}
        for setting in self.settings:
            if setting.kind == kind:
                for name, value in setting.knobs:
                    values.setdefault(name, set()).add(value)
        return tuple(Knob(name, tuple(sorted(candidate))) for name, candidate in values.items())

    def neighbours(self, setting: Setting) -> tuple[Setting, ...]:
        """The neighbours of a setting: for each of its knobs and each direction the legal setting with the knob's next
        value that agrees in most other knobs, and the preferred setting of each other alternative.

        Knobs depend on each other (a strip is whole tiles), so that often no legal setting differs in one knob alone.
        """
        result: dict[Setting, None] = {}
        mine = [s for s in self.settings if s.kind == setting.kind]
        for knob in self.knobs(setting.kind):
            for value in knob.neighbours(setting.knob(knob.name)):
                beside = [s for s in mine if s.knob(knob.name) == value]
                result[max(beside, key=lambda s: len(set(s.knobs) & set(setting.knobs)))] = None
        for kind in self.kinds:
            if kind != setting.kind:
                result[next(s for s in self.settings if s.kind == kind)] = None
        return tuple(result)
