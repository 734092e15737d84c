"""To which operand PyTorch gives the gradient of `clamp`, `fmax` and `fmin` where operands are equal or NaN. PyTorch
2.14 changed its formulas:

    operator                  at equal operands, to PyTorch 2.13     from PyTorch 2.14 on
    clamp by numbers          all to the operand                     none
    clamp by one tensor       all to the operand                     half to each, as of `maximum`
    clamp by two tensors      all to the operand                     half to each; all to it if the bounds are equal
    fmax, fmin                all to the first                       half to each

Each function returns one whose value does not matter, and whose gradient is PyTorch's (see `Call.surrogate`).
"""

from __future__ import annotations

from functools import reduce

import torch
from torch.torch_version import TorchVersion

from tilewright.frontend.torch.call import Call
from tilewright.ir.graph import Value

SPLITS_TIES = bool(TorchVersion(torch.__version__) >= (2, 14))
"""Whether the installed PyTorch has the formulas of 2.14."""


def within(n: Call, x: Value, low: Value | None, high: Value | None) -> Value:
    """`x` between `low` and `high`, else 0: `clamp` by numbers from PyTorch 2.14 on (`clamp_backward`)."""
    inside = [n.emit(op, x, bound) for op, bound in (("gt", low), ("lt", high)) if bound is not None]
    return n.emit("select", _all(n, inside), x, n.like(0, x))


def clamped(n: Call, x: Value, low: Value | None, high: Value | None) -> Value:
    """`clamp` of `x` by one tensor or two (`clamp_backward`, `clamp_backward_min_max`)."""
    if not SPLITS_TIES:
        return _clamped_once(n, x, low, high)
    if low is None or high is None:
        bound = high if low is None else low
        assert bound is not None
        return _halved(n, x, bound, largest=low is not None)
    ordered, at_low, at_high = n.emit("lt", low, high), n.emit("eq", x, low), n.emit("eq", x, high)
    below, above = n.emit("lt", x, low), n.emit("gt", x, high)
    valid, crossed = n.emit("le", low, high), n.emit("gt", low, high)
    parts = [
        _part(n, x, n.emit("not", n.emit("or", below, above)), n.emit("and", ordered, n.emit("or", at_low, at_high))),
        _part(n, low, n.emit("and", below, valid), n.emit("and", ordered, at_low)),
        _part(n, high, n.emit("or", crossed, n.emit("and", above, valid)), n.emit("and", ordered, at_high)),
    ]
    return _sum(n, parts)


def _clamped_once(n: Call, x: Value, low: Value | None, high: Value | None) -> Value:
    """`clamp` before PyTorch 2.14: the gradient flows to a bound where that is selected, and nowhere if the bounds are
    equal and `x` is outside of them."""
    inside = [n.emit(op, x, bound) for op, bound in (("ge", low), ("le", high)) if bound is not None]
    parts = [_part(n, x, _all(n, inside))]
    if low is not None:
        below = n.emit("lt", x, low)
        parts.append(_part(n, low, below if high is None else n.emit("and", below, n.emit("lt", low, high))))
    if high is not None:
        above = n.emit("gt", x, high)
        parts.append(_part(n, high, above if low is None else n.emit("or", above, n.emit("lt", high, low))))
    return _sum(n, parts)


def known_extreme(n: Call, x: Value, y: Value, *, largest: bool) -> Value:
    """`fmax` or `fmin` of `x` and `y`. From PyTorch 2.14 on both get the whole gradient if one is NaN."""
    if SPLITS_TIES:
        return _halved(n, x, y, largest=largest)
    wins = n.emit("or", n.emit("ge" if largest else "le", x, y), n.emit("isnan", y))
    return n.emit("select", wins, x, y)


def _halved(n: Call, x: Value, y: Value, *, largest: bool) -> Value:
    """The larger or smaller of `x` and `y`: half the gradient to each if they are equal, else all to each that the
    other does not exceed; so to both if one is NaN."""
    equal, loses = n.emit("eq", x, y), "lt" if largest else "gt"
    return _sum(n, [_part(n, a, n.emit("not", n.emit(loses, a, b)), equal) for a, b in ((x, y), (y, x))])


def _part(n: Call, x: Value, whole: Value, half: Value | None = None) -> Value:
    """Half of `x` where `half` is true, else `x` where `whole` is, else 0."""
    part = n.emit("select", whole, x, n.like(0, x))
    return part if half is None else n.emit("select", half, n.emit("mul", x, n.like(0.5, x)), part)


def _all(n: Call, conditions: list[Value]) -> Value:
    return reduce(lambda a, b: n.emit("and", a, b), conditions)


def _sum(n: Call, parts: list[Value]) -> Value:
    return reduce(lambda a, b: n.emit("add", a, b), parts)


__all__ = ["SPLITS_TIES", "clamped", "known_extreme", "within"]
