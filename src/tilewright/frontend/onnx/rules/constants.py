"""Rules for values that do not depend on data: constants, shapes, ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontend.common.emitter import check_size
from tilewright.frontend.onnx.call import MAX_CONSTANT, Call
from tilewright.frontend.onnx.functions import Tensor
from tilewright.frontend.onnx.registry import rule
from tilewright.frontend.onnx.scope import Item, known_item, object_array
from tilewright.frontend.onnx.tensors import DTYPES, element_type
from tilewright.ir.dtype import DType, f32, f64, i64, u64
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import TensorType, Value
from tilewright.ops.dims import dims
from tilewright.support.errors import ModelError, ShapeError, UnsupportedError

MAX_FILLED = 1 << 30
"""The most bytes of a constant that a small node, such as ConstantOfShape, may create."""


@rule("Constant")
def constant(n: Call) -> list[Item]:
    arguments = [name for name in n.attributes if name.startswith("value")]
    if len(arguments) != 1:
        raise ModelError("Constant needs exactly one value", got=", ".join(arguments) or "none")
    value = n.attr(arguments[0])
    match arguments[0]:
        case "value":
            if not isinstance(value, Tensor):
                raise ModelError("the attribute value must be a tensor")
            t = DTYPES[value.code]
            large = t.is_float and value.array.size > MAX_CONSTANT
            return [known_item(value.array, t, weight=large)]
        case "value_float" | "value_floats":
            return [known_item(np.asarray(value, np.float32), f32)]
        case "value_int" | "value_ints":
            return [known_item(np.asarray(value, np.int64), i64)]
    raise UnsupportedError(f"Constant with {arguments[0]} is not supported")


@rule("ConstantOfShape")
def constant_of_shape(n: Call) -> Any:
    shape = n.sizes(0, "the shape of ConstantOfShape") or []
    value = n.attr("value")
    if value is not None and not isinstance(value, Tensor):
        raise ModelError("the attribute value must be a tensor")
    fill, t = (np.zeros((), np.float32), f32) if value is None else (value.array, DTYPES[value.code])
    if fill.size != 1:
        raise ModelError("the value of ConstantOfShape must be one number", got=list(fill.shape))
    return filled(n, fill.reshape(()), t, shape)


def filled(n: Call, fill: Any, t: DType, shape: list[Any]) -> Any:
    """A tensor of `shape` and type `t` filled with the number `fill`: a known array if it is small, or of floats
    (broadcast, without memory); else the result of a node."""
    type = TensorType(t, dims(shape))
    check_size(type)
    count = as_int(type.size)
    if count is not None and count <= MAX_CONSTANT:
        return [known_item(np.full([int(as_int(d) or 0) for d in type.shape], fill), t)]
    if count is not None and t.is_float and count * t.itemsize <= MAX_FILLED:
        array = np.broadcast_to(np.asarray(fill, t.numpy), [int(as_int(d) or 0) for d in type.shape])
        return [known_item(array, t)]
    return n.emit("broadcast", n.constant(fill, t), shape=type.shape)


@rule("Shape")
def shape(n: Call) -> list[Item]:
    input_shape = n.shape(0)
    rank = len(input_shape)
    start, end = n.integer("start", 0), n.integer("end", rank)
    start = min(max(start + rank if start < 0 else start, 0), rank)
    end = min(max(end + rank if end < 0 else end, 0), rank)
    return [known_item(object_array(list(input_shape[start:end])), i64)]


@rule("Size")
def size(n: Call) -> list[Item]:
    return [known_item(object_array([n.type(0).size], ()), i64)]


@rule("Range")
def range_(n: Call) -> Value:
    if any(map(n.is_data, range(3))):
        return _range_of_data(n)
    start, limit, delta = (_one(n, i) for i in range(3))
    t = n.dtype(0)
    if isinstance(delta, Expr):
        raise UnsupportedError("Range with a symbolic delta is not supported")
    if delta == 0:
        raise ShapeError("Range with a delta of 0")
    if isinstance(start, Expr) or isinstance(limit, Expr):
        if delta not in (1, -1):
            raise UnsupportedError("Range of symbols with a delta other than 1 is not supported")
        count: Any = (limit - start) * int(delta)
    else:
        span = (float(limit) - float(start)) / float(delta) if t.is_float else None
        whole = -((int(start) - int(limit)) // int(delta)) if span is None else np.ceil(span)
        if not whole <= MAX_ELEMENTS:
            raise ShapeError("there are too many elements, or NaN", expected=f"at most {MAX_ELEMENTS}", got=whole)
        count = 0 if whole < 0 else int(whole)
    return n.emit("range", start=_python_number(start), step=_python_number(delta), size=dims((count,))[0], dtype=t)


def _range_of_data(n: Call) -> Value:
    """Range whose operands are computed by each call, so that the number of elements is a new symbol."""
    t = n.dtype(0)
    start, limit, delta = (n.reshape(n.value(i), ()) for i in range(3))
    known, what = n.known(2), "the delta is 0"
    if known is None:
        wide = n.cast(delta, f64 if t.is_float else i64)
        delta = n.require(delta, n.emit("ne", wide, n.constant(0, wide.dtype)), wide, what)
    elif known.dtype != object and not known.all():
        raise ShapeError(what)
    steps = _steps_of_floats(n, n.emit("sub", limit, start), delta) if t.is_float else _steps(n, start, limit, delta)
    size = n.extent(n.cast(n.within(steps, None, MAX_ELEMENTS, "there are too many elements, or NaN"), i64))
    work = f32 if t.is_float and t.itemsize < 4 else t
    along = n.cast(n.emit("range", start=0, step=1, size=size, dtype=i64), work)
    scaled = n.emit("mul", along, n.cast(delta, work))
    return n.cast(n.emit("add", scaled, n.cast(start, work)), t)


def _steps(n: Call, *numbers: Value) -> Value:
    """The number of elements of a Range from start by delta to limit, integers in the graph, as i64. A distance may
    exceed i64, so that it is computed in u64."""
    zero, one, none = n.constant(0, i64), n.constant(1, u64), n.constant(0, u64)
    start, limit, step = (n.cast(v, i64) for v in numbers)
    falls = n.emit("lt", step, zero)
    low, high = n.emit("select", falls, limit, start), n.emit("select", falls, start, limit)
    distance = n.emit("sub", n.cast(high, u64), n.cast(low, u64))
    length = n.cast(step, u64)
    length = n.emit("max", n.emit("select", falls, n.emit("sub", none, length), length), one)
    some = n.emit("gt", high, low)
    whole = n.emit("truncdiv", n.emit("sub", n.emit("select", some, distance, one), one), length)
    most = n.constant(MAX_ELEMENTS, u64)  # so that one more is an i64
    return n.emit("select", some, n.emit("add", n.cast(n.emit("min", whole, most), i64), n.constant(1, i64)), zero)


def _steps_of_floats(n: Call, span: Value, delta: Value) -> Value:
    """The number of elements (f64) of a float Range: `span` / `delta` rounded up, 0 or more; NaN if an operand is
    NaN."""
    steps = n.emit("ceil", n.cast(n.emit("div", span, delta), f64))
    return n.emit("select", n.emit("lt", steps, n.constant(0.0, f64)), n.constant(0.0, f64), steps)


MAX_ELEMENTS = 1 << 40
"""The most elements of a range: more than any memory holds."""


def _one(n: Call, i: int) -> Any:
    array = n.structure(i, "start, limit and delta of Range")
    if array is None or array.size != 1:
        raise ShapeError("start, limit and delta of Range must be single numbers")
    return array.reshape(-1)[0]


def _python_number(v: Any) -> Any:
    return v if isinstance(v, Expr) else v.item() if hasattr(v, "item") else v


@rule("EyeLike")
def eye_like(n: Call) -> Value:
    t = n.dtype(0) if n.attr("dtype") is None else element_type(n.integer("dtype", 1))
    if n.rank(0) != 2:
        raise ShapeError("EyeLike needs a matrix", got=n.type(0))
    rows, columns = n.shape(0)
    return n.emit("eye", rows=rows, columns=columns, k=n.integer("k", 0), dtype=t)
