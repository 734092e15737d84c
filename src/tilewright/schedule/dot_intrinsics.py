"""Choose among a target's dot instructions by the types that they multiply."""

from __future__ import annotations

from tilewright.ir.dtype import DType, bf16
from tilewright.support.errors import ScheduleError
from tilewright.targets import registry
from tilewright.targets.isa import Dot
from tilewright.targets.target import Target


def find_dot(a: DType, b: DType, target: Target) -> Dot | None:
    """The target's instruction that multiplies one row of activations of type `a` with weights of type `b`; None if
    there is none, or f32 products are as fast."""
    dot = next((dot for dot in target.isa.dots if dot.a is a and dot.b is b and dot.kind == "vector"), None)
    slow = dot is not None and a is bf16 and target.costs.arithmetic.bf16_pairs >= dot.group
    return None if slow else dot


def find_tile_dot(a: DType, b: DType, target: Target) -> Dot | None:
    """The target's instruction that multiplies matrices of activations of type `a` and weights of type `b`."""
    return next((dot for dot in target.isa.dots if dot.a is a and dot.b is b and dot.kind == "matrix"), None)


def find_mmla(a: DType, b: DType, target: Target) -> Dot | None:
    """The target's instruction that multiplies two rows of activations of type `a` and two columns of weights of type
    `b`."""
    return next((dot for dot in target.isa.dots if dot.a is a and dot.b is b and dot.kind == "pair"), None)


def has_pairs(target: Target) -> bool:
    """Whether the target has instructions that multiply two rows by two columns."""
    return any(dot.kind == "pair" for dot in target.isa.dots)


def named_dot(name: str) -> Dot:
    """The instruction of this name. Raises ScheduleError if there is none."""
    dots = registry.dots()
    if name not in dots:
        raise ScheduleError(f"no dot instruction is called {name!r}", expected=f"one of {', '.join(dots)}")
    return dots[name]


__all__ = ["Dot", "find_dot", "find_mmla", "find_tile_dot", "has_pairs", "named_dot"]
