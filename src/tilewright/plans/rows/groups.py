"""The number of rows that are processed together by the stages of a chain (`plan.py`), and whether stages are
pipelined.

    for block in 0..32 with (pipeline = 1) {
      for r in 0..8 { part = max over steps of x[r, :]; parts[r, :] = part }        a vector of partial results a row
      top[0:8] = max over lanes of parts[0:8, :]                                     eight rows folded together
      for r in 0..8 { e[r, :] = exp(x[r, :] - top[r]); ... }
      ...
    }

Folding the lanes of one row is a chain of dependent shuffles that takes as long as several vectors of exponentials:
short rows are folded several at a time (`codegen/llvm/fold.py`), longer ones one by one.
"""

from __future__ import annotations

from math import ceil, prod

from tilewright.ir.expr import as_int
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.common import ENOUGH
from tilewright.plans.framework.cost import instructions
from tilewright.plans.rows.stages import Rows, materialised, slides, vector_last
from tilewright.plans.rows.transposed import is_transposed, transposed_together
from tilewright.targets.target import Target

TOGETHER = (8, 7, 6, 5, 4)
"""The numbers of short rows that may be processed together: two or three take up to twice as long as one by one (norms
and softmaxes of 24 to 300 numbers; Zen 5, 28 November 2026)."""

FEWEST_PIPELINED = 8
MAX_PIPELINED = 256
"""The largest number of rows of a pipelined loop, which takes two iterations more than it has rows."""

MIN_REGISTERS = 32
"""The number of vector registers that a pipelined step of three stages needs: sixteen hold one stage."""

STEP_VECTORS = 4
"""The number of vectors of a row that each stage processes before the next stage's turn."""

LONG_ROW = 64
"""The number of vectors from which on a row is long: folding its lanes takes little of its time."""

OVERLAPPED = 12
"""The largest number of vectors of a row after its only fold for which out-of-order execution starts the next row
meanwhile: 4,000 to 160 rows of 8 to 200 numbers, one by one, take 0.5 to 0.8 of the time of eight together for a mean,
0.6 to 1.0 for a norm of the row; longer norms with AVX2 take up to 1.4 (Zen 5, 27 November 2026)."""

SYMBOLIC_ROWS = 64
"""The number of rows in a group if their number is unknown: a few hundred rows make several groups."""

FEWEST_TURNS = 4
"""The least number of groups of rows for which pipelining pays."""


def rows_together(structure: Structure, rows: Rows, strip: int, target: Target) -> int:
    """The number of short rows that all stages process together, so that their folds, chains of dependent shuffles,
    overlap; 1: one by one, also for windows that slide over a map, which have no such chains, and for rows that are
    divided into strips (`strip`)."""
    retained = [s for s in structure.stages if materialised(structure, s)]
    outputs = [s for s in structure.stages if structure.is_output(s)]
    folded = [s for s in retained if s.role != "spatial" and not vector_last(s)]
    if strip or not rows.leading or len(outputs) > 1 or not folded or len(retained) < 2 or any(map(slides, folded)):
        return 1
    transposed = next((s for s in retained if is_transposed(structure, s)), None)
    if transposed is not None:
        return transposed_together(retained, transposed, rows.leading, target)
    leading = [as_int(it.extent) for it in outputs[0].spatial[: rows.leading]]
    long = LONG_ROW * target.lanes(4)
    own = [[as_int(it.extent) for it in s.block.iters[rows.leading :]] for s in retained]
    sizes = [prod(long if n is None else n for n in extents) for extents in own]
    longest = max(sizes)
    if longest >= long:
        return 1
    # The chain of a single fold is hidden by the next row's, if nothing long stands between the two.
    between = max((size for s, size in zip(retained, sizes, strict=True) if s is not folded[0]), default=1)
    if len(folded) == 1 and between <= OVERLAPPED * target.lanes(4):
        return 1
    # A last group of fewer rows is code of its own.
    most = min(leading[-1] or TOGETHER[0], target.l1 // 4 // (max(longest, 1) * 4))
    return next((n for n in TOGETHER if n <= most), 1)


def rows_pipelined(structure: Structure, rows: Rows, strip: int, target: Target) -> tuple[int, int]:
    """(number of rows in a loop that pipelines stages (`transform/loops/pipeline.py`), number of rows whose lanes are
    folded together). (0, 1), no pipeline, if rows are too few, too short, or too long for the first-level cache, or if
    scalar work per row takes longer than its vectors and is not done for several rows at once.

    The number of threads affects groups only, and not the order of sums.
    """
    retained = [s for s in structure.stages if materialised(structure, s)]
    outputs = [s for s in structure.stages if structure.is_output(s)]
    folded = [s for s in retained if s.role != "spatial" and not vector_last(s)]
    none = 0, 1
    if strip or not rows.leading or len(outputs) > 1 or len(folded) < 2 or target.registers < MIN_REGISTERS:
        return none
    if any(is_transposed(structure, s) for s in retained):
        return none
    *others, count = (as_int(it.extent) for it in outputs[0].spatial[: rows.leading])
    lengths = {row_length(s, rows.leading) for s in retained} - {1}
    if len(lengths) != 1 or (count is not None and count < FEWEST_PIPELINED):
        return none
    (length,), lanes = lengths, target.lanes(4)
    if length < 2 * STEP_VECTORS * lanes or length * 4 > target.l1 * target.costs.prefetching.pipelined_row:
        return none
    fold = 1 if count is None else _folded(count, length, target)
    alone = sum(instructions(s.block) for s in retained if s.role == "spatial" and row_length(s, rows.leading) == 1)
    if fold == 1 and 2 * alone * lanes > length:
        return none
    if count is None:
        return SYMBOLIC_ROWS, fold
    shared = count * prod(n or 1 for n in others) // ENOUGH if target.threads > 1 else MAX_PIPELINED
    most = min(max(shared, FEWEST_TURNS * fold, FEWEST_PIPELINED), MAX_PIPELINED)
    return _group(count, most, fold), fold


def row_length(stage: Stage, leading: int) -> int:
    """The number of elements of a row, or of terms if the stage reduces: the product of its extents after the first
    `leading`; 0 if it is not known."""
    return prod(as_int(it.extent) or 0 for it in stage.block.iters[leading:])


def _folded(count: int, length: int, target: Target) -> int:
    """The number of rows, of `length` elements each and `count` in all, whose lanes are folded together in a pipelined
    loop: the lanes of a vector, or half, if the data of three stages fit the first-level cache; else 1."""
    most = min(target.l1 * 5 // 8 // (4 * length * 4), count // FEWEST_TURNS)
    lanes = target.lanes(4)
    return next((n for n in (lanes, lanes // 2) if n <= most and count % n == 0), 1)


def _group(count: int, most: int, fold: int) -> int:
    """The number of rows in a pipelined loop, a multiple of `fold`: all `count`, if that is at most `most`; else a
    divisor of `count`, or else what makes loops of about equal length."""
    if count <= most:
        return count
    divisors = [n for n in range(most, most // 4, -1) if count % n == n % fold == 0]
    return divisors[0] if divisors else ceil(ceil(count / ceil(count / most)) / fold) * fold
