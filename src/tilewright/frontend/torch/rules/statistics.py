"""Rules for covariances and correlations of the rows of a matrix."""

from __future__ import annotations

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.expr import maximum, product
from tilewright.ir.graph import Value
from tilewright.ops.dims import dim


@rule("cov", single=True)
def cov(
    n: Call, x: Value, *, correction: int = 1, fweights: Value | None = None, aweights: Value | None = None
) -> Value:
    """The products of all rows without their means, over the number of columns less the correction, which is 0 at
    least. A vector is one row; of one row the result is a scalar."""
    if fweights is not None or aweights is not None:
        raise n.unsupported("with weights", hint="weight the columns before, or use torch.compile")
    rows = _centred(n, x)
    columns = rows.shape[1]
    products = n.emit("matmul", rows, n.transpose(rows, (1, 0)))
    return n.reshape(_mean(n, products, columns, correction), n.shape)


@rule("corrcoef", single=True)
def corrcoef(n: Call, x: Value) -> Value:
    """Covariances over both rows' deviations, from -1 to 1."""
    rows = _centred(n, x)
    columns = rows.shape[1]
    products = _mean(n, n.emit("matmul", rows, n.transpose(rows, (1, 0))), columns, 1)
    squares = n.emit("reduce_sum", n.emit("mul", rows, rows), axes=(1,), keepdims=True)
    deviation = n.emit("sqrt", _mean(n, squares, columns, 1))
    result = n.emit("div", n.emit("div", products, deviation), n.transpose(deviation, (1, 0)))
    result = n.emit("min", n.emit("max", result, n.like(-1, result)), n.like(1, result))
    return n.reshape(result, n.shape)


def _centred(n: Call, x: Value) -> Value:
    """The rows without their means."""
    x = n.floats(x)
    if x.type.rank < 2:
        x = n.reshape(x, (1, product(x.shape)))
    return n.emit("sub", x, n.emit("reduce_mean", x, axes=(1,), keepdims=True))


def _mean(n: Call, total: Value, count: object, correction: int) -> Value:
    return n.emit("div", total, n.operand(dim(maximum(count - correction, 0)), total.dtype))  # type: ignore[operator]
