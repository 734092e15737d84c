"""Layouts of recurrent layers: weights in panels that hold all gates of some elements of the state."""

from __future__ import annotations

from dataclasses import fields

from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Node
from tilewright.ops.rnn import RecurrenceAttrs, gates_of
from tilewright.ops.rnn_loops import Tile
from tilewright.targets.target import Target
from tilewright.transform.layout.assigner import Assigner

ROWS = 8
"""Rows of a tile at most: beyond, its weights are no longer what takes time."""
SYMBOLIC = (4, 8)
"""Rows and tiles of a batch whose size is not known."""
WIDEST = 8
"""Vectors of a panel at most."""
BODY = 24
"""Multiply-adds of vectors that a body of the loop over the state should have."""


def recurrence(a: Assigner, node: Node) -> bool:
    """The recurrent weights are packed: once in `prepare` if they are weights, else once a call for all its steps."""
    weights, attrs = node.inputs[1], node.of(RecurrenceAttrs)
    assert weights is not None
    hidden = as_int(weights.shape[0])
    if not hidden or node.outputs[0].dtype.bits < 32:
        return False
    gates = gates_of(attrs, weights.type, weights.shape[0])
    tile = recurrent_tile(node.outputs[0].shape[1], hidden, gates, node.outputs[0].dtype.itemsize, a.target)
    (packed,) = a.emit(
        "lowered.pack_gates",
        (a.as_row_major(weights),),
        {"gates": gates, "width": tile.width},
        f"{weights.name}_packed",
    )
    if weights in a.fixed:
        a.fixed.add(packed)
    ordinary = [None if v is None else a.as_row_major(v) for v in node.inputs]
    own = {f.name: getattr(attrs, f.name) for f in fields(attrs)}
    own |= {"rows": tile.rows, "tiles": tile.tiles, "unrolled": tile.steps}
    results = a.emit("lowered.recurrence", (ordinary[0], packed, *ordinary[2:]), own, node.outputs[0].name)
    a.row_major.update(zip(node.outputs, results, strict=True))
    return True


def recurrent_tile(batch: Expr, hidden: int, gates: int, itemsize: int, target: Target) -> Tile:
    """Equal tiles of rows, and wider panels where rows are few; registers hold the sums of all gates."""
    sums = target.registers * 3 // 4  # The others hold weights and an element of the state.
    known, lanes = as_int(batch), target.lanes(itemsize)
    most = max(1, min(ROWS, sums // gates))
    if known is None:
        rows, tiles = min(SYMBOLIC[0], most), SYMBOLIC[1]
    else:
        rows = min(range(most, 0, -1), key=lambda rows: _cycles(known, rows, gates, target))
        tiles = -(-max(1, -(-known // rows)) // target.threads)
    vectors = 1
    while 2 * vectors * rows * gates <= sums and vectors < WIDEST and vectors * lanes < hidden:
        vectors *= 2
    body = rows * gates * vectors
    return Tile(rows, vectors * lanes, tiles, max(1, min(4, BODY // body)))


def _cycles(batch: int, rows: int, gates: int, target: Target) -> float:
    """The cost of an element of the old state in tiles of so many rows, those past the last one included."""
    multiplied = max(rows * gates / target.fma_per_cycle, target.costs.arithmetic.fma_latency)
    loaded = (rows + gates) * target.vector_bits / 8 / target.l1_bandwidth
    return -(-batch // rows) * max(multiplied, loaded)
