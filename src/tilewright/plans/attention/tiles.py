"""Tiles of `attention` for a machine: its loops are written out (`ops/lowered/attention_loops.py`), their sizes are
chosen here.

Two products alternate with a softmax over a block of scores. The register tile is two vectors wide, so that narrow
heads waste few lanes, and as tall as the registers allow; the block of scores stays in a quarter of the second-level
cache, and with it the panel of keys that all its tiles share in the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith import Analyzer
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr, as_int
from tilewright.plans.framework.symbolic import values_of
from tilewright.plans.matmul.tiles import unrolled_steps
from tilewright.targets.target import Target

MOST_KEYS = 1024
"""Keys up to which a row of scores is held whole; beyond that, and where nothing bounds their number, blocks of
`KEYS`."""

KEYS = 512
MOST_ROWS = 12
LENGTHS = (16, 48, 128, 384)
"""Rows that a symbolic number of them is judged by."""


def attention_tile(rows: Expr, keys: Expr, dtype: DType, target: Target) -> dict[str, int]:
    """The attributes `rows`, `width`, `keys`, `tiles` and `steps` for scores of rows x keys elements."""
    itemsize = max(4, dtype.itemsize)
    width = 2 * target.lanes(itemsize)
    tall = max(2, min(MOST_ROWS, (target.registers - 3) // 2))
    known = as_int(rows)
    if known is None or known > 2:
        tall = _even([n for n in values_of(rows, LENGTHS) if n > tall] or values_of(rows, LENGTHS), tall)
    _, length = Analyzer().bounds(keys)
    block = KEYS if length is None or length > MOST_KEYS else max(width, -(-length // width) * width)
    tiles = max(1, min(target.l2 // 4 // (tall * block * itemsize), 32))
    steps = unrolled_steps(tall * width // target.lanes(itemsize), None)
    return {"rows": tall, "width": width, "keys": block, "tiles": tiles, "steps": steps}


def _even(counts: Sequence[int], tall: int) -> int:
    """The height, not much less than `tall`, that wastes the fewest rows, for one of these numbers of rows or
    another."""
    if max(counts) <= tall:
        return max(counts)
    heights = range(max(1, tall - 2), tall + 1)
    return min(heights, key=lambda t: (sum(-(-n // t) * (t + 1.0) / n for n in counts), -t))
