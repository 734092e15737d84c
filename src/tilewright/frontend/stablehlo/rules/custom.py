"""`custom_call`: a list of targets whose meaning is known. All others are refused: they are foreign machine code."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.registry import find, rule
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.expr import Expr
from tilewright.ir.graph import Value
from tilewright.support.errors import ShapeError, UnsupportedError

SAME = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "LayoutConstraint"}
"""Targets that only state where a value is stored: the operand is the result."""


@rule("custom_call")
def custom_call(call: Call) -> Any:
    target = str(call.op.attributes.get("call_target_name", ""))
    if target == "shape_assertion":
        return _assertion(call)
    if target in SAME and len(call.items) == len(call.op.results):
        return list(call.items)
    result = find(f"custom_call.{target}")
    if result is not None:
        return result(call)
    name = target.removeprefix("mhlo.").removeprefix("chlo.")
    if target.startswith(("mhlo.", "chlo.")):
        result = find(f"chlo.{name}")
        if result is not None:
            return result(call)
    raise UnsupportedError(
        f"the custom call {target!r} is not supported",
        hint="compute what needs a library outside of the model" if "lapack" in target else None,
    )


def _assertion(call: Call) -> list[Item]:
    """An assertion of JAX. Sizes that it says are equal become one symbol; other conditions on sizes are assumed, and
    calls check them."""
    condition = call.item(0).known
    said = None if condition is None else condition.reshape(-1)[0]
    lines = str(call.op.attributes.get("error_message", "")).splitlines() or [""]
    message = lines[0].partition(" Using the following")[0].strip()[:300]
    if isinstance(said, Expr):
        call.dimensions.assume(said, message, call.builder)
    elif said is None and not call.dimensions.stated:
        raise UnsupportedError("the module asserts what the sizes of its arguments do not tell", got=message)
    elif said is not None and not said:
        raise ShapeError("the shapes do not fit what the module asserts", got=message)
    return []


@rule("custom_call.tilewright.stop_gradient")
def stop_gradient(call: Call) -> Item:
    """The mark that `train/jax_marks.py` writes for a value through which no gradient flows."""
    return call.lazy(call.emit("stop_gradient", call.unbroadcast(0)), call.item(0).shape)


@rule("custom_call.tilewright.surrogate")
def surrogate(call: Call) -> Value:
    """The mark that `train/jax_marks.py` writes for a value through which gradients flow as if it were another one."""
    return call.emit("surrogate", call.value(0), call.value(1))
