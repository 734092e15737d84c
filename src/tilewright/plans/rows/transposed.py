"""Transpositions before a chain over rows: channels that become the rows' elements, as before a norm of channels last.

    for n, h, w_o:                                                      16 rows together
        for c_o: for tile: turned[0:16, c_o * 16 + ...] = x[n, c, h, w]   tiles through registers
        total[0:16] = sum over turned[0:16, :]; ...

If the transposition were inlined, each of the chain's passes would gather elements one by one, from lines at a distance
of a plane: if a plane is a power of two, these share sets of the caches, and each element costs a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.arith import Analyzer, simplify
from tilewright.ir.expr import Expr, Load, Var, as_int
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import substitute, variables
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.cost import Cost, load_cycles, number, store_cycles
from tilewright.plans.idioms.reducing import steps
from tilewright.plans.idioms.tile_axes import flat, shuffle_cycles, tile_axes
from tilewright.plans.idioms.transposes import transpose_tiles
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target

FEWEST = 4
"""The number of rows of the smallest tile."""
SHORTEST = 8
"""The number of elements of the shortest row for which transposing in tiles pays."""


def is_transposed(structure: Structure, stage: Stage) -> bool:
    """Whether a stage is a transposition that pays in tiles: it copies 4-byte elements, whose source is contiguous
    along the last dimension but one, to an intermediate that several stages read. Its rows have at least `SHORTEST`
    elements, and their number has a known divisor of at least `FEWEST`."""
    store = stage.block.body
    if structure.is_output(stage) or stage.reduce or len(stage.spatial) < 2 or len(structure.consumers(stage)) < 2:
        return False
    if not isinstance(store, Store) or not isinstance(store.value, Load) or store.buffer.dtype.itemsize != 4:
        return False
    row, last = stage.spatial[-2:]
    if _divisor(row.extent) < FEWEST or (as_int(last.extent) or 0) < SHORTEST:
        return False
    place = flat(store.value.indices, store.value.buffer.shape, 0)
    return steps(place, row.var) == 1 and _is_from_memory(place, stage, last.var) and store.indices[-1] is last.var


def _divisor(extent: Expr) -> int:
    """A number that divides an extent for all values of its symbols: for `16 * n` it is 16."""
    known, an = as_int(extent), Analyzer()
    return an.form_divisor(an.form(extent)) if known is None else known


def _is_from_memory(place: Expr, stage: Stage, var: Var) -> bool:
    """Whether `place`, an address as expression, moves by a constant stride other than 0 and 1 when `var` grows, as
    from plane to plane."""
    step = simplify(substitute(place, {var: var + 1}) - place)
    return as_int(step) not in (0, 1) and all(it.var not in variables(step) for it in stage.block.iters)


def transposed_together(retained: Sequence[Stage], transposed: Stage, leading: int, target: Target) -> int:
    """The number of rows that a transposition before a chain produces at once, where rows have `leading` dimensions
    outside of them: a cache line's worth if such rows fit half of the first-level cache, half of it if they fit a
    quarter of the second, else a divisor of the rows that fits; 1 if nothing does, or the chain's rows have another
    rank."""
    if leading != len(transposed.spatial) - 1:
        return 1
    longest = max(prod(as_int(it.extent) or 0 for it in stage.block.iters[leading:]) for stage in retained)
    count = _divisor(transposed.spatial[-2].extent)
    cached, from_memory = (room // (4 * max(longest, 1)) for room in (target.l1 // 2, target.l2 // 4))
    line = target.caches.line // 4
    whole = [n for n, most in ((line, cached), (line // 2, from_memory)) if n <= most and count % n == 0]
    parts = [n for n in range(min(2 * line, from_memory), FEWEST - 1, -1) if count % n == 0]
    return next(iter((*whole, *parts)), 1)


def schedule_transposed(s: Schedule, stage: Stage, target: Target) -> bool:
    """Schedule the transposition `stage` by tiles in registers, inside the shared rows; returns False, without a
    change, if no tiles fit."""
    block = s.block(stage.name)
    axes = tile_axes(s, block, target)
    if axes is None:
        return False
    transpose_tiles(s, block, axes, target, lines=False)
    return True


def turning(stage: Stage, target: Target) -> Cost:
    """The cost of a transposition in addition to a roofline: its shuffles, and writing and reading its tiles."""
    elements = prod(number(it.extent) for it in stage.spatial)
    moved = 4 * elements
    return Cost(shuffle_cycles(elements, target), load_cycles(moved, target), store_cycles(moved, target))
