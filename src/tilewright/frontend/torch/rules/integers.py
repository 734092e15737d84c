"""Rules for integers: greatest common divisors, histograms, and rows repeated by counts in the data."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.frontend.torch.call import Call, Operand
from tilewright.frontend.torch.control import repeated_while
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import boolean, i32, i64
from tilewright.ir.expr import Expr, as_int, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim
from tilewright.support.errors import UnsupportedError

LARGEST = (1 << 31) - 1
"""The largest number of rows that a count in the data may ask for."""


@rule("gcd")
def gcd(n: Call, a: Operand, b: Operand) -> Value:
    """The greatest common divisor by Euclid's algorithm on all elements, until each has finished."""
    x, y = (n.broadcast(v, n.shape) for v in n.together(a, b))
    x, y = (n.emit("abs", v) if v.dtype.kind == "int" else v for v in (x, y))
    if as_int(product(x.shape)) == 0:
        return x

    def goes_on(carried: list[Value]) -> Value:
        rest = n.reshape(carried[1], (product(x.shape),))
        there = n.cast(n.emit("ne", rest, n.like(0, rest)), i32)
        return n.cast(n.emit("reduce_max", there, axes=(0,), keepdims=False), boolean)

    def step(carried: list[Value]) -> list[Value]:
        value, rest = carried
        done = n.emit("eq", rest, n.like(0, rest))
        divisor = n.emit("select", done, n.like(1, rest), rest)
        left = n.emit("truncmod", value, divisor)
        return [n.emit("select", done, value, rest), n.emit("select", done, n.like(0, rest), left)]

    return repeated_while(n, goes_on, step, [x, y])[0]


@rule("lcm")
def lcm(n: Call, a: Operand, b: Operand) -> Value:
    x, y = (n.broadcast(v, n.shape) for v in n.together(a, b))
    divisor = gcd(n, x, y)
    none = n.emit("eq", divisor, n.like(0, divisor))
    quotient = n.emit("truncdiv", x, n.emit("select", none, n.like(1, divisor), divisor))
    work = i32 if x.dtype.bits < i32.bits else x.dtype  # as in C
    result = n.emit("mul", n.cast(quotient, work), n.cast(y, work))
    result = n.cast(n.emit("abs", result), x.dtype)
    return n.emit("select", none, n.like(0, result), result)


@rule("bincount")
def bincount(n: Call, x: Value, weights: Value | None = None, minlength: int | Expr = 0) -> Value:
    """How often each number from 0 to the largest occurs, or the sum of its weights; at least `minlength` results."""
    places = n.all_within(n.cast(x, i64), 0, LARGEST, "a number that is counted is negative")
    most = n.emit("reduce_max", places, axes=(0,), keepdims=False)
    size = n.emit("max", n.emit("add", most, n.constant(1, i64)), n.number(minlength, i64))
    zeros = n.filled(0, n.dtype, (_rows(n, size),))
    ones = n.filled(1, n.dtype, x.shape) if weights is None else n.cast(weights, n.dtype)
    return n.emit("scatter_elements", zeros, places, ones, axis=0, reduction="add")


@rule("repeat_interleave.Tensor")
def repeat_interleave(n: Call, repeats: Value, *, output_size: Any = None) -> Value:
    """Row numbers, number i repeated `repeats[i]` times: [2, 0, 1] gives 0, 0, 2. It is computed as the count of rows
    that begin at or before each output, minus 1."""
    counts = n.all_within(n.cast(repeats, i64), 0, LARGEST, "a number of repeats is negative")
    total = n.emit("reduce_sum", counts, axes=(0,), keepdims=False)
    if output_size is not None:
        fits = n.emit("eq", total, n.number(output_size, i64))
        counts = n.require(counts, fits, total, "the repeats are not output_size in all")
    rows = _rows(n, total) if output_size is None else dim(output_size)
    starts = n.emit("cumsum", counts, axis=0, exclusive=True, reverse=False)
    zeros = n.filled(0, i64, (dim(rows + 1),))  # one more for rows at the end that are not there
    ones = n.filled(1, i64, counts.shape)
    begun = n.emit("scatter_elements", zeros, starts, ones, axis=0, reduction="add")
    number = n.emit("cumsum", n.slice(begun, 0, 0, rows), axis=0, exclusive=False, reverse=False)
    return n.cast(n.emit("sub", number, n.constant(1, i64)), n.dtype)


def _rows(n: Call, count: Value) -> Expr:
    """The symbol for the number of rows `count`, which each call computes; it is the one for PyTorch's symbol of the
    result's size."""
    stated = n.results.shape[0]
    if not isinstance(stated, torch.SymInt):
        raise UnsupportedError("a size of the data that is known before is not supported", got=stated)
    size = n.sizes.known.get(str(stated.node.expr))
    if size is None:
        size = n.sizes.known[str(stated.node.expr)] = n.extent(count)
    return size
