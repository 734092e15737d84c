"""The history of a schedule's loops and blocks. References identify these, not their names, which later ones may
reuse."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.loops import Block, For, PrimFunc
from tilewright.schedule.requests import LoopId, Step, root_position
from tilewright.schedule.state import outside_blocks
from tilewright.schedule.trace import RefKind

Key = tuple[RefKind, str]


class History:
    """The history of the loops and blocks of one schedule. Each is created by an instruction, may be removed by
    another, and has one name. Loops of a moved block continue to exist if their names stay.

    `steps` are the splits and fusions, in order.
    """

    __slots__ = ("_births", "_gone", "_origins", "_there", "steps")

    def __init__(self, func: PrimFunc) -> None:
        self._there: set[Key] = _parts(func)
        self._births: dict[Key, int] = {}
        self._gone: dict[tuple[RefKind, str, int], str] = {}
        self._origins: dict[int, PrimFunc] = {0: func}
        self.steps: list[Step] = []

    def copy(self) -> History:
        other = object.__new__(History)
        other._there, other._births, other._gone = set(self._there), dict(self._births), dict(self._gone)
        other._origins, other.steps = dict(self._origins), list(self.steps)
        return other

    def birth(self, kind: RefKind, name: str) -> int:
        """The number of the instruction that created the existing loop or block with this name; 0 if the original
        function had it."""
        return self._births.get((kind, name), 0)

    def why_gone(self, kind: RefKind, name: str, birth: int) -> str | None:
        """The text of the primitive that removed the loop or block (`kind`) called `name` that appeared at instruction
        number `birth`; None if it exists, or never did."""
        return self._gone.get((kind, name, birth))

    def has(self, loop: LoopId) -> bool:
        """Whether a loop still exists."""
        return self.why_gone("l", loop.name, loop.birth) is None

    def become(self, func: PrimFunc, by: str, number: int) -> list[Key]:
        """Record that instruction `number`, whose text is `by`, resulted in `func`. Returns the removed and the new
        loops and blocks."""
        there = _parts(func)
        gone, new = self._there - there, there - self._there
        for key in gone:
            self._gone[*key, self._births.pop(key, 0)] = by
        for key in new:
            self._births[key] = number
            self._origins[number] = func
        self._there = there
        return [*gone, *new]

    def root(self, loop: LoopId, block: str) -> int | None:
        """The position of the iterator of `block` that `loop` drove when both were new; None if it is not known."""
        func = self._origins.get(max(loop.birth, self.birth("b", block)))
        return None if func is None else root_position(func, block, loop.name)

    def first(self, loops: Iterable[LoopId], block: str) -> PrimFunc:
        """The function as it was when the block and the last of `loops` were new."""
        return self._origins[max((self.birth("b", block), *(x.birth for x in loops)))]


def _parts(func: PrimFunc) -> set[Key]:
    parts: set[Key] = set()
    for s in outside_blocks(func.body):
        if type(s) is For:
            parts.add(("l", s.var.name))
        elif type(s) is Block:
            parts.add(("b", s.name))
    return parts


__all__ = ["History"]
