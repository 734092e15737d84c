"""Complex tensors as pairs of real values. No program has them as inputs, weights or outputs.

Fourier transforms produce them, and models apply few operators before the inverse transform. Operators that move or add
elements run on each part by their own rule; products and functions have rules here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.dtypes import element_type
from tilewright.ir.graph import Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Complex types, each with that of its parts."""

PARTWISE = set(
    """add sub neg sum mean slice select narrow reshape view _unsafe_view permute transpose t unsqueeze squeeze expand
    cat stack clone alias contiguous detach flip roll constant_pad_nd index_select split split_with_sizes unbind chunk
    unflatten flatten lift_fresh_copy
    """.split()
)
"""Operators that act on a complex tensor as on its real and imaginary part separately."""


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex tensor: its real and its imaginary part."""

    re: Value
    im: Value

    @property
    def parts(self) -> tuple[Value, Value]:
        return self.re, self.im


Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)
RULES: dict[str, Rule] = {}
"""Rules for complex tensors, by name of the operator, where the rule for real ones does not apply to the parts."""


def rule(*names: str) -> Callable[[F], F]:
    """Register a rule for operators on complex tensors."""

    def register(f: F) -> F:
        RULES.update(dict.fromkeys(names, f))
        return f

    return register


def involved(arguments: Any) -> bool:
    """Whether a complex tensor or number is among the arguments, or in a list among them."""
    if isinstance(arguments, list | tuple):
        return any(involved(a) for a in arguments)
    return isinstance(arguments, Complex | complex)


def is_complex(results: Any) -> bool:
    """Whether one of `results`, fake tensors, is complex."""
    several = results if isinstance(results, list | tuple) else (results,)
    return any(isinstance(r, torch.Tensor) and r.is_complex() for r in several)


def apply(call: Call, packet: str, real: Rule | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of the operator `packet` with complex operands or results: by its own rule, or by `real`, the rule
    for real tensors, on real and imaginary parts separately."""
    if packet in RULES:
        return RULES[packet](call, *args, **kwargs)
    if packet not in PARTWISE or real is None:
        raise UnsupportedError(f"the operator {call.name} is not supported for complex numbers")
    if any(isinstance(v, complex) for v in kwargs.values()):
        raise UnsupportedError(f"the operator {call.name} is not supported for a complex argument")
    # A number among these operands has parts too; elsewhere numbers are axes and places.
    numbers = range(len(args)) if packet in ("add", "sub") else (2,) if packet == "constant_pad_nd" else ()
    args = [complex(a) if k in numbers and isinstance(a, int | float) else a for k, a in enumerate(args)]
    inner = replace(call, results=_parts_of(call.results), operands=tuple(map(_parts_of, call.operands)))
    places = packet == "index_select"  # which takes them as a tensor, the same for both parts
    both = [
        real(inner, *[a if places and isinstance(a, Value) else part(call, a, k) for a in args], **kwargs)
        for k in (0, 1)
    ]
    return _paired(*both)


def part(call: Call, argument: Any, k: int) -> Any:
    """The real (`k` 0) or imaginary (1) part of an operator's argument, also inside of lists. A real tensor's imaginary
    part is zeros; other values that are not complex are returned as they are."""
    if isinstance(argument, list | tuple) and involved(argument):
        return [part(call, a, k) for a in argument]
    if isinstance(argument, Value) and k == 1:
        return call.broadcast(call.like(0, argument), argument.shape)
    if isinstance(argument, complex):
        return argument.imag if k else argument.real
    return argument.parts[k] if isinstance(argument, Complex) else argument


def _paired(re: Any, im: Any) -> Any:
    if isinstance(re, list | tuple):
        return [Complex(a, b) for a, b in zip(re, im, strict=True)]
    return Complex(re, im)


def _parts_of(fake: Any) -> Any:
    """`fake`, in which complex fake tensors are replaced by real ones of their parts' type."""
    if isinstance(fake, list | tuple):
        return [_parts_of(f) for f in fake]
    return fake.real if isinstance(fake, torch.Tensor) and fake.is_complex() else fake


def pair(call: Call, x: Any) -> tuple[Any, Any]:
    """(real part, imaginary part) of an operand; the imaginary part is None for a real one."""
    if isinstance(x, Complex):
        return x.parts
    return (x.real, x.imag) if isinstance(x, complex) else (x, None)


# --- rules ------------------------------------------------------------------------------------------------------------


@rule("mul", "multiply")
def multiply(n: Call, x: Any, y: Any) -> Complex:
    t = part_type(n)
    (a, b), (c, d) = ([None if p is None else n.operand(p, t) for p in pair(n, o)] for o in (x, y))
    if b is None or d is None:
        (c, d), a = ((c, d), a) if b is None else ((a, b), c)
        return Complex(n.emit("mul", a, c), n.emit("mul", a, d))
    return Complex(
        n.emit("sub", n.emit("mul", a, c), n.emit("mul", b, d)), n.emit("add", n.emit("mul", a, d), n.emit("mul", b, c))
    )


@rule("div", "divide", "true_divide")
def divide(n: Call, x: Any, y: Any, *, rounding_mode: Any = None) -> Complex:
    if not isinstance(x, Complex) or isinstance(y, Complex | complex) or rounding_mode is not None:
        raise n.unsupported("by a complex number")
    by = n.operand(y, x.re.dtype)
    return Complex(n.emit("div", x.re, by), n.emit("div", x.im, by))


@rule("_conj", "conj", "_conj_physical", "conj_physical")
def conjugate(n: Call, x: Complex) -> Complex:
    return Complex(x.re, n.emit("neg", x.im))


@rule("resolve_conj", "resolve_neg")
def resolved(n: Call, x: Complex) -> Complex:
    return x


@rule("real")
def real(n: Call, x: Complex) -> Value:
    return x.re


@rule("imag")
def imaginary(n: Call, x: Complex) -> Value:
    return x.im


@rule("view_as_real")
def view_as_real(n: Call, x: Complex) -> Value:
    columns = [n.reshape(p, (*p.shape, 1)) for p in x.parts]
    return n.emit("concat", *columns, axis=x.re.type.rank)


@rule("view_as_complex")
def view_as_complex(n: Call, x: Value) -> Complex:
    last = x.type.rank - 1
    re, im = (n.reshape(n.slice(x, last, k, 1), x.shape[:-1]) for k in (0, 1))
    return Complex(re, im)


@rule("complex")
def together(n: Call, re: Value, im: Value) -> Complex:
    return Complex(*(n.broadcast(n.cast(p, part_type(n)), n.shape) for p in (re, im)))


@rule("polar")
def polar(n: Call, size: Value, angle: Value) -> Complex:
    return Complex(*(n.emit("mul", size, n.emit(f, angle)) for f in ("cos", "sin")))


@rule("exp")
def exponential(n: Call, x: Complex) -> Complex:
    return polar(n, n.emit("exp", x.re), x.im)


@rule("_to_copy", "to", "_to_dtype")
def converted(n: Call, x: Any, *arguments: Any, dtype: Any = None, **retained: Any) -> Complex:
    if isinstance(x, Complex):
        if not n.results.is_complex():
            raise n.unsupported("from complex to real")
        return Complex(*(n.cast(p, part_type(n)) for p in x.parts))
    re = n.cast(x, part_type(n))
    return Complex(re, n.broadcast(n.like(0, re), re.shape))


def part_type(n: Call) -> Any:
    """The element type of the real and imaginary parts of the (first) result."""
    first = n.results[0] if isinstance(n.results, tuple | list) else n.results
    return element_type(PARTS.get(first.dtype, first.dtype))


__all__ = ["PARTS", "PARTWISE", "RULES", "Complex", "apply", "involved", "is_complex", "part_type", "rule"]
