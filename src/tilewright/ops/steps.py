"""Straight-line programs of pointwise operators and products, which describe one step of a recurrence.

    (("sigmoid", (0,), ()), ("mul", (4, 1), ()))        values 0 to 3 are arguments; 4 = sigmoid(0), 5 = mul(4, 1)

All values have one floating element type. A step `constant` has its number as the attribute `value`. A step `product`
has an addend, unless that is left out, and a state, which it multiplies by the recurrent weights of a `gate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.ir.attributes import Number
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ops import registry
from tilewright.ops.dims import scalar
from tilewright.ops.pointwise import BODIES
from tilewright.support.classes import dataclass
from tilewright.support.errors import VerifyError

Step = tuple[str, tuple[int, ...], tuple[tuple[str, Number], ...]]
"""(operator, numbers of the values that it reads, attributes)."""
Steps = tuple[Step, ...]

T = TypeVar("T")
Apply = Callable[[str, Sequence[T], dict[str, Any]], T]
"""A function that applies an operator with attributes to values."""
Multiply = Callable[[T | None, T, int], T]
"""A function that returns an addend (or 0) plus a state times the recurrent weights of a gate."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product among the steps of a program: value `number` is value `addend` (None: 0) plus value `state` times the
    recurrent weights of gate `gate`."""

    number: int
    addend: int | None
    state: int
    gate: int


@dataclass(frozen=True, slots=True)
class Program:
    """Steps with the numbers of their arguments and results.

    shares      how many arguments are parts of the inputs' share; the state h follows, then c if there is one, then
                the vectors
    arguments   how many arguments there are
    results     the numbers of the new states
    retained    the numbers of values that the backward pass reads
    """

    shares: int
    arguments: int
    steps: Steps
    results: tuple[int, ...]
    retained: tuple[int, ...] = ()

    @property
    def vectors(self) -> int:
        """The number of arguments that are the same for all rows."""
        return self.arguments - self.shares - len(self.results)

    @property
    def products(self) -> list[Product]:
        return [
            Product(number, operands[0] if len(operands) > 1 else None, operands[-1], int(dict(attrs)["gate"]))
            for number, (op, operands, attrs) in enumerate(self.steps, self.arguments)
            if op == "product"
        ]


def check_steps(steps: Steps, count: int) -> None:
    """Raise VerifyError for steps with unknown operators, or that read values of later steps. `count` values are
    numbered before the steps' own."""
    for k, (op, operands, _) in enumerate(steps):
        if op not in BODIES and op != "constant":
            raise VerifyError("a step is no pointwise operator", got=op)
        if any(not 0 <= v < count + k for v in operands):
            raise VerifyError("a step reads what no step before has made", got=f"step {k}: {list(operands)}")


def multiplying(steps: Steps, products: int, shares: int, arguments: int, states: int) -> Program:
    """The program of a user's cell of `shares` shares of the input and `states` states, from `steps`, its pointwise
    steps. In `steps`, values are numbered so that the `products` products of the state h come first, one for each gate,
    and then the arguments; the program numbers arguments first, and computes the products by steps of its own."""

    def number(v: int) -> int:
        return v + arguments if v < products else v - products if v < products + arguments else v

    own = tuple((op, tuple(map(number, operands)), attrs) for op, operands, attrs in steps)
    first: Steps = tuple(("product", (shares,), (("gate", k),)) for k in range(products))
    end = arguments + products + len(steps)
    return Program(shares, arguments, first + own, tuple(range(end - states, end)))


def run(
    program: Program,
    arguments: Sequence[T | None],
    apply: Apply[T],
    multiply: Multiply[T],
    wanted: Iterable[int] | None = None,
    *,
    known: Mapping[int, T] | None = None,
    then: Callable[[int, T], T] = lambda _, value: value,
) -> list[T | None]:
    """The values of a program, by number, as far as the values `wanted` (None: the results) depend on them; None for
    the others.

    Arguments that are None are zeros, which no step reads. Values in `known` are not computed. `then` is called with
    each step's number and value, in the order of the steps, and returns the value that later steps read.
    """
    known = known or {}
    values: list[T | None] = list(arguments)
    zero = [v is None for v in values]
    for number, (op, operands, _) in enumerate(program.steps, len(values)):
        zeros = [zero[v] for v in operands]
        vanishes = any(zeros) if op == "mul" else op in ("add", "product") and all(zeros)
        zero.append(vanishes and number not in known)
    needed = set(program.results if wanted is None else wanted)
    for number, (_, operands, _) in reversed([*enumerate(program.steps, len(values))]):
        if number in needed and number not in known and not zero[number]:
            needed.update(operands)
    for number, (op, operands, attrs) in enumerate(program.steps, len(values)):
        x = [v for k in operands if (v := values[k]) is not None]
        value = known.get(number)
        if value is None and number in needed and not zero[number]:
            if op == "product":
                addend = values[operands[0]] if len(operands) > 1 else None
                state = values[operands[-1]]
                value = addend if state is None else multiply(addend, state, int(dict(attrs)["gate"]))
            else:
                value = x[0] if op == "add" and len(x) == 1 else apply(op, x, dict(attrs))
            assert value is not None
            value = then(number, value)
        values.append(value)
    return values


def of_expressions(dtype: DType) -> Apply[Expr]:
    """A function that applies a pointwise operator (name, operands, attributes) to scalar expressions, and returns an
    expression; constants have the type `dtype`."""

    def apply(op: str, operands: Sequence[Expr], attrs: dict[str, Any]) -> Expr:
        if op == "constant":
            return scalar(attrs["value"], dtype)
        result: Expr = BODIES[op](tuple(operands), registry.attributes(op, attrs))
        return result

    return apply


def of_arrays(dtype: DType) -> Apply[Any]:
    """A function that applies a pointwise operator (name, operands, attributes) to arrays, by NumPy; constants have the
    type `dtype`."""

    def apply(op: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        if op == "constant":
            return np.asarray(attrs["value"], dtype.numpy)
        return registry.get(op).reference(list(operands), registry.attributes(op, attrs))[0]

    return apply
