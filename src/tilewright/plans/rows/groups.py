"""How many rows go through the stages of a chain together (`plan.py`), and whether stages go one behind the other.

    for block in 0..32 with (pipeline = 1) {
      for r in 0..8 { part = max over steps of x[r, :]; parts[r, :] = part }        a vector of partial results a row
      top[0:8] = max over lanes of parts[0:8, :]                                     eight rows folded together
      for r in 0..8 { e[r, :] = exp(x[r, :] - top[r]); ... }
      ...
    }

Folding the lanes of one row is a chain of shuffles that take as long as several vectors of exponentials: rows of a few
vectors are folded some at a time (`codegen/llvm/fold.py`), longer ones by themselves.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.expr import as_int
from tilewright.plans.framework.analysis import Structure
from tilewright.plans.framework.common import ENOUGH
from tilewright.plans.rows.stages import Rows, materialised, slides, vector_last
from tilewright.plans.rows.turned import is_turned, turned_together
from tilewright.targets.target import Target

TOGETHER = (8, 4, 2)
"""Numbers of short rows that are worked on together."""

PIPELINED = (256, 128, 64, 32, 16, 8)
"""Numbers of rows through which stages go one behind the other."""

MANY_REGISTERS = 32
"""Vector registers that a step of three stages needs: sixteen hold one stage's."""

STEP_VECTORS = 4
"""Vectors of a row that each stage works on before the next one's turn."""

LONG_ROW = 64
"""Vectors from which on a row is long: folding its lanes takes little of its time."""

OVERLAPPED = 12
"""Vectors of a row behind its only fold up to which a core goes on to the next row meanwhile: 4,000 to 160 rows of 8 to
200 numbers by themselves take 0.5 to 0.8 of the time of eight together for a mean, 0.6 to 1.0 for a norm of the row;
longer norms with AVX2 take up to 1.4 (Zen 5, 27 November 2026)."""

FEW = 4
"""Rows that gain little by going together."""

WHOLE_GROUPS = 4
"""Whole groups of short rows from which on a last one may have fewer."""

FEWEST_TURNS = 4
"""Groups of rows from which on it pays that stages go one behind the other."""


def rows_together(structure: Structure, rows: Rows, strip: int, target: Target) -> int:
    """Short rows that go through all stages together: folding the lanes of one takes as long as a chain of shuffles,
    that of several hardly longer. Windows beside one another do so as they are, where nothing holds them up."""
    kept = [s for s in structure.stages if materialised(structure, s)]
    outputs = [s for s in structure.stages if structure.is_output(s)]
    folded = [s for s in kept if s.role != "spatial" and not vector_last(s)]
    if strip or not rows.leading or len(outputs) > 1 or not folded or len(kept) < 2 or any(map(slides, folded)):
        return 1
    turned = next((s for s in kept if is_turned(structure, s)), None)
    if turned is not None:
        return turned_together(kept, turned, rows.leading, target)
    leading = [as_int(it.extent) for it in outputs[0].spatial[: rows.leading]]
    long = LONG_ROW * target.lanes(4)
    own = [[as_int(it.extent) for it in s.block.iters[rows.leading :]] for s in kept]
    sizes = [prod(long if n is None else n for n in extents) for extents in own]
    longest = max(sizes)
    if longest >= long or not leading[-1]:
        return 1
    # The chain of a single fold is hidden by the next row's, if nothing long stands between the two.
    between = max((size for s, size in zip(kept, sizes, strict=True) if s is not folded[0]), default=1)
    if len(folded) == 1 and between <= OVERLAPPED * target.lanes(4):
        return 1
    parts = prod(n or ENOUGH for n in leading)
    most = min(parts // ENOUGH, target.l1 // 4 // (max(longest, 1) * 4))
    even = next((n for n in TOGETHER if n <= most and leading[-1] % n == 0), 1)
    # A last group of fewer rows is code of its own: worth it where few divide them and several reductions gain.
    uneven = even <= FEW and len(folded) > 1 and TOGETHER[0] <= most and leading[-1] >= WHOLE_GROUPS * TOGETHER[0]
    return TOGETHER[0] if uneven else even


def rows_pipelined(structure: Structure, rows: Rows, strip: int, target: Target) -> int:
    """Number of rows through which stages go one behind the other (`transform/loops/pipeline.py`); 0 where rows are too
    short, too long to stay in the first level of cache, or no whole number of steps. What waits for memory all the time
    gains nothing: three rows at once are three streams."""
    kept = [s for s in structure.stages if materialised(structure, s)]
    outputs = [s for s in structure.stages if structure.is_output(s)]
    folded = [s for s in kept if s.role != "spatial" and not vector_last(s)]
    if strip or not rows.leading or len(outputs) > 1 or len(folded) < 2 or target.registers < MANY_REGISTERS:
        return 0
    if any(is_turned(structure, s) for s in kept):
        return 0
    leading = [as_int(it.extent) for it in outputs[0].spatial[: rows.leading]]
    own = {prod(as_int(it.extent) or 0 for it in s.block.iters[rows.leading :]) for s in kept} - {1}
    if len(own) != 1 or None in leading:
        return 0
    (length,) = own
    step = STEP_VECTORS * target.lanes(4)
    if length < 2 * step or length % step or length * 4 > target.l1 // 2:
        return 0
    most = prod(n or 1 for n in leading) // ENOUGH
    return next((n for n in PIPELINED if n <= most and (leading[-1] or 1) % n == 0), 0)


def rows_folded(structure: Structure, rows: Rows, pipelined: int, target: Target) -> int:
    """Rows whose lanes are folded together where stages go one behind the other: as many as a vector has lanes if what
    three stages touch of them, which the first two read and the last two have between them, twice, takes half of the
    first level of cache; 1 where only a few would."""
    kept = [s for s in structure.stages if materialised(structure, s)]
    length = max(prod(as_int(it.extent) or 0 for it in s.block.iters[rows.leading :]) for s in kept)
    most = min(target.l1 // 2 // (4 * length * 4), pipelined // FEWEST_TURNS)
    lanes = target.lanes(4)
    return next((n for n in (lanes, lanes // 2) if n <= most and pipelined % n == 0), 1)
