"""Layouts of recurrent layers: weights in panels that hold all gates of some elements of the state."""

from __future__ import annotations

from dataclasses import fields
from math import prod

from tilewright.ir.dtype import i8
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.rnn import RecurrenceAttrs, gates_of
from tilewright.ops.rnn_loops import Tile
from tilewright.targets.target import Target
from tilewright.transform.graph.bounds import MOVES
from tilewright.transform.graph.channels import moved_shape
from tilewright.transform.layout.assigner import Assigner

CODED_ROWS = 4
"""The largest number of rows for which weights are read as codes: with more rows, decoding costs more than it saves."""
ROWS = 8
"""The largest number of rows in a tile: from so many on, loading weights no longer limits the speed."""
SYMBOLIC = (4, 8)
"""(rows of a tile, number of tiles) for a batch of unknown size."""
WIDEST = 8
"""The largest number of vectors in a panel."""
BODY = 24
"""The number of vector multiply-adds that the body of the loop over the state should contain."""


def recurrence(a: Assigner, node: Node) -> bool:
    """Rewrite a recurrence with packed recurrent weights: packed once in `prepare` if they are weights, else once per
    call."""
    weights, attrs = node.inputs[1], node.of(RecurrenceAttrs)
    assert weights is not None
    hidden = as_int(weights.shape[0])
    if not hidden or node.outputs[0].dtype.bits < 32:
        return False
    gates = gates_of(attrs, weights.type, weights.shape[0])
    tile = recurrent_tile(node.outputs[0].shape[1], hidden, gates, node.outputs[0].dtype.itemsize, a.target)
    coded = _codes(a, weights) if exceeds_cache(node, weights, a.target) else None
    source, scale = (a.as_row_major(weights), None) if coded is None else coded
    (packed,) = a.emit(
        "lowered.pack_gates",
        (source,),
        {"gates": gates, "width": tile.width},
        f"{weights.name}_packed",
    )
    if weights in a.fixed:
        a.fixed.add(packed)
    ordinary = [None if v is None else a.as_row_major(v) for v in node.inputs]
    own = {f.name: getattr(attrs, f.name) for f in fields(attrs)}
    own |= {"rows": tile.rows, "tiles": tile.tiles, "unrolled": tile.steps}
    operands = (ordinary[0], packed, *ordinary[2:])
    if scale is not None:
        operands = (*operands, *[None] * (7 - len(operands)), scale)
    results = a.emit("lowered.recurrence", operands, own, node.outputs[0].name)
    a.row_major.update(zip(node.outputs, results, strict=True))
    return True


def exceeds_cache(node: Node, weights: Value, target: Target) -> bool:
    """Whether decoding codes is faster than reading weights in f32: these exceed the second-level cache, and at most
    `CODED_ROWS` rows use them."""
    rows, size = as_int(node.outputs[0].shape[1]), as_int(weights.type.size)
    return rows is not None and size is not None and rows <= CODED_ROWS and 4 * size > target.caches.l2


def _codes(a: Assigner, weights: Value) -> tuple[Value, Value] | None:
    """The codes i8[H, gates * H] that weights are computed from, and their scales f32[gates * H]; None for other
    weights."""
    moves: list[Node] = []
    product = a.producer(weights) if weights in a.fixed else None
    while product is not None and product.op in MOVES and product.inputs[0] is not None:
        moves.insert(0, product)
        product = a.producer(product.inputs[0])
    if product is None or product.op != "mul":
        return None
    for number, scale in (product.inputs, product.inputs[::-1]):
        codes = None if number is None else _narrowed(a, number)
        if codes is None or scale is None or codes.shape != product.output.shape:
            continue
        size, rank = [as_int(d) or 0 for d in scale.shape], codes.type.rank
        shape: tuple[int, ...] | None = (*[1] * (rank - len(size)), *size)
        for move in moves:
            shape = None if shape is None else moved_shape(move, shape)
        columns = as_int(weights.shape[1]) or 0
        if shape not in ((1, columns), (1, 1)):
            return None
        for move in moves:
            (codes,) = a.emit(move.op, (codes,), move.attrs, f"{weights.name}_codes")
            a.fixed.add(codes)
        scale = a.emit("reshape", (a.as_row_major(scale),), {"shape": (prod(shape),)}, f"{weights.name}_scale")[0]
        a.fixed.add(scale)
        if shape == (1, 1):
            (scale,) = a.emit("broadcast", (scale,), {"shape": (columns,)}, f"{weights.name}_scales")
            a.fixed.add(scale)
        return codes, scale
    return None


def _narrowed(a: Assigner, number: Value) -> Value | None:
    """The i8 codes from which `number` is cast, in row-major form; None for other values."""
    while number.dtype is not i8:
        node = a.producer(number)
        if node is None or node.op != "cast" or node.inputs[0] is None:
            return None
        number = node.inputs[0]
    return a.as_row_major(number)


def recurrent_tile(batch: Expr, hidden: int, gates: int, itemsize: int, target: Target) -> Tile:
    """The register tile of a recurrence over `batch` sequences with `hidden` units of `gates` gates each, in elements
    of `itemsize` bytes: equal tiles of rows, wider panels if there are few rows; registers hold the sums of all
    gates."""
    sums = target.registers * 3 // 4  # The others hold weights and an element of the state.
    known, lanes = as_int(batch), target.lanes(itemsize)
    most = max(1, min(ROWS, sums // gates))
    if known is None:
        rows, tiles = min(SYMBOLIC[0], most), SYMBOLIC[1]
    else:
        rows = min(range(min(most, max(known, 1)), 0, -1), key=lambda rows: _cycles(known, rows, gates, target))
        tiles = -(-max(1, -(-known // rows)) // target.threads)
    vectors = 1
    while 2 * vectors * rows * gates <= sums and vectors < WIDEST and vectors * lanes < hidden:
        vectors *= 2
    body = rows * gates * vectors
    return Tile(rows, vectors * lanes, tiles, max(1, min(4, BODY // body)))


def _cycles(batch: int, rows: int, gates: int, target: Target) -> float:
    """The estimated cycles per element of the old state of `batch` sequences, for `gates` gates, with tiles of `rows`
    rows, including the unused rows of the last tile."""
    multiplied = max(rows * gates / target.fma_per_cycle, target.costs.arithmetic.fma_latency)
    loaded = (rows + gates) * target.vector_bits / 8 / target.l1_bandwidth
    return -(-batch // rows) * max(multiplied, loaded)
