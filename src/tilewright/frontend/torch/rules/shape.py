"""Rules for operators that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.common.shapes import cropped, slice_range, solve
from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.registry import rule
from tilewright.ir.attributes import same
from tilewright.ir.dtype import boolean, i64
from tilewright.ir.expr import Expr, as_expr, as_int, const, is_const, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim, dims, same_dim
from tilewright.support.errors import ShapeError


@rule(
    "view",
    "reshape",
    "_unsafe_view",
    "view_copy",
    "_reshape_copy",
    "_reshape_alias",
    "reshape_as",
    "view_as",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "squeeze_copy",
    "unsqueeze_copy",
    "ravel",
)
def reshape(n: Call, x: Value, *_: Any, **__: Any) -> Value:
    """Operators that only reshape, to the shape that PyTorch states, and `view` as another type of equal width."""
    if "dtype" in n.name:
        if x.dtype.bits != n.dtype.bits or boolean in (x.dtype, n.dtype):
            raise n.unsupported("of another width", expected=f"{x.dtype.bits} bits", got=n.dtype)
        return x if x.dtype is n.dtype else n.emit("cast", x, dtype=n.dtype, bits=True)
    return n.reshape(x, solve(list(n.shape), x.shape))


@rule("permute", "permute_copy")
def permute(n: Call, x: Value, order: Sequence[int]) -> Value:
    return n.transpose(x, [n.axis(a, x) for a in order])


@rule("transpose.int", "transpose_copy.int", "swapaxes", "swapdims")
def transpose(n: Call, x: Value, a: int, b: int) -> Value:
    if x.type.rank == 0:
        return x
    a, b = n.axis(a, x), n.axis(b, x)
    order = list(range(x.type.rank))
    order[a], order[b] = b, a
    return n.transpose(x, order)


@rule("t", "numpy_T", "t_copy")
def reversed_axes(n: Call, x: Value) -> Value:
    return n.transpose(x, list(range(x.type.rank))[::-1])


@rule("mT", "matrix_H", "adjoint", "mH")
def matrix_transpose(n: Call, x: Value) -> Value:
    return transpose(n, x, -1, -2)


@rule("movedim", "moveaxis")
def movedim(n: Call, x: Value, source: Any, destination: Any) -> Value:
    sources = [n.axis(a, x) for a in (source if isinstance(source, list) else [source])]
    places = [n.axis(a, x) for a in (destination if isinstance(destination, list) else [destination])]
    order = [a for a in range(x.type.rank) if a not in sources]
    for place, a in sorted(zip(places, sources, strict=True)):
        order.insert(place, a)
    return n.transpose(x, order)


@rule("expand", "expand_as", "broadcast_to", "expand_copy")
def expand(n: Call, x: Value, *_: Any, **__: Any) -> Value:
    return n.broadcast(x, n.shape)


@rule("repeat")
def repeat(n: Call, x: Value, repeats: Sequence[Any]) -> Value:
    x = n.reshape(x, (*([1] * (len(repeats) - x.type.rank)), *x.shape))
    return tile(n, x, repeats)


@rule("tile")
def tile(n: Call, x: Value, repeats: Sequence[Any]) -> Value:
    repeats = [1] * (x.type.rank - len(repeats)) + list(repeats)
    x = n.reshape(x, (*([1] * (len(repeats) - x.type.rank)), *x.shape))
    if all(is_const(as_expr(r), 1) for r in repeats):
        return x
    if all(is_const(d, 1) or is_const(as_expr(r), 1) for d, r in zip(x.shape, repeats, strict=True)):
        return n.broadcast(x, [d * r for d, r in zip(x.shape, repeats, strict=True)])
    return n.tile(x, repeats)


@rule("repeat_interleave.self_int")
def repeat_interleave(n: Call, x: Value, repeats: Any, dim: int | None = None, output_size: Any = None) -> Value:
    if dim is None:
        x, axis = n.reshape(x, (x.type.size,)), 0
    else:
        axis = n.axis(dim, x)
    wide = n.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    wide = n.broadcast(wide, (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
    return n.reshape(wide, n.shape)


@rule("cat", "concat", "concatenate")
def cat(n: Call, tensors: Sequence[Value], dim: int = 0) -> Value:
    """`tensors` concatenated along `dim`; an empty vector is skipped, whatever the other shapes, as PyTorch does for
    compatibility."""
    full = [t for t in tensors if not (t.type.rank == 1 and is_const(t.shape[0], 0))] or list(tensors[:1])
    axis = n.axis(dim, full[0])
    full = [n.cast(t, n.dtype) for t in full if not is_const(t.shape[axis], 0)] or full[:1]
    return full[0] if len(full) == 1 else n.emit("concat", *full, axis=axis)


@rule("stack")
def stack(n: Call, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % (tensors[0].type.rank + 1)
    parts = [n.reshape(n.cast(t, n.dtype), (*t.shape[:axis], 1, *t.shape[axis:])) for t in tensors]
    return parts[0] if len(parts) == 1 else n.emit("concat", *parts, axis=axis)


@rule("split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor", "chunk", "unsafe_chunk", "tensor_split.sections")
def split(n: Call, x: Value, size: Any, dim: int = 0) -> list[Value]:
    """The parts of `x` along `dim`, whose sizes are those of the results that PyTorch states."""
    return _parts(n, x, [n.sizes.expr(r.shape[dim]) for r in n.results], dim)


@rule("split.sizes", "split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def split_sizes(n: Call, x: Value, sizes: Sequence[Any], dim: int = 0) -> list[Value]:
    return _parts(n, x, sizes, dim)


@rule("unbind", "unbind_copy")
def unbind(n: Call, x: Value, dim: int = 0) -> list[Value]:
    axis = n.axis(dim, x)
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [n.reshape(part, rest) for part in _parts(n, x, [1] * len(n.results), dim)]


def _parts(n: Call, x: Value, sizes: Sequence[Any], axis: int) -> list[Value]:
    axis = n.axis(axis, x)
    parts, begin = [], const(0)
    for size in sizes:
        parts.append(n.slice(x, axis, begin, size))
        begin = dim(begin + size)  # type: ignore[assignment]
    return parts


@rule("slice.Tensor", "slice_copy.Tensor")
def slice_(n: Call, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    axis = n.axis(dim, x)
    if not isinstance(step, int):
        raise n.unsupported("with a symbolic step")
    begin, size = slice_range(0 if start is None else start, (1 << 62) if end is None else end, step, x.shape[axis])
    return n.slice(x, axis, begin, size, step)


@rule("narrow", "narrow_copy")
def narrow(n: Call, x: Value, dim: int, start: Operand, length: Any) -> Value:
    if isinstance(start, Value):
        raise n.unsupported("at a place that depends on data")
    axis = n.axis(dim, x)
    begin, _ = slice_range(start, 1 << 62, 1, x.shape[axis])
    return n.slice(x, axis, begin, length)


@rule("select.int", "select_copy.int")
def select(n: Call, x: Value, dim: int, index: Any) -> Value:
    axis = n.axis(dim, x)
    if isinstance(index, Value):
        return n.emit("gather", x, _inside(n, index, x.shape[axis]), axis=axis)
    number = as_int(as_expr(index))
    begin = x.shape[axis] + number if number is not None and number < 0 else index
    return n.reshape(n.slice(x, axis, begin, 1), (*x.shape[:axis], *x.shape[axis + 1 :]))


@rule("select_scatter")
def select_scatter(n: Call, x: Value, part: Value, dim: int, index: Any) -> Value:
    axis = n.axis(dim, x)
    part = n.reshape(n.cast(part, x.dtype), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    if isinstance(index, Value):
        return _replaced_at(n, x, part, axis, _inside(n, index, x.shape[axis]))
    number = as_int(as_expr(index))
    begin = x.shape[axis] + number if number is not None and number < 0 else as_expr(index)
    return _replaced(n, x, part, axis, begin, const(1))


@rule("slice_scatter")
def slice_scatter(
    n: Call, x: Value, part: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Value:
    axis = n.axis(dim, x)
    if not same(step, 1):
        raise n.unsupported("with a step")
    begin, size = slice_range(0 if start is None else start, (1 << 62) if end is None else end, 1, x.shape[axis])
    part = n.broadcast(n.cast(part, x.dtype), [size if k == axis else d for k, d in enumerate(x.shape)])
    return _replaced(n, x, part, axis, begin, size)


def _inside(n: Call, place: Value, extent: Expr) -> Value:
    """`place`, a scalar that each call computes and checks to be one of `extent` places, counted from either end."""
    return n.within(place, dim(-extent), dim(extent - 1), "the place is outside of the dimension")


def _replaced_at(n: Call, x: Value, part: Value, axis: int, index: Value) -> Value:
    """`x` with the place `index`, which a call computes, along one axis replaced by `part`; negative places count from
    the end."""
    extent = n.operand(x.shape[axis], i64)
    place = n.emit("select", n.emit("lt", index, n.constant(0, i64)), n.emit("add", index, extent), index)
    places = n.emit("range", start=0, step=1, size=x.shape[axis], dtype=i64)
    shape = [x.shape[axis] if k == axis else dim(1) for k in range(x.type.rank)]
    return n.emit("select", n.reshape(n.emit("eq", places, place), shape), part, x)


def _replaced(n: Call, x: Value, part: Value, axis: int, begin: Any, size: Expr) -> Value:
    """`x` with its `size` elements from `begin` on along `axis` replaced by `part`."""
    begin = dim(begin)
    end = dim(begin + size)
    pieces = [] if is_const(begin, 0) else [n.slice(x, axis, 0, begin)]
    pieces.append(part)
    if not same_dim(end, x.shape[axis]):
        pieces.append(n.slice(x, axis, end, dim(x.shape[axis] - end)))
    return pieces[0] if len(pieces) == 1 else n.emit("concat", *pieces, axis=axis)


@rule("flip", "fliplr", "flipud")
def flip(n: Call, x: Value, axes: Sequence[int] | None = None) -> Value:
    chosen = {"fliplr": [1], "flipud": [0]}.get(n.name.removeprefix("aten."), axes) or []
    for axis in (n.axis(a, x) for a in chosen):
        x = n.slice(x, axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


@rule("roll")
def roll(n: Call, x: Value, shifts: Any, axes: Sequence[int] = ()) -> Value:
    listed = list(shifts) if isinstance(shifts, list) else [shifts]
    flat = not axes
    shape = x.shape
    if flat:
        x, axes = n.reshape(x, (x.type.size,)), [0]
    for shift, axis in zip(listed, (n.axis(a, x) for a in axes), strict=True):
        extent = as_int(x.shape[axis])
        if not isinstance(shift, int) or (extent is None and abs(shift) > 1):
            raise n.unsupported("of symbolic dimensions")
        if not extent and extent is not None:
            continue
        back = shift % extent if extent is not None else shift
        if back:
            cut = dim(x.shape[axis] - back) if back > 0 else const(-back)
            tail = n.slice(x, axis, cut, dim(x.shape[axis] - cut))
            x = n.emit("concat", tail, n.slice(x, axis, 0, cut), axis=axis)
    return n.reshape(x, shape) if flat else x


@rule(
    "constant_pad_nd",
    "pad",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
)
def pad(n: Call, x: Value, pads: Sequence[Any], mode: Any = 0, value: Any = None) -> Value:
    """`x` padded by `pads`, pairs (before, after) from the last dimension on; negative numbers cut. `mode` is
    "constant" (with `value`), "reflect", "replicate" or "circular", unless the operator's name says it."""
    name = n.name.removeprefix("aten.")
    if name == "constant_pad_nd":
        mode, value = "constant", mode
    elif name != "pad":
        mode = "reflect" if name.startswith("reflection") else "replicate"
    kinds = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    rank = x.type.rank
    before: list[Any] = [0] * rank
    after: list[Any] = [0] * rank
    for k in range(len(pads) // 2):
        before[rank - 1 - k], after[rank - 1 - k] = pads[2 * k], pads[2 * k + 1]
    before, after = [as_expr(b) for b in before], [as_expr(a) for a in after]
    if mode not in ("reflect", "replicate"):
        x, before, after = cropped(n, x, before, after)
    number = value or 0
    number = float(number) if x.dtype.is_float else int(number != 0 if x.dtype.kind == "bool" else number)
    fill = {"value": number} if mode == "constant" else {}
    low, high = [_not_negative(b) for b in before], [_not_negative(a) for a in after]
    if not all(is_const(v, 0) for v in (*low, *high)):
        x = n.emit("pad", x, before=dims(low), after=dims(high), mode=kinds[mode], **fill)
    return cropped(n, x, before, after)[0]  # reflections and edges are those of the whole


def _not_negative(pad: Expr) -> Expr:
    number = as_int(pad)
    return pad if number is None else const(max(number, 0))


@rule("pixel_shuffle")
def pixel_shuffle(n: Call, x: Value, factor: int) -> Value:
    *lead, c, h, w = x.shape
    rest, flat = dim(c // (factor * factor)), product(lead)
    x = n.transpose(n.reshape(x, (flat, rest, factor, factor, h, w)), (0, 1, 4, 2, 5, 3))
    return n.reshape(x, n.shape)


@rule("pixel_unshuffle")
def pixel_unshuffle(n: Call, x: Value, factor: int) -> Value:
    *lead, c, h, w = x.shape
    high, wide = dim(h // factor), dim(w // factor)
    x = n.reshape(x, (product(lead), c, high, factor, wide, factor))
    return n.reshape(n.transpose(x, (0, 1, 3, 5, 2, 4)), n.shape)


@rule("tril", "triu")
def triangle(n: Call, x: Value, diagonal: int = 0) -> Value:
    upper = n.name.startswith("aten.triu")
    if x.dtype.kind == "bool":
        raise ShapeError("a triangle of booleans is not supported")
    return n.emit("trilu", x, upper=upper, k=diagonal)
