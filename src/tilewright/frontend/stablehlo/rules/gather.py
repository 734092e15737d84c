"""`gather`: slices of a tensor at computed positions, imported as Tilewright's gather along one dimension.

Several indexed dimensions are merged into one in front; a single one stays where it is. Each slice's start is clamped
as StableHLO specifies. Where the program itself makes negative starts count from the end, the gather does that too.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.shape import sliced
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.dtype import i32, i64
from tilewright.ir.expr import Expr, as_expr, as_int, is_const, minimum, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, same_dim
from tilewright.ops.shape import RangeAttrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError


@dataclass(frozen=True, slots=True)
class Lookup:
    """How a gather or scatter addresses a tensor: which dimensions it looks up by index, which it reads whole, and the
    size of the window.

    looked    the operand's dimensions that are indexed, or of which a window has only a part
    whole     the others: all of a window
    window    the size of the window in each of the operand's dimensions
    starts    for a looked-up dimension, the column of the index vectors that has its start
    batching  for a looked-up dimension, the dimension of the indices' batch whose position it takes
    """

    looked: tuple[int, ...]
    whole: tuple[int, ...]
    window: tuple[Expr, ...]
    starts: dict[int, int]
    batching: dict[int, int]


def lookup(
    shape: Sequence[Expr],
    window: Sequence[Expr],
    start_map: Sequence[int],
    batching: Sequence[int],
    index_batching: Sequence[int],
    vector: int,
) -> Lookup:
    starts = {d: k for k, d in enumerate(start_map)}
    # The indices' batch has no dimension of index vectors.
    batches = {d: b - (b > vector) for d, b in zip(batching, index_batching, strict=True)}
    # A start in a dimension whose window is all of it can only be 0.
    looked = [d for d in range(len(shape)) if d in batches or not same_dim(window[d], shape[d])]
    whole = [d for d in range(len(shape)) if d not in looked]
    return Lookup(tuple(looked), tuple(whole), tuple(window), starts, batches)


def vectors(call: Call, indices: Item, axis: int) -> Value:
    """The index vectors of operand `indices` with their components, along `axis`, in the last dimension; as i64 for
    wide integers, else i32."""
    x = call.value(indices)
    x = call.cast(x, i64 if x.dtype.bits == 64 or x.dtype.name == "u32" else i32)
    if axis == x.type.rank:
        return call.reshape(x, (*x.shape, 1))
    return call.transpose(x, [*(k for k in range(x.type.rank) if k != axis), axis])


def positions(
    call: Call, index: Value, at: Lookup, shape: Sequence[Expr], inside: bool
) -> tuple[Value | None, list[Value]]:
    """(flat index, within the looked-up dimensions of `shape`, of each element of each window: [batch..., window...];
    conditions, over the batch, that a window is inside). With `inside`, starts are clamped instead."""
    batch = index.shape[:-1]
    inner = [at.window[d] for d in at.looked]
    rank = len(batch) + len(inner)
    total: Value | None = None
    conditions: list[Value] = []
    stride: Expr = as_expr(1)
    for k in reversed(range(len(at.looked))):
        d = at.looked[k]
        parts: list[Value] = []
        if d in at.batching:
            parts.append(call.iota(batch[at.batching[d]], index.dtype, rank, at.batching[d]))
        elif d in at.starts:
            start = call.slice(index, len(batch), at.starts[d], 1)
            start = call.reshape(start, (*batch, *[1] * len(inner)))
            last = dim(shape[d] - at.window[d])
            from_end = counted_from_end(call, start, shape[d]) if inside and len(at.looked) == 1 else None
            if from_end is not None and is_const(at.window[d], 1):
                start = call.reshape(from_end, start.shape)
            elif inside:
                start = call.clamped(start, 0, last)
            else:
                low = call.emit("ge", start, call.like(0, start))
                conditions.append(call.emit("and", low, call.emit("le", start, call.size_like(last, start))))
            parts.append(start)
        if not is_const(inner[k], 1):
            parts.append(call.iota(inner[k], index.dtype, rank, len(batch) + k))
        for part in parts:
            if not is_const(stride, 1):
                part = call.emit("mul", part, call.size_like(stride, part))
            total = part if total is None else call.emit("add", total, part)
        stride = dim(stride * shape[d])
    return total, conditions


def counted_from_end(call: Call, start: Value, extent: Expr) -> Value | None:
    """`i` of `select(i < 0, i + extent, i)`, by which NumPy, JAX and Tilewright's exporter make negative starts count
    from the end; None for other values."""
    chosen = call.producer(_source(call, start, "reshape"), "select")
    match chosen and chosen.inputs:
        case Value() as condition, Value() as moved, Value() as ordinary:
            below, sum_ = call.producer(condition, "lt"), call.producer(moved, "add")
        case _:
            return None
    if below is None or sum_ is None or below.inputs[0] is not ordinary or sum_.inputs[0] is not ordinary:
        return None
    is_so = _is_size(call, below.inputs[1], as_expr(0)) and _is_size(call, sum_.inputs[1], extent)
    return ordinary if is_so and ordinary.type.size == start.type.size else None


def _is_size(call: Call, x: Value | None, size: Expr) -> bool:
    """Whether `x` equals `size`: it is such a constant, or computed by the nodes that `Emitter.symbols` emits for that
    expression."""
    if x is None or x in call.constants:
        return x is not None and bool((call.constants[x] == as_int(size)).all())
    line = call.producer(_source(call, x, "reshape", "cast"), "range")
    if line is None or not is_const(as_expr(line.of(RangeAttrs).step), 0):
        return False
    return same_dim(as_expr(line.of(RangeAttrs).start), size)


def _source(call: Call, x: Value, *through: str) -> Value:
    """The value from which `x` is computed by operators in `through` alone, each with one input; `x` itself if there
    are none."""
    while node := next((n for op in through if (n := call.producer(x, op))), None):
        (source,) = node.inputs
        assert source is not None
        x = source
    return x


@rule("gather")
def gather(call: Call) -> Value:
    n = call.fields("dimension_numbers")
    sizes = [as_expr(s) for s in call.ints("slice_sizes")]
    return gathered(call, n, sizes)


def gathered(call: Call, n: dict[str, list[int]], sizes: Sequence[Expr]) -> Value:
    result = _sliced(call, n, sizes)
    if result is not None:
        return result
    x = call.value(0)
    vector: int = n["index_vector_dim"]  # type: ignore[assignment]
    if len(sizes) != x.type.rank:
        raise ModelError("the sizes of slices do not fit", got=f"{list(sizes)} for {x.type}")
    index = vectors(call, call.item(1), vector)
    at = lookup(
        x.shape, sizes, n["start_index_map"], n["operand_batching_dims"], n["start_indices_batching_dims"], vector
    )
    batch = index.shape[:-1]
    dropped = {*n["collapsed_slice_dims"], *n["operand_batching_dims"]}
    row, _ = positions(call, index, at, x.shape, True)
    if row is None:
        row = call.reshape(call.constant(0, i32), ())
    row = call.broadcast(row, (*batch, *(sizes[d] for d in at.looked)))
    retained = [d for d in at.looked if d not in dropped]
    row = call.reshape(row, (*batch, *(sizes[d] for d in retained)))
    # What is looked up in one dimension is taken there; several stand in front as one.
    axis = at.looked[0] if len(at.looked) == 1 else 0
    y = call.emit("gather", x if len(at.looked) == 1 else table(call, x, at), row, axis=axis)
    # From [whole[:axis]..., batch..., kept..., whole[axis:]...] to the order of the result.
    created = [*at.whole[:axis], *[None] * len(batch), *retained, *at.whole[axis:]]
    offsets = iter(d for d in range(x.type.rank) if d not in dropped)
    batches = iter(range(axis, axis + len(batch)))
    gone = [created.index(d) for d in at.whole if d in dropped]  # of one element
    rank = len(created) - len(gone)
    order = [created.index(next(offsets)) if k in n["offset_dims"] else next(batches) for k in range(rank)]
    y = call.transpose(y, [*order, *gone])
    return call.reshape(y, y.shape[:rank])


def _sliced(call: Call, n: dict[str, list[int]], sizes: Sequence[Expr]) -> Value | None:
    """A gather of slices of `sizes` at one position that is known, such as `x[:, 0]`, as a slice; `n` has the dimension
    numbers of the operation. None for other gathers."""
    x, index = call.item(0), call.array(1)
    if index is None or index.size != len(n["start_index_map"]) or n["operand_batching_dims"]:
        return None
    rank, vector = len(call.item(1).shape), call.fields("dimension_numbers")["index_vector_dim"]
    batch = rank - (vector < rank)
    begin: list[Expr] = [as_expr(0)] * len(x.shape)
    for d, start in zip(n["start_index_map"], index.reshape(-1).tolist(), strict=True):
        last = dim(x.shape[d] - sizes[d])
        begin[d] = dim(minimum(as_expr(max(int(start), 0)), last))
    y = call.value(sliced(call, x, begin, sizes, [1] * len(sizes)))
    retained = [d for d in range(len(x.shape)) if d not in n["collapsed_slice_dims"]]
    shape: list[Expr] = [as_expr(1)] * (batch + len(retained))
    for place, d in zip(n["offset_dims"], retained, strict=True):
        shape[place] = sizes[d]
    return call.reshape(y, shape)


def table(call: Call, x: Value, at: Lookup) -> Value:
    """`x` with its looked-up dimensions first, merged into one."""
    transposed = call.transpose(x, [*at.looked, *at.whole])
    return call.reshape(transposed, (dim(product([x.shape[d] for d in at.looked])), *(x.shape[d] for d in at.whole)))


@rule("torch_index_select")
def index_select(call: Call) -> Value:
    axis, batch = call.integer("dim"), call.integer("batch_dims", 0)
    if batch:
        raise call.unsupported("with batch dimensions")
    x = call.value(0)
    index = call.clamped(call.value(1), 0, dim(x.shape[axis] - 1))
    return call.emit("gather", x, index, axis=axis)


__all__ = ["Lookup", "gathered", "lookup", "positions", "table", "vectors"]
