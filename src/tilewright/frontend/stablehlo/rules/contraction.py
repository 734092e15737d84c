"""Rules for products and convolutions: `dot_general`, `dot`, `convolution`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arith import prove
from tilewright.frontend.common.contraction import conv_transpose, convolved
from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.rules.shape import padded, reversed_along
from tilewright.frontend.stablehlo.scope import Item, known_item
from tilewright.ir.dtype import DType, boolean, f16, f32, i32
from tilewright.ir.expr import Expr, as_int, is_const, maximum, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim
from tilewright.ops.matmul import Exactness
from tilewright.support.errors import ModelError, UnsupportedError


@rule("dot")
def dot(call: Call) -> Item:
    a, b = call.item(0), call.item(1)
    return _product(call, [], [], [len(a.shape) - 1], [0] if b.shape else [])


@rule("dot_general")
def dot_general(call: Call) -> Item:
    n = call.fields("dot_dimension_numbers")
    batch, contracting = "batching_dimensions", "contracting_dimensions"
    return _product(call, n[f"lhs_{batch}"], n[f"rhs_{batch}"], n[f"lhs_{contracting}"], n[f"rhs_{contracting}"])


def _product(call: Call, batch_a: list[int], batch_b: list[int], sum_a: list[int], sum_b: list[int]) -> Item:
    """The product of the call's two operands a and b, summed over the dimensions `sum_a` of a and `sum_b` of b, pair by
    pair; the dimensions `batch_a` and `batch_b` run together. The result has the batch dimensions first, then the
    remaining ones of each operand. Raises ModelError if the lists do not fit."""
    a, b = call.value(0), call.value(1)
    exactness = asked(call.op.attributes)
    if len(batch_a) != len(batch_b) or len(sum_a) != len(sum_b):
        raise ModelError("the dimensions of a product do not fit", got=f"{a.type}, {b.type}")
    for i, j in zip((*batch_a, *sum_a), (*batch_b, *sum_b), strict=True):
        call.dimensions.equal(a.shape[i], b.shape[j])
    rest_a = [k for k in range(a.type.rank) if k not in (*batch_a, *sum_a)]
    rest_b = [k for k in range(b.type.rank) if k not in (*batch_b, *sum_b)]
    batch = [a.shape[k] for k in batch_a]
    shape = (*batch, *(a.shape[k] for k in rest_a), *(b.shape[k] for k in rest_b))
    if a.dtype is boolean:
        a, b = call.cast(a, i32), call.cast(b, i32)
    t = common_type(a.dtype, b.dtype, call.dtype)
    a, b = call.cast(a, t), call.cast(b, t)
    depth = [a.shape[k] for k in sum_a]
    rows, columns = [a.shape[k] for k in rest_a], [b.shape[k] for k in rest_b]
    if not sum_a:
        return _outer(call, a, b, [*batch_a, *rest_a], [*batch_b, *rest_b], len(batch), len(rest_b), shape)
    left = _matrix(call, a, batch_a, rest_a, sum_a, (*batch, product(rows), product(depth)))
    right, transposed = _right(call, b, batch_b, rest_b, sum_b, (batch, product(depth), product(columns)))
    if not batch and len(rest_a) > 1 and a.type.rank == len(rest_a) + 1 and sum_a == [a.type.rank - 1]:
        left = a  # as it stands: all dimensions but the last are rows
    single = {"exactness": exactness} if exactness and t is f32 else {}
    flags = {"transpose_b": True} if transposed else {}
    y = call.emit("matmul", left, right, **flags, **single)
    y = call.reshape(_rounded(call, y), shape)
    return Item(y.type, y)


def asked(attributes: Mapping[str, Any]) -> Exactness:
    """The accuracy that a product of f32 requests by its algorithm or by the precisions of its operands (HIGH and
    HIGHEST are three and six products of bf16 where XLA has no others); "" if it leaves that open."""
    algorithm, precisions = attributes.get("algorithm"), attributes.get("precision_config")
    if isinstance(algorithm, dict):
        kinds = {str(algorithm.get(f"{side}_precision_type")) for side in ("lhs", "rhs")}
        if kinds == {"tf32"}:
            return "x3" if algorithm.get("num_primitive_operations") == 1 else "x6"
        if kinds == {"bf16"}:
            return _BFLOAT16.get(algorithm.get("num_primitive_operations"), "f32")
        if kinds == {"f16"}:
            return "x3"
        return "" if all(kind.startswith("f8") for kind in kinds) else "f32"
    required = precisions if isinstance(precisions, list) else []
    return "x6" if "HIGHEST" in required else "x3" if "HIGH" in required else ""


_BFLOAT16: dict[Any, Exactness] = {1: "", 3: "x3", 6: "x6"}
"""By the number of products of bf16 that are summed for one of f32."""


def common_type(a: DType, b: DType, result: DType) -> DType:
    """The element type in which operands are multiplied, so that sums are as accurate as the result's type; f32 for
    results of 8-bit floats."""
    result = f32 if result.is_minifloat else result
    if a is not b or (result is not a and not (a.is_int and a.bits < 32 and result is i32)):
        return result if result.is_float or result.is_int else a
    return a


def _matrix(
    call: Call, x: Value, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int], shape: Sequence[Expr]
) -> Value:
    return call.reshape(call.transpose(x, [*batch, *rows, *columns]), [dim(d) for d in shape])


def _right(
    call: Call,
    b: Value,
    batch: Sequence[int],
    rest: Sequence[int],
    depth: Sequence[int],
    sizes: tuple[Sequence[Expr], Expr, Expr],
) -> tuple[Value, bool]:
    """(the right operand `b` as matrices, whether they are [rest, depth]) of a product that sums over the dimensions
    `depth` of `b` and keeps `batch` and `rest`. The matrices are usually [depth, rest], but if the dimensions of `b`
    lie in the other order, or it was just transposed, it is used as it lies. `sizes` are the extents of the batch, the
    depth and the rest."""
    lead, deep, wide = sizes
    transposed = call.producer(b, "transpose") if not batch and b.type.rank == 2 and list(depth) == [0] else None
    if transposed is not None and transposed.inputs[0] is not None:  # weights [out, in], as PyTorch has them
        return transposed.inputs[0], True
    if [*batch, *rest, *depth] == list(range(b.type.rank)) and rest:
        return call.reshape(b, [*lead, dim(wide), dim(deep)]), True
    return _matrix(call, b, batch, depth, rest, (*lead, deep, wide)), False


def _outer(
    call: Call,
    a: Value,
    b: Value,
    order_a: Sequence[int],
    order_b: Sequence[int],
    batch: int,
    columns: int,
    shape: Sequence[Expr],
) -> Item:
    """A product that sums over no dimension: both operands, in the orders `order_a` and `order_b` of their dimensions,
    are broadcast and multiplied to `shape`: first `batch` dimensions of both, then the ones of `a` alone, then the
    `columns` dimensions of `b` alone."""
    a = call.transpose(a, order_a)
    b = call.transpose(b, order_b)
    a = call.reshape(a, (*a.shape, *[1] * columns))
    b = call.reshape(b, (*b.shape[:batch], *[1] * (len(shape) - batch - columns), *b.shape[batch:]))
    y = call.emit("mul", a, b)
    return call.lazy(_rounded(call, y), shape)


def _rounded(call: Call, y: Value) -> Value:
    """Sums in the result's element type. XLA rounds sums of 8-bit floats to f16 first (CPU, jaxlib 0.10)."""
    t = call.dtype
    if t is boolean:
        return call.emit("ne", y, call.like(0, y))
    return call.emit("cast", call.cast(y, f16), dtype=t, saturate=False) if t.is_minifloat else call.cast(y, t)


# --- convolution ----------------------------------------------------------------------------------------------------


@rule("convolution")
def convolution(call: Call) -> Value:
    n = call.fields("dimension_numbers")
    spatial = len(n["input_spatial_dimensions"])
    strides = call.ints("window_strides", [1] * spatial)
    pads = call.ints("padding", [0] * 2 * spatial)
    return convolve(call, strides, pads[0::2], pads[1::2])


def convolve(call: Call, strides: Sequence[int], low: Sequence[Any], high: Sequence[Any]) -> Value:
    n = call.fields("dimension_numbers")
    rank = len(n["input_spatial_dimensions"])
    x = _in_nchw(call, call.value(0), "input", n)
    w = call.transpose(
        call.value(1),
        [n["kernel_output_feature_dimension"], n["kernel_input_feature_dimension"], *n["kernel_spatial_dimensions"]],
    )
    t = common_type(x.dtype, w.dtype, call.dtype)
    x, w = call.cast(x, t), call.cast(w, t)
    groups, batches = call.integer("feature_group_count", 1), call.integer("batch_group_count", 1)
    spread, dilations = call.ints("lhs_dilation", [1] * rank), call.ints("rhs_dilation", [1] * rank)
    reversal = [int(v) for v in call.op.attributes.get("window_reversal") or [0] * rank]
    if batches > 1:
        x, groups = _batch_groups(call, x, batches), batches * groups
    y = _convolved(call, x, w, strides, list(low), list(high), spread, dilations, reversal, groups)
    back = [0] * (rank + 2)
    order = [n["output_batch_dimension"], n["output_feature_dimension"], *n["output_spatial_dimensions"]]
    for k, place in enumerate(order):
        back[place] = k
    return _rounded(call, call.transpose(y, back))


def _in_nchw(call: Call, x: Value, which: str, n: dict[str, list[int]]) -> Value:
    return call.transpose(
        x,
        [n[f"{which}_batch_dimension"], n[f"{which}_feature_dimension"], *n[f"{which}_spatial_dimensions"]],  # type: ignore[list-item]
    )


def _batch_groups(call: Call, x: Value, groups: int) -> Value:
    """`x` [N, C, ...] with its batch split into `groups` parts, laid side by side as channels: [N/groups, groups*C,
    ...]. So `batch_group_count`, where each part has filters of its own, becomes a grouped convolution."""
    batch, channels, *space = x.shape
    part = dim(batch // groups)
    x = call.reshape(x, (groups, part, channels, *space))
    x = call.transpose(x, (1, 0, 2, *range(3, 3 + len(space))))
    return call.reshape(x, (part, dim(channels * groups), *space))


def _convolved(
    call: Call,
    x: Value,
    w: Value,
    strides: Sequence[int],
    low: list[Any],
    high: list[Any],
    spread: Sequence[int],
    dilations: Sequence[int],
    reversal: Sequence[int],
    groups: int,
) -> Value:
    rank = x.type.rank - 2
    if rank == 0:
        return call.emit("matmul", x, w, transpose_b=True) if groups == 1 else _pointwise_groups(call, x, w, groups)
    numbers = all(isinstance(v, int) for v in (*low, *high))
    if any(s > 1 for s in spread):
        result = (
            None if not numbers else _transposed(call, x, w, strides, low, high, spread, dilations, reversal, groups)
        )
        if result is not None:
            return result
        zero = known_item(0, x.dtype)
        x = padded(call, x, zero, [0] * (rank + 2), [0] * (rank + 2), [0, 0, *(s - 1 for s in spread)])
    w = reversed_along(call, w, [2 + k for k, r in enumerate(reversal) if r])
    if not numbers:
        x = padded(call, x, known_item(0, x.dtype), [0, 0, *low], [0, 0, *high], [0] * (rank + 2))
        low, high = [0] * rank, [0] * rank
    cut_low, cut_high = [min(p, 0) for p in low], [min(p, 0) for p in high]
    if any(cut_low) or any(cut_high):
        x = padded(call, x, known_item(0, x.dtype), [0, 0, *cut_low], [0, 0, *cut_high], [0] * (rank + 2))
    pads = (*(max(p, 0) for p in low), *(max(p, 0) for p in high))
    lift = rank > 3
    if lift:
        raise UnsupportedError("a convolution over more than 3 dimensions is not supported", got=rank)
    attrs = {"strides": tuple(strides), "dilations": tuple(dilations), "pads": pads, "groups": groups}
    exactness = asked(call.op.attributes)
    attrs |= {"exactness": exactness} if exactness and x.dtype is f32 else {}
    x, counts = _filled(call, x, w, strides, dilations, pads)
    y = convolved(call, x, w, None, attrs)
    for k, count in counts.items():
        y = call.slice(y, k, 0, count)
    return y


def _filled(
    call: Call, x: Value, w: Value, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> tuple[Value, dict[int, Expr]]:
    """(`x`, number of results by dimension) for a convolution of `x` by filters `w`, with `strides`, `dilations` and
    `pads` (befores, then afters), over symbolic dimensions that may be shorter than the filter: `x` is extended by
    zeros so that the filter fits once, and the result must then be cut to these numbers, which may be 0."""
    rank = x.type.rank
    missing, counts = [dim(0)] * rank, dict[int, Expr]()
    for k in range(2, rank):
        reach = dim((w.shape[k] - 1) * dilations[k - 2] + 1)
        room = dim(x.shape[k] + pads[k - 2] + pads[k - 4 + rank] - reach)
        count = dim(room // strides[k - 2] + 1)
        if as_int(room) is None and not prove(count >= 0):
            missing[k] = dim(maximum(-room, 0))
            counts[k] = dim(maximum(count, 0))
    if counts:
        x = padded(call, x, known_item(0, x.dtype), [0] * rank, missing, [0] * rank)
    return x, counts


def _pointwise_groups(call: Call, x: Value, w: Value, groups: int) -> Value:
    x, w = (call.reshape(v, (*v.shape, 1)) for v in (x, w))
    attrs = {"strides": (1,), "dilations": (1,), "pads": (0, 0), "groups": groups}
    y = convolved(call, x, w, None, attrs)
    return call.reshape(y, y.shape[:2])


def _transposed(
    call: Call,
    x: Value,
    w: Value,
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    spread: Sequence[int],
    dilations: Sequence[int],
    reversal: Sequence[int],
    groups: int,
) -> Value | None:
    """A convolution of `groups` groups whose input is spread by zeros (`spread`, from `lhs_dilation`) and padded by
    `low` and `high`, as a transposed convolution with the strides `spread`; `reversal` says which spatial dimensions of
    the filter are mirrored. None if it cannot be written as one."""
    rank = x.type.rank - 2
    kernel = [as_int(d) for d in w.shape[2:]]
    if any(s != 1 for s in strides) or any(k is None for k in kernel) or is_const(x.type.size, 0):
        return None
    reach = [((k or 1) - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    extra = [max(0, h - r) for h, r in zip(high, reach, strict=True)]
    if any(e >= s for e, s in zip(extra, spread, strict=True)) or min(low) < 0 or min(high) < 0:
        return None
    pads = [
        *(r - p for r, p in zip(reach, low, strict=True)),
        *(r - p + e for r, p, e in zip(reach, high, extra, strict=True)),
    ]
    if min(pads) < 0:
        return None
    # The transpose mirrors the filter, so that a filter that is reversed stands as it is.
    w = reversed_along(call, w, [2 + k for k, r in enumerate(reversal) if not r])
    filters, channels, *taps = w.shape
    if groups > 1:
        w = call.reshape(w, (groups, dim(filters // groups), channels, *taps))
        w = call.transpose(w, (0, 2, 1, *range(3, 3 + rank)))
        w = call.reshape(w, (dim(channels * groups), dim(filters // groups), *taps))
    else:
        w = call.transpose(w, (1, 0, *range(2, 2 + rank)))
    return conv_transpose(call, x, w, None, spread, dilations, pads, extra, groups)
