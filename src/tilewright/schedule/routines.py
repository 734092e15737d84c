"""Routines: loop programs for whole functions that no sequence of primitives can produce from the functions' blocks.

A routine is to a function what an intrinsic is to a tile (`tensorize.py`): it has a name, it recognises the functions
that it computes, and `implement` replaces all their blocks by it. Its sizes are the knobs of the plan that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ir.loops import PrimFunc
from tilewright.schedule.state import refuse
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Routine:
    """A loop program written by hand for functions of one kind.

    name    the name in traces
    sizes   names of its sizes, each at least 1, or at least 0 where it is one of `none`
    build   maps an unscheduled function and the sizes to an equivalent function: loops, or an operator's stages in
            other parts; raises ScheduleError for a function that it does not compute, or inconsistent sizes
    """

    name: str
    sizes: tuple[str, ...]
    build: Callable[[PrimFunc, Mapping[str, int]], PrimFunc]
    none: tuple[str, ...] = ()


_routines: dict[str, Routine] = {}


def register(routine: Routine) -> Routine:
    """Add a routine; its name must be new."""
    if routine.name in _routines:
        raise ValueError(f"routine {routine.name!r} is registered twice")
    _routines[routine.name] = routine
    return routine


def implement(func: PrimFunc, routine: str, sizes: Mapping[str, int]) -> PrimFunc:
    """Put a routine in the place of all blocks.

    Before::

        for b, h, i, j, d: block scores(...): scores[b, h, i, j] = scores[b, h, i, j] + queries[...] * keys[...]
        ...
        for b, i, h, d: block y(...): y[b, i, h, d] = result[b, h, i, d] / total[b, h, i]

    After `implement("attention", {"rows": 12, "width": 32, ...})`::

        for bh in parallel 0..heads:
            kt[panel, d, lane] = k ...
            for block of row tiles: ...

    Refuses unknown routines, sizes that the routine has not, functions that it does not compute, and functions that
    were scheduled.
    """
    entry = _routines.get(routine)
    if entry is None:
        known = ", ".join(sorted(_routines)) or "none"
        raise refuse(func, f"no routine is called {routine!r}", expected=known)
    if sorted(sizes) != sorted(entry.sizes) or any(n < (name not in entry.none) for name, n in sizes.items()):
        expected = f"{', '.join(entry.sizes)}, each at least 1"
        expected += "".join(f" ({name}: 0)" for name in entry.none)
        raise refuse(func, f"the sizes of {routine!r}", expected=expected, got=dict(sizes))
    return entry.build(func, sizes)


__all__ = ["Routine", "implement", "register"]
