"""Operators that move elements, reduce and contract, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.codegen.onnx.pointwise import rule
from tilewright.codegen.onnx.writer import Writer, code
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, as_expr, as_int
from tilewright.ir.graph import Node, Value
from tilewright.ops.index import AxisAttrs, GatherNdAttrs, OneHotAttrs, ReverseSequenceAttrs
from tilewright.ops.matmul import EinsumAttrs, MatmulAttrs
from tilewright.ops.reduce import ArgAttrs, ReduceAttrs
from tilewright.ops.rooms import is_room
from tilewright.ops.scan import CumulativeAttrs
from tilewright.ops.scatter import ScatterAttrs, ScatterElementsAttrs
from tilewright.ops.shape import (
    ConcatAttrs,
    ConstantAttrs,
    EyeAttrs,
    PadAttrs,
    RangeAttrs,
    SliceAttrs,
    TileAttrs,
    TransposeAttrs,
    TriluAttrs,
)
from tilewright.support.errors import UnsupportedError


def operand(node: Node, k: int) -> Value:
    """Operand `k` of a node, which must not be None."""
    value = node.inputs[k]
    assert value is not None, f"{node.op} lacks operand {k}"
    return value


@rule("constant")
def constant(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.constant(node.of(ConstantAttrs).value.array, node.output.dtype, node.output.name)


@rule("reshape")
def reshape(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.reshape(x[0], node.output.shape)


@rule("broadcast")
def broadcast(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Expand", [x[0], w.sizes(node.output.shape)])


@rule("transpose")
def transpose(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Transpose", x, perm=list(node.of(TransposeAttrs).perm))


@rule("concat")
def concat(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Concat", x, axis=node.of(ConcatAttrs).axis)


@rule("tile")
def tile(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Tile", [x[0], w.sizes(node.of(TileAttrs).repeats)])


@rule("slice")
def slices(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The rule of `slice`. Its ends may lie after the extent. Where a step is negative, begin and end are counted back
    from the extent: the place before the first element is then -extent - 1, as -1 would mean the last element."""
    attrs, shape = node.of(SliceAttrs), operand(node, 0).shape
    begins: list[Expr] = []
    ends: list[Expr] = []
    for begin, size, step, extent in zip(attrs.begin, attrs.size, attrs.step, shape, strict=True):
        first = as_expr(begin) if step > 0 else begin - extent
        begins.append(as_expr(first))
        ends.append(as_expr(first + as_expr(size) * step))
    axes = w.ints(range(len(shape)))
    return w.op("Slice", [x[0], w.sizes(begins), w.sizes(ends), axes, w.ints(attrs.step)])


@rule("pad")
def pad(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(PadAttrs)
    fill = x[1] if len(x) > 1 else w.scalar(attrs.value, node.output.dtype)
    fill_or_none = fill if attrs.mode == "constant" else None
    return w.op("Pad", [x[0], w.sizes([*attrs.before, *attrs.after]), fill_or_none], mode=attrs.mode)


@rule("range")
def counted(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs, t = node.of(RangeAttrs), node.output.dtype
    size = w.op("Squeeze", [w.size(attrs.size), w.ints([0])])
    y = w.cast(w.op("Range", [w.scalar(0, i64), size, w.scalar(1, i64)]), i64, t)
    for kind, value, ordinary in (("Mul", attrs.step, 1), ("Add", attrs.start, 0)):
        number = value if isinstance(value, float) else as_int(as_expr(value))
        if number is None:
            y = w.op(kind, [y, w.cast(w.size(value), i64, t)])
        elif number != ordinary:
            y = w.op(kind, [y, w.scalar(number, t)])
    return y


@rule("trilu")
def trilu(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(TriluAttrs)
    return w.op("Trilu", [x[0], w.scalar(attrs.k, i64)], upper=int(attrs.upper))


@rule("eye")
def eye(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(EyeAttrs)
    rows, columns = (as_int(as_expr(d)) for d in (attrs.rows, attrs.columns))
    if rows is None or columns is None:
        raise UnsupportedError("an identity matrix of open size cannot be said in ONNX", got=node.output.type)
    return w.constant(np.eye(rows, columns, attrs.k), attrs.dtype)


# --- products -------------------------------------------------------------------------------------------------------


@rule("matmul")
def matmul(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The rule of `matmul`: `Gemm` for transposed float matrices, else `MatMul`. Integers of 8 bits have an operator of
    their own; other integers are widened before, since their sums are wide, and so are halves whose sums are not
    rounded."""
    attrs = node.of(MatmulAttrs)
    t, to = operand(node, 0).dtype, node.output.dtype
    flat = operand(node, 0).type.rank == operand(node, 1).type.rank == 2 and to.is_float
    if flat and (attrs.transpose_a or attrs.transpose_b):
        return w.op("Gemm", [w.cast(v, t, to) for v in x], transA=int(attrs.transpose_a), transB=int(attrs.transpose_b))
    sides = []
    for k, transposed in enumerate((attrs.transpose_a, attrs.transpose_b)):
        rank = operand(node, k).type.rank
        sides.append(w.transpose(x[k], [*range(rank - 2), rank - 1, rank - 2]) if transposed else x[k])
    if t is not to and t.bits == 8:
        return w.op("MatMulInteger", sides)
    return w.op("MatMul", [w.cast(s, t, to) for s in sides])


@rule("einsum")
def einsum(w: Writer, node: Node, x: Sequence[str]) -> str:
    return w.op("Einsum", x, equation=node.of(EinsumAttrs).equation)


# --- reductions -----------------------------------------------------------------------------------------------------

_REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_mean": "ReduceMean",
    "reduce_prod": "ReduceProd",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
}


@rule(*_REDUCTIONS)
def reduction(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(ReduceAttrs)
    if not attrs.axes:
        return w.op("Identity", x)
    kind = _REDUCTIONS[node.op]
    return w.op(kind, [x[0], w.ints(attrs.axes)], keepdims=int(attrs.keepdims))


@rule("argmax", "argmin")
def arg(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(ArgAttrs)
    kind = {"argmax": "ArgMax", "argmin": "ArgMin"}[node.op]
    return w.op(kind, x, axis=attrs.axis, keepdims=int(attrs.keepdims), select_last_index=int(attrs.select_last_index))


@rule("cumsum")
def cumsum(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(CumulativeAttrs)
    axis = w.scalar(attrs.axis, i64)
    return w.op("CumSum", [x[0], axis], exclusive=int(attrs.exclusive), reverse=int(attrs.reverse))


# --- gathers and scatters -------------------------------------------------------------------------------------------


def _places(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The name of a node's indices (operand 1), cast to i64 unless they are i32 or i64, as ONNX requires."""
    t = operand(node, 1).dtype
    return x[1] if t.name in ("i32", "i64") else w.cast(x[1], t, i64)


@rule("gather", "gather_elements")
def gather(w: Writer, node: Node, x: Sequence[str]) -> str:
    kind = {"gather": "Gather", "gather_elements": "GatherElements"}[node.op]
    return w.op(kind, [x[0], _places(w, node, x)], axis=node.of(AxisAttrs).axis)


@rule("gather_nd")
def gather_nd(w: Writer, node: Node, x: Sequence[str]) -> str:
    places = w.cast(x[1], operand(node, 1).dtype, i64)
    return w.op("GatherND", [x[0], places], batch_dims=node.of(GatherNdAttrs).batch_dims)


@rule("scatter_elements")
def scatter_elements(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(ScatterElementsAttrs)
    places = _places(w, node, x)
    return w.op("ScatterElements", [x[0], places, x[2]], axis=attrs.axis, reduction=attrs.reduction)


@rule("scatter_nd")
def scatter_nd(w: Writer, node: Node, x: Sequence[str]) -> str:
    places = w.cast(x[1], operand(node, 1).dtype, i64)
    return w.op("ScatterND", [x[0], places, x[2]], reduction=node.of(ScatterAttrs).reduction)


@rule("one_hot")
def one_hot(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(OneHotAttrs)
    return w.op("OneHot", [x[0], w.size(attrs.depth), x[1]], axis=attrs.axis)


@rule("reverse_sequence")
def reverse_sequence(w: Writer, node: Node, x: Sequence[str]) -> str:
    attrs = node.of(ReverseSequenceAttrs)
    lengths = w.cast(x[1], operand(node, 1).dtype, i64)
    return w.op("ReverseSequence", [x[0], lengths], batch_axis=attrs.batch_axis, time_axis=attrs.time_axis)


# --- sizes that data decides ----------------------------------------------------------------------------------------


@rule("head")
def head(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The rule of `head`: a slice of the first rows. ONNX operators that return a number of rows decided by data (such
    as NonZero) have no rows after them, so that nothing is left to cut where the count itself is such a result."""
    result, rows = node.defines, node.inputs[0]
    assert result is not None and rows is not None
    count = w.symbols[result] = w.op("Reshape", [x[1], w.ints([1])])
    if is_room(rows):
        nothing = w.op("ConstantOfShape", [w.op("Concat", [count, w.ints([0])], axis=0)])
        return w.op("Cast", [nothing], to=code(rows.dtype))
    return w.op("Slice", [x[0], w.ints([0]), count, w.ints([0])])


@rule("require")
def require(w: Writer, node: Node, x: Sequence[str]) -> str:
    """The rule of `require`: the operand alone. ONNX has no operator that ends a call with an error, but its runtimes
    check the operands of operators themselves."""
    return w.op("Identity", [x[0]])


def rows_of(w: Writer, x: str) -> tuple[str, str]:
    """Emit the transpose of the matrix `x`; returns its name, and that of its number of rows."""
    rows = w.op("Transpose", [x], perm=[1, 0])
    return rows, row_count(w, rows)


def row_count(w: Writer, rows: str) -> str:
    return w.op("Squeeze", [w.op("Shape", [rows], start=0, end=1), w.ints([0])])
