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
    """Covariances of rows: products of the centred rows, divided by max(columns - correction, 0). A vector is treated
    as one row, for which the result is a scalar. Raises UnsupportedError for weights of columns (`fweights`,
    `aweights`)."""
    if fweights is not None or aweights is not None:
        raise n.unsupported("with weights", hint="weight the columns before, or use torch.compile")
    rows = _centred(n, x)
    columns = rows.shape[1]
    products = n.emit("matmul", rows, n.transpose(rows, (1, 0)))
    return n.reshape(_mean(n, products, columns, correction), n.shape)


@rule("corrcoef", single=True)
def corrcoef(n: Call, x: Value) -> Value:
    """Correlations of rows: covariances divided by both standard deviations, clamped to -1..1."""
    rows = _centred(n, x)
    columns = rows.shape[1]
    products = _mean(n, n.emit("matmul", rows, n.transpose(rows, (1, 0))), columns, 1)
    squares = n.emit("reduce_sum", n.emit("mul", rows, rows), axes=(1,), keepdims=True)
    deviation = n.emit("sqrt", _mean(n, squares, columns, 1))
    result = n.emit("div", n.emit("div", products, deviation), n.transpose(deviation, (1, 0)))
    result = n.emit("min", n.emit("max", result, n.like(-1, result)), n.like(1, result))
    return n.reshape(result, n.shape)


def _centred(n: Call, x: Value) -> Value:
    """Each row minus its mean."""
    x = n.floats(x)
    if x.type.rank < 2:
        x = n.reshape(x, (1, product(x.shape)))
    return n.emit("sub", x, n.emit("reduce_mean", x, axes=(1,), keepdims=True))


def _mean(n: Call, total: Value, count: object, correction: int) -> Value:
    return n.emit("div", total, n.operand(dim(maximum(count - correction, 0)), total.dtype))  # type: ignore[operator]
