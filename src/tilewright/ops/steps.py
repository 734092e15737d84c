"""Straight-line programs of pointwise operators, as attributes: what a recurrence's step does between its products.

    (("sigmoid", (0,), ()), ("mul", (4, 1), ()))        values 0 to 3 are given; 4 = sigmoid(0), 5 = mul(4, 1)

All values have one floating element type. A step `constant` has its number as the attribute `value`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tilewright.ir.attributes import Number
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Expr
from tilewright.ops import registry
from tilewright.ops.dims import scalar
from tilewright.ops.pointwise import BODIES
from tilewright.support.errors import VerifyError

Step = tuple[str, tuple[int, ...], tuple[tuple[str, Number], ...]]
"""An operator, the values that it takes, its attributes."""
Steps = tuple[Step, ...]

T = TypeVar("T")


def check_steps(steps: Steps, count: int) -> None:
    """Raise VerifyError for steps of unknown operators, and for those that read what comes later."""
    for k, (op, operands, _) in enumerate(steps):
        if op not in BODIES and op != "constant":
            raise VerifyError("a step is no pointwise operator", got=op)
        if any(not 0 <= v < count + k for v in operands):
            raise VerifyError("a step reads what no step before has made", got=f"step {k}: {list(operands)}")


def expressions(steps: Steps, shape: Sequence[Expr], dtype: DType) -> list[Expr]:
    """The values of all steps as expressions of the given ones."""

    def apply(op: str, operands: list[Expr], attrs: dict[str, Any]) -> Expr:
        result: Expr = BODIES[op](tuple(operands), registry.attributes(op, attrs))
        return result

    return _run(steps, shape, apply, lambda number: scalar(number, dtype))


def arrays(steps: Steps, arguments: Sequence[Any], dtype: DType) -> list[Any]:
    """The values of all steps as arrays."""

    def apply(op: str, operands: list[Any], attrs: dict[str, Any]) -> Any:
        return registry.get(op).reference(operands, registry.attributes(op, attrs))[0]

    return _run(steps, arguments, apply, lambda number: np.asarray(number, dtype.numpy))


def _run(
    steps: Steps,
    arguments: Sequence[T],
    apply: Callable[[str, list[T], dict[str, Any]], T],
    constant: Callable[[Any], T],
) -> list[T]:
    values = list(arguments)
    for op, operands, attrs in steps:
        known = dict(attrs)
        values.append(constant(known["value"]) if op == "constant" else apply(op, [values[v] for v in operands], known))
    return values[len(arguments) :]
