"""`scatter`: a tensor in which windows at computed positions are replaced by, or combined with, updates.

An update whose window is not inside is written to an extra row at the end, which is then cut off.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.module import Block
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.gather import Lookup, lookup, positions, table, vectors
from tilewright.frontend.stablehlo.rules.reduce import monoid
from tilewright.ir.dtype import DType, boolean, i32, u8
from tilewright.ir.expr import as_expr, as_int, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim
from tilewright.support.errors import UnsupportedError


@rule("scatter")
def scatter(call: Call) -> list[Value]:
    if len(call.items) != 3:
        raise UnsupportedError("a scatter of several operands is not supported")
    n = call.fields("scatter_dimension_numbers")
    x, updates = call.value(0), call.value(2)
    reduction = _reduction(call.op.regions[0], x.dtype)
    if as_int(updates.type.size) == 0 or as_int(x.type.size) == 0:
        return [x]
    t = x.dtype
    if t is boolean:
        x, updates = call.cast(x, u8), call.cast(updates, u8)
    return [call.cast(_scattered(call, n, x, updates, reduction), t)]


def _reduction(body: Block, t: DType) -> str:
    if not body.body and body.returned == body.arguments[1:]:
        return "none"
    kind = monoid(body, t)
    if kind not in ("add", "mul", "max", "min"):
        raise UnsupportedError("a scatter with this body is not supported")
    return kind


def _scattered(call: Call, n: dict[str, list[int]], x: Value, updates: Value, reduction: str) -> Value:
    vector: int = n["index_vector_dim"]  # type: ignore[assignment]
    dropped = {*n["inserted_window_dims"], *n["input_batching_dims"]}
    retained = [d for d in range(x.type.rank) if d not in dropped]
    place = dict(zip(retained, n["update_window_dims"], strict=True))
    window = [as_expr(1) if d in dropped else updates.shape[place[d]] for d in range(x.type.rank)]
    index = vectors(call, call.item(1), vector)
    batch = index.shape[:-1]
    at = lookup(
        x.shape,
        window,
        n["scattered_dims_to_operand_dims"],
        n["input_batching_dims"],
        n["scatter_indices_batching_dims"],
        vector,
    )
    if any(d in at.starts for d in at.whole):  # a start that is not 0 drops the window
        at = _looked_everywhere(at, x.type.rank)
    row, conditions = positions(call, index, at, x.shape, False)
    rows = dim(product([x.shape[d] for d in at.looked]))
    if row is None:
        row = call.like(0, call.iota(1, i32))
    for condition in conditions:
        row = call.emit("select", condition, row, call.size_like(rows, row))
    inner = [window[d] for d in at.looked]
    row = call.broadcast(row, (*batch, *inner))
    # Updates to [batch..., looked..., whole...].
    others = [k for k in range(updates.type.rank) if k not in n["update_window_dims"]]
    order = [*others, *(place[d] for d in (*at.looked, *at.whole) if d in place)]
    arguments = call.reshape(call.transpose(updates, order), (*batch, *inner, *(window[d] for d in at.whole)))
    data = table(call, x, at)
    if conditions:
        zeros = [0] * (data.type.rank - 1)
        one = [as_expr(v) for v in (1, *zeros)]
        data = call.emit("pad", data, before=tuple(as_expr(0) for _ in one), after=tuple(one), mode="constant", value=0)
    row = call.reshape(row, (*row.shape, 1))
    y = call.emit("scatter_nd", data, row, arguments, reduction=reduction)
    if conditions:
        y = call.slice(y, 0, 0, rows)
    order = [*at.looked, *at.whole]
    y = call.reshape(y, [x.shape[d] for d in order])
    return call.transpose(y, [order.index(d) for d in range(x.type.rank)])


def _looked_everywhere(at: Lookup, rank: int) -> Lookup:
    """The lookup with every indexed dimension counted as looked up, even if windows span it, for a tensor of this
    rank."""
    looked = tuple(d for d in range(rank) if d in at.looked or d in at.starts)
    return replace(at, looked=looked, whole=tuple(d for d in range(rank) if d not in looked))
