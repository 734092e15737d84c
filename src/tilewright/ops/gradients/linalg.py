"""Gradients of matrix factorisations and triangular systems, as solves with the factors that the forward pass computed.

    A x = b      db = A^-T dx,  dA = -db x^T in the triangle that is read
    A = L L^T    dA = (S + S^T) / 2,  S = L^-T P(L^T dL) L^-1,  P the lower triangle with half its diagonal
    A = L U      dA = L^-T (lower(L^T dL) + upper(dU U^T)) U^-T  of the rows in the order of the pivots

(Giles, An extended collection of matrix derivative results, 2008; Murray, Differentiation of the Cholesky
decomposition, 2016.) Matrices of a Cholesky factorisation are symmetric, and so is their gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Value
from tilewright.ops.dims import dims
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.linalg import TriangularAttrs
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

Result = Sequence[Value | None]


@dataclass(frozen=True, slots=True)
class Matrices:
    """Emits operators on matrices, the last two dimensions of values."""

    b: Backward

    def transposed(self, x: Value) -> Value:
        rank = x.type.rank
        return self.b.transpose(x, [*range(rank - 2), rank - 1, rank - 2])

    def product(self, x: Value, y: Value, *, transposed: str = "") -> Value:
        """The product x y, in which the operand that `transposed` names ("x" or "y") is transposed first."""
        return self.b.emit("matmul", x, y, transpose_a=transposed == "x", transpose_b=transposed == "y")

    def solve(self, a: Value, right: Value, *, upper: bool, unit: bool = False) -> Value:
        return self.b.emit("triangular_solve", a, right, upper=upper, unit=unit)

    def solve_transposed(self, a: Value, right: Value, *, upper: bool, unit: bool = False) -> Value:
        """x with a^T x = right, where `a` is read in its `upper` or lower triangle."""
        return self.solve(self.transposed(a), right, upper=not upper, unit=unit)

    def triangle(self, x: Value, *, upper: bool, k: int = 0) -> Value:
        return self.b.emit("trilu", x, k=k, upper=upper)

    def part(self, x: Value, rows: tuple[int, int], columns: tuple[int, int]) -> Value:
        """The submatrix of the rows and columns in two ranges (first, end)."""
        lead = x.shape[:-2]
        begin = (*[0] * len(lead), rows[0], columns[0])
        size = dims([*lead, rows[1] - rows[0], columns[1] - columns[0]])
        return self.b.emit("slice", x, begin=begin, size=size, step=(1,) * x.type.rank)


@gradient("triangular_solve")
def triangular_solve(b: Backward) -> Result:
    m, attrs, a = Matrices(b), b.of(TriangularAttrs), b.x(0)
    right = m.solve_transposed(a, b.g, upper=attrs.upper, unit=attrs.unit)
    off = 0 if not attrs.unit else 1 if attrs.upper else -1
    whole = b.emit("neg", m.product(right, b.y, transposed="y"))
    return [m.triangle(whole, upper=attrs.upper, k=off), right]


@gradient("cholesky")
def cholesky(b: Backward) -> Result:
    m, factor = Matrices(b), b.y
    inner = m.product(factor, m.triangle(b.g, upper=False), transposed="x")
    both = b.add(m.triangle(inner, upper=False), m.triangle(inner, upper=False, k=-1))  # twice P
    left = m.solve_transposed(factor, both, upper=False)
    twice = m.transposed(m.solve_transposed(factor, m.transposed(left), upper=False))
    return [b.mul(b.like(0.25, twice), b.add(twice, m.transposed(twice)))]


@gradient("lu")
def lu(b: Backward) -> Result:
    """The gradient of LU. Where the matrix is not square, the part of a factor beside or below the square is the
    solution of a triangular system, and is differentiated first."""
    m, x, both = Matrices(b), b.x(), b.y
    rows, columns = (as_int(d) for d in x.shape[-2:])
    if rows is None or columns is None:
        raise UnsupportedError("LU factors of matrices of unknown size have no gradient", where=both.name)
    size = min(rows, columns)
    begin, rest = (0, size), (size, max(rows, columns))
    square, flow = m.part(both, begin, begin), m.part(b.g, begin, begin)
    lower = m.product(m.triangle(square, upper=False, k=-1), flow, transposed="x")
    # The unit diagonal adds the gradient itself.
    by_lower = b.add(lower, m.triangle(flow, upper=False, k=-1))
    by_upper = m.product(m.triangle(flow, upper=True), m.triangle(square, upper=True), transposed="y")
    aside: Value | None = None
    if columns > size:
        other, supplied = m.part(both, begin, rest), m.part(b.g, begin, rest)
        by_lower = b.sub(by_lower, m.product(supplied, other, transposed="y"))
        aside = m.solve_transposed(square, supplied, upper=False, unit=True)
    if rows > size:
        other, supplied = m.part(both, rest, begin), m.part(b.g, rest, begin)
        by_upper = b.sub(by_upper, m.product(other, supplied, transposed="x"))
        aside = m.transposed(m.solve(square, m.transposed(supplied), upper=True))
    middle = b.add(m.triangle(by_lower, upper=False, k=-1), m.triangle(by_upper, upper=True))
    left = m.solve_transposed(square, middle, upper=False, unit=True)
    result = m.transposed(m.solve(square, m.transposed(left), upper=True))
    if aside is not None:
        result = b.emit("concat", result, aside, axis=x.type.rank - (1 if columns > size else 2))
    return [_in_order(b, result)]


def _in_order(b: Backward, result: Value) -> Value:
    """The rows of `result` moved from the pivots' order back to the matrix's order."""
    order, shape = b.node.outputs[2], b.x().shape
    places = b.broadcast(b.reshape(order, dims((*order.shape, const(1)))), shape)
    return b.emit("scatter_elements", b.zeros(shape, result), places, result, axis=len(shape) - 2, reduction="add")
