"""Rules for casts, and for operators that only concern memory, devices or gradients, which emit nothing."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import rule
from tilewright.ir.dtype import MINIFLOATS, DType, f8e4m3fn, i64, u64
from tilewright.ir.graph import Value


@rule(
    "to",
    "_to_copy",
    "type_as",
    "float",
    "double",
    "half",
    "int",
    "long",
    "bool",
    "_autocast_to_full_precision",
    "prims::convert_element_type",
)
def to(n: Call, x: Value, *_: Any, **__: Any) -> Value:
    """A cast to the result's type; a move between devices emits nothing."""
    return _converted(n, x, n.dtype)


def _converted(n: Call, x: Value, t: DType) -> Value:
    if t is u64 and x.dtype.is_float:
        x = n.cast(x, i64)  # as PyTorch, for which -1.0 is 2^64 - 1
    if t.is_int and x.dtype.is_float:
        return n.truncated(x, t)
    if t in MINIFLOATS and x.dtype is not t:
        # What is too large becomes the largest number of E4M3FN, infinity or NaN of others (PyTorch 2.13).
        return n.emit("cast", x, dtype=t, saturate=t is f8e4m3fn)
    return n.cast(x, t)


@rule(
    "alias",
    "clone",
    "contiguous",
    "lift_fresh",
    "lift_fresh_copy",
    "positive",
    "resolve_conj",
    "resolve_neg",
    "conj",
    "conj_physical",
)
def identity(n: Call, x: Value, *rest: Any, **_: Any) -> Any:
    """The operand itself, for operators that only concern memory."""
    return x


@rule("detach")
def detach(n: Call, x: Value) -> Any:
    """`detach`: a stop of gradients in training, else the operand itself."""
    return x if n.random is None or not x.dtype.is_float else n.emit("stop_gradient", x)
