"""Rules for operators that move elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tilewright.frontend.common.axes import named, places_of, reshaped, scalar, unnamed, vector
from tilewright.frontend.common.resized import pad_axis
from tilewright.frontend.common.shapes import cropped, divide, slice_range, solve
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.rules.extent import LONGEST, places_between, places_by
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, as_int, const, is_const, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import at_least, axes_of, axis_of, broadcast_shapes, dim, dims, is_size, show
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError


@rule("Reshape")
def reshape(n: Call) -> Value:
    wanted = n.elements(1, "the shape of Reshape") if n.opset >= 5 else n.ints("shape")
    if wanted is None:
        raise ModelError("the shape is missing")
    input_shape = n.shape(0)
    if any(isinstance(d, Value) for d in wanted):
        return reshaped(n, n.value(0), _wanted(n, wanted, input_shape))
    shape: list[Any] = []
    for k, d in enumerate(wanted):
        if isinstance(d, int) and d == 0 and not n.integer("allowzero", 0):
            if k >= len(input_shape):
                raise ShapeError("a 0 in the shape copies a dimension that does not exist", got=wanted)
            d = input_shape[k]
        shape.append(d)
    n.attr("allowzero")
    return n.emit("reshape", n.value(0), shape=dims(solve(shape, input_shape)))


def _wanted(n: Call, wanted: Sequence[Any], shape: Sequence[Expr]) -> Value:
    """Reshape's operand `wanted` as i64 vector, with each 0 replaced by the input's size, in `shape`, at that position,
    unless `allowzero`."""
    result = vector(n, wanted)
    if n.integer("allowzero", 0):
        return result
    there = vector(n, [*shape, *[0] * len(wanted)][: len(wanted)])
    return n.emit("select", n.emit("eq", result, n.constant(0, i64)), there, result)


@rule("Flatten")
def flatten(n: Call) -> Value:
    rank = n.rank(0)
    axis = n.integer("axis", 1)
    if not -rank <= axis <= rank:
        raise ShapeError("axis is outside the tensor", expected=f"from {-rank} to {rank}", got=axis)
    axis = axis + rank if axis < 0 else axis
    shape = n.shape(0)
    return n.emit("reshape", n.value(0), shape=dims((product(shape[:axis]), product(shape[axis:]))))


@rule("Squeeze")
def squeeze(n: Call) -> Value:
    shape = n.shape(0)
    if n.opset >= 13 and _names_axes(n):
        wanted = n.elements(1, "the axes of Squeeze") or []
        rest = unnamed(n, named(n, wanted, len(shape)), vector(n, shape), len(shape) - len(wanted))
        return reshaped(n, n.value(0), rest, "only dimensions of 1 can be squeezed")
    listed = n.ints("axes") if n.opset < 13 else n.integers(1, "the axes of Squeeze")
    if listed is None:
        axes = tuple(k for k, d in enumerate(shape) if is_const(d, 1))
    else:
        axes = tuple({axis_of(a, len(shape)) for a in listed})  # one may be named twice, as in ONNX Runtime
        wrong = [shape[a] for a in axes if not is_size(shape[a], const(1))]
        if wrong:
            raise ShapeError("only dimensions of 1 can be squeezed", got=show(shape))
    return n.emit("reshape", n.value(0), shape=tuple(d for k, d in enumerate(shape) if k not in axes))


def _names_axes(n: Call) -> bool:
    """Whether the node's axes are computed by each call, and reduce or extend only some dimensions."""
    count = as_int(n.type(1).size) if n.is_data(1) else None
    return count is not None and (n.node.op_type == "Unsqueeze" or count <= n.rank(0))


@rule("Unsqueeze")
def unsqueeze(n: Call) -> Value:
    if n.opset >= 13 and _names_axes(n):
        return _unsqueezed(n)
    listed = n.ints("axes") if n.opset < 13 else n.integers(1, "the axes of Unsqueeze")
    if listed is None:
        raise ModelError("the axes are missing")
    shape = n.shape(0)
    rank = len(shape) + len(listed)
    axes = axes_of(listed, rank)
    rest = iter(shape)
    return n.emit("reshape", n.value(0), shape=tuple(const(1) if k in axes else next(rest) for k in range(rank)))


def _unsqueezed(n: Call) -> Value:
    """Unsqueeze at axes that the call computes."""
    axes, shape = n.elements(1, "the axes of Unsqueeze") or [], n.shape(0)
    new = named(n, axes, len(shape) + len(axes))
    one = n.constant(1, i64)
    if not shape:
        return reshaped(n, n.value(0), n.emit("select", new, one, one))
    old = n.emit("select", new, n.constant(0, i64), one)
    place = n.emit("cumsum", old, axis=0, exclusive=True, reverse=False)
    place = n.emit("min", place, n.constant(len(shape) - 1, i64))
    sizes = n.emit("gather", vector(n, shape), place, axis=0)
    return reshaped(n, n.value(0), n.emit("select", new, one, sizes))


@rule("Transpose")
def transpose(n: Call) -> Value:
    perm = n.ints("perm", range(n.rank(0))[::-1]) or []
    return n.emit("transpose", n.value(0), perm=tuple(perm))


@rule("Expand")
def expand(n: Call) -> Value:
    wanted = n.elements(1, "the shape of Expand") or []
    input_shape, x = n.shape(0), n.value(0)
    for k, size in enumerate(wanted):
        axis = k + len(input_shape) - len(wanted)
        retained = axis >= 0 and not is_const(input_shape[axis], 1)
        if isinstance(size, Value) and retained and as_int(input_shape[axis]) is None:
            raise UnsupportedError("repeating a dimension that may be 1 as often as data says is not supported")
        if isinstance(size, Value) and retained:  # what is not 1 can be repeated once only
            whole = n.emit("eq", size, n.symbols([input_shape[axis]], i64, ()))
            fits = n.emit("or", whole, n.emit("eq", size, n.constant(1, i64)))
            x, wanted[k] = n.require(x, fits, size, "the shapes do not broadcast", f"1 or {input_shape[axis]}"), 1
        elif isinstance(size, Value):
            wanted[k] = n.extent(size)
    shape = broadcast_shapes(input_shape, dims(wanted))
    if shape == n.shape(0):
        return n.emit("identity", x)
    return n.emit("broadcast", x, shape=shape)


@rule("Concat")
def concat(n: Call) -> Value:
    axis = axis_of(n.integer("axis", 0 if n.opset >= 4 else 1), n.rank(0))
    arguments = n.values()
    if any(v.type.rank != arguments[0].type.rank for v in arguments):
        raise ShapeError("the tensors differ in rank", got=" and ".join(str(v.type) for v in arguments))
    values = [v for v in arguments if not is_const(v.shape[axis], 0)] or arguments[:1]
    return n.emit("concat", *values, axis=axis) if len(values) > 1 else n.emit("identity", values[0])


MAX_PARTS = 4096
"""Outputs that a Split may have."""


@rule("Split")
def split(n: Call) -> list[Value]:
    x = n.value(0)
    axis = axis_of(n.integer("axis", 0), x.type.rank)
    sizes: list[Any] | None = n.ints("split") if n.opset < 13 else None
    sizes = sizes or n.elements(1, "the sizes of Split")  # an input in operator sets 1 and from 13 on
    total = x.shape[axis]
    if sizes is not None and any(isinstance(s, Value) for s in sizes):
        if len(sizes) != n.outputs:
            raise ShapeError("there is not one size for each part", expected=n.outputs, got=len(sizes))
        return _split_by_data(n, x, axis, sizes)
    if sizes is None:
        count = n.integer("num_outputs", n.outputs)
        if not 1 <= count <= MAX_PARTS:
            raise ModelError("the number of parts makes no sense", expected=f"1 to {MAX_PARTS}", got=count)
        number = as_int(total)
        if number is None:
            part = divide([total], [const(count)])
            if part is None:
                raise ShapeError(
                    "the dimension does not split into equal parts", expected=f"a multiple of {count}", got=total
                )
            sizes = [part] * count
        else:
            chunk = -(-number // count)
            sizes = [min(chunk, max(number - k * chunk, 0)) for k in range(count)]
    if not is_size(total, dim(_sum(sizes))) or len(sizes) != n.outputs:
        raise ShapeError("the parts do not make up the dimension", expected=total, got=sizes)
    result, begin = [], const(0)
    for size in sizes:
        result.append(n.emit("slice", x, **_one_axis(x, axis, begin, size)))
        begin = dim(begin + size)  # type: ignore[assignment]
    return result


def _split_by_data(n: Call, x: Value, axis: int, sizes: Sequence[Any]) -> list[Value]:
    """The parts of `x` along `axis` whose `sizes` each call computes, with a check that they add up to the
    dimension."""
    extent = x.shape[axis]
    ends = [n.constant(0, i64)]
    for size in sizes:
        part = size if isinstance(size, Value) else n.symbols([size], i64, ())
        ends.append(n.emit("add", ends[-1], n.within(part, 0, extent, "a part does not fit the dimension")))
    ends[-1] = n.within(ends[-1], extent, extent, "the parts do not make up the dimension")
    if is_const(extent, 0):
        return [n.emit("identity", n.within(ends[-1], 0, 0, "the parts do not make it up", of=x)) for _ in sizes]
    places = [places_between(n, a, b, 1, x.shape[axis]) for a, b in itertools.pairwise(ends)]
    return [n.emit("gather", x, p, axis=axis) for p in places]


def _sum(values: Sequence[Any]) -> Expr:
    total: Expr = const(0)
    for v in values:
        total = total + v
    return total


def _one_axis(x: Value, axis: int, begin: Any, size: Any) -> dict[str, Any]:
    begins = [begin if k == axis else 0 for k in range(x.type.rank)]
    sizes = [size if k == axis else d for k, d in enumerate(x.shape)]
    return {"begin": dims(begins), "size": dims(sizes), "step": (1,) * x.type.rank}


@rule("Slice")
def slice_(n: Call) -> Value:
    x = n.value(0)
    rank = x.type.rank
    if n.opset < 10:
        starts: list[Any] = n.ints("starts") or []
        ends: list[Any] = n.ints("ends") or []
        axes, steps = n.ints("axes"), None
    else:
        if n.is_data(3) or n.is_data(4):
            return _sliced(n, x)
        starts, ends = _bounds(n, 1, "the starts of Slice"), _bounds(n, 2, "the ends of Slice")
        axes, steps = n.integers(3, "the axes of Slice"), n.integers(4, "the steps of Slice")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else [max(-LONGEST, min(s, LONGEST)) for s in steps]
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ShapeError("starts, ends, axes and steps differ in length")
    axes_of(axes, rank)
    if not all(steps):
        raise ShapeError("the step of a slice is 0", got=steps)
    begin: list[Any] = [0] * rank
    size: list[Any] = list(x.shape)
    stride = [1] * rank
    moved: dict[int, Value] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        k = axis_of(axis, rank)
        if is_const(x.shape[k], 0):
            continue  # it stays empty
        if isinstance(start, Value) or isinstance(end, Value):
            moved[k] = places_between(n, start, end, int(step), x.shape[k])
        else:
            begin[k], size[k] = slice_range(start, end, step, x.shape[k])
            stride[k] = step
    x = n.emit("slice", x, begin=dims(begin), size=dims(size), step=tuple(stride))
    for k, places in moved.items():
        x = n.emit("gather", x, places, axis=k)
    return x


def _sliced(n: Call, x: Value) -> Value:
    """Slice whose axes or steps each call computes: every axis is sliced, by default entirely, with starts, ends and
    steps scattered to the axes that are named."""
    rank, parts = x.type.rank, [n.elements(k, "the bounds of Slice") for k in range(1, 5)]
    starts, ends, axes, steps = parts
    count = len(starts or [])
    axes, steps = list(range(count)) if axes is None else axes, [1] * count if steps is None else steps
    if starts is None or ends is None or not count == len(ends) == len(axes) == len(steps):
        raise ShapeError("starts, ends, axes and steps differ in length")
    arguments = [vector(n, p) for p in (starts, ends)]
    arguments.append(vector(n, [_no_zero(n, step) for step in steps]))
    defaults = [vector(n, p) for p in ([0] * rank, x.shape, [1] * rank)]
    places = places_of(n, axes, rank)
    bounds = [
        n.emit("scatter_elements", d, places, g, axis=0, reduction="none")
        for d, g in zip(defaults, arguments, strict=True)
    ]
    for k in range(rank):
        first, last, step = (scalar(n, b, k) for b in bounds)
        x = n.emit("gather", x, places_by(n, first, last, step, x.shape[k]), axis=k)
    return x


def _no_zero(n: Call, step: Any) -> Any:
    """The step of a slice, which is checked not to be 0."""
    what = "the step of a slice is 0"
    if isinstance(step, Value):
        return n.require(step, n.emit("ne", step, n.constant(0, i64)), step, what)
    if is_const(dim(step), 0):
        raise ShapeError(what, got=step)
    return step


def _bounds(n: Call, i: int, what: str) -> list[Any]:
    """The starts or ends (`what`) of Slice in input `i`: numbers and expressions if known, else i64 scalars of the
    graph."""
    if n.known(i) is not None or not n.has(i):
        return n.dimensions(i, what) or []
    count = as_int(n.type(i).size)
    if count is None or n.rank(i) != 1 or count > n.rank(0):
        return n.dimensions(i, what) or []  # it must be known
    bounds = n.cast(n.value(i), i64)
    return [n.reshape(n.slice(bounds, 0, k, 1), ()) for k in range(count)]


@rule("Pad")
def pad(n: Call) -> Value:
    x = n.value(0)
    rank = x.type.rank
    mode = n.text("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise UnsupportedError(f"the mode {mode} of Pad is not supported")
    if n.opset < 11:
        pads: list[Any] = n.ints("pads" if n.opset >= 2 else "paddings") or []
        fill, axes = n.real("value", 0.0), None
    else:
        pads = n.elements(1, "the pads of Pad") or []
        fill, axes = None, n.integers(3, "the axes of Pad")
    axes = list(range(rank)) if axes is None else list(axes)
    if len(pads) != 2 * len(axes):
        raise ShapeError("pads need two entries for each axis", expected=2 * len(axes), got=len(pads))
    axes_of(axes, rank)
    before: list[Any] = [0] * rank
    after: list[Any] = [0] * rank
    for k, axis in enumerate(axes):
        before[axis_of(axis, rank)], after[axis_of(axis, rank)] = pads[k], pads[len(axes) + k]
    for k in range(rank):
        if isinstance(before[k], Value) or isinstance(after[k], Value):
            x = pad_axis(n, x, k, before[k], after[k], mode, _fill(n, x))
            before[k] = after[k] = 0
    x, before, after = cropped(n, x, before, after)
    if mode == "reflect":
        _check_reflected(x, before, after)
    attrs: dict[str, Any] = {"before": dims(before), "after": dims(after), "mode": mode}
    if mode == "constant" and n.opset >= 11 and n.has(2):
        known = n.known(2)
        if known is None or known.dtype == object:
            return n.emit("pad", x, n.value(2), **attrs)
        fill = known.reshape(-1)[0].item() if known.dtype.kind in "fiub" else float(known.reshape(-1)[0])
    return n.emit("pad", x, value=0 if fill is None else fill, **attrs)


def _check_reflected(x: Value, before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise ShapeError unless each dimension of `x` has more elements than are reflected `before` it and `after` it
    (the edge itself is not repeated); raise TooSmallError if that depends on symbolic sizes."""
    for extent, *both in zip(x.shape, before, after, strict=True):
        for pad in both:
            number, size = as_int(dim(pad)), as_int(extent)
            if number == 0 or number is None:
                continue
            if size is not None and number >= size:
                raise ShapeError("there is too little to reflect", expected=f"pads below {size}", got=number)
            if size is None:
                at_least(extent, const(number + 1), "there may be too little to reflect")


def _fill(n: Call, x: Value) -> Value:
    """The fill value of Pad as a scalar."""
    return n.reshape(n.value(2), ()) if n.has(2) else n.like(0, x)


@rule("Tile")
def tile(n: Call) -> Value:
    repeats = (n.sizes if n.opset >= 6 else n.dimensions)(1, "the repeats of Tile") or []
    if n.opset >= 6 and len(repeats) != n.rank(0):
        raise ShapeError("there is not one number of repeats for each axis", expected=n.rank(0), got=len(repeats))
    if n.opset < 6:  # how often, and along which axis
        axis = axis_of(n.number(2, "the axis of Tile") or 0, n.rank(0))
        repeats = [repeats[0] if k == axis else 1 for k in range(n.rank(0))]
    return n.tile(n.value(0), repeats)


@rule("DepthToSpace")
def depth_to_space(n: Call) -> Value:
    block = _block(n)
    mode = n.text("mode", "DCR")
    b, c, h, w = n.shape(0)
    rest = divide([c], [const(block * block)])
    if rest is None:
        raise ShapeError("the channels do not divide into blocks", expected=f"a multiple of {block * block}", got=c)
    x = n.value(0)
    if mode == "DCR":
        x = n.transpose(n.reshape(x, (b, block, block, rest, h, w)), (0, 3, 4, 1, 5, 2))
    elif mode == "CRD":
        x = n.transpose(n.reshape(x, (b, rest, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    else:
        raise ModelError("attribute mode must be DCR or CRD", got=mode)
    return n.reshape(x, (b, rest, h * block, w * block))


@rule("SpaceToDepth")
def space_to_depth(n: Call) -> Value:
    block = _block(n)
    b, c, h, w = n.shape(0)
    high, wide = divide([h], [const(block)]), divide([w], [const(block)])
    if high is None or wide is None:
        raise ShapeError("height and width do not divide into blocks", expected=f"multiples of {block}", got=n.type(0))
    mode = n.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise ModelError("attribute mode must be DCR or CRD", got=mode)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    x = n.transpose(n.reshape(n.value(0), (b, c, high, block, wide, block)), order)
    return n.reshape(x, (b, c * (block * block), high, wide))


def _block(n: Call) -> int:
    block = n.integer("blocksize", 0)
    if block < 1 or n.rank(0) != 4:
        raise ShapeError("blocks need a positive blocksize and a tensor of rank 4", got=f"{block}, {n.type(0)}")
    return int(block)


@rule("Trilu")
def trilu(n: Call) -> Value:
    if n.is_data(1) and n.rank(0) >= 2:
        return _trilu_of_data(n)
    k = n.number(1, "the diagonal of Trilu")
    return n.emit("trilu", n.value(0), upper=bool(n.integer("upper", 1)), k=0 if k is None else int(k))


def _trilu_of_data(n: Call) -> Value:
    x, k = n.value(0), n.reshape(n.cast(n.value(1), i64), ())
    rows, columns = x.shape[-2:]
    down = n.reshape(n.emit("range", start=0, step=1, size=rows, dtype=i64), (rows, 1))
    across = n.emit("sub", n.emit("range", start=0, step=1, size=columns, dtype=i64), down)
    retained = n.emit("ge" if n.integer("upper", 1) else "le", across, k)
    return n.emit("select", retained, x, n.like(0, x))


@rule("ReverseSequence")
def reverse_sequence(n: Call) -> Value:
    batch, time = n.integer("batch_axis", 1), n.integer("time_axis", 0)
    lengths = n.limited(1, 0, n.shape(0)[axis_of(time, n.rank(0))], "a length is outside the sequence")
    return n.emit("reverse_sequence", n.value(0), lengths, batch_axis=batch, time_axis=time)
