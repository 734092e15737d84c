"""`Call`: one ATen operator as a rule sees it - what PyTorch says of its results, and how to put operators into the
graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.common.indices import ends, inside
from tilewright.frontend.torch.dtypes import element_type, promoted
from tilewright.frontend.torch.random import Random
from tilewright.frontend.torch.symbols import Sizes
from tilewright.ir.dtype import DType, f32
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Value
from tilewright.ir.rewrite import variables
from tilewright.ops.dims import axis_of, dims, known
from tilewright.ops.rooms import is_room
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

Operand = Value | Expr | int | float | bool
"""A tensor, or a number (an expression: one that depends on symbolic sizes)."""


@dataclass(slots=True)
class Call(Emitter):
    """An operator being imported. `results` is what PyTorch says comes out: a fake tensor, or a tuple of them;
    `operands` what goes in, where an argument is one tensor; `read` which of several results something reads;
    `random` where random numbers come from, if there are any."""

    name: str
    results: Any
    sizes: Sizes
    operands: tuple[Any, ...] = ()
    read: frozenset[int] = frozenset()
    random: Random | None = None
    arrays: Mapping[str, Any] | None = None
    """Weights whose numbers are the same at every call, by name; None inside of bodies, which may not be run."""
    in_single: bool = False
    """Whether numbers of 16 bits are computed in f32 (`single`)."""

    # --- results ------------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        """The element type of the (first) result; f32 where that is rounded afterwards."""
        first = self.results[0] if isinstance(self.results, tuple | list) else self.results
        t = element_type(first.dtype)
        return f32 if self.in_single and _is_half(t) else t

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The shape of the (first) result."""
        first = self.results[0] if isinstance(self.results, tuple | list) else self.results
        return tuple(self.sizes.expr(d) for d in first.shape)

    # --- operands -----------------------------------------------------------------------------------------------------

    def number(self, x: Operand, t: DType) -> Value:
        """A number as a scalar of the graph."""
        if isinstance(x, Expr):
            known = as_int(x)
            return self.symbols([x], t, ()) if known is None else self.constant(known, t)
        return self.constant(x, t)

    def like(self, number: Any, value: Value) -> Value:
        """A number, which may be an expression of sizes, as a scalar of `value`'s type."""
        return self.number(number, value.dtype)

    def operand(self, x: Operand, t: DType) -> Value:
        """A tensor or a number as a value of element type `t`."""
        return self.cast(x, t) if isinstance(x, Value) else self.number(x, t)

    def together(self, *operands: Operand) -> list[Value]:
        """The operands in the type in which PyTorch computes with them."""
        t = promoted(*((o.dtype, o.type.rank) if isinstance(o, Value) else _number(o) for o in operands))
        return [self.operand(o, t) for o in operands]

    def floats(self, x: Value) -> Value:
        """Integers as PyTorch's default floating-point type; that of the result where it is one."""
        if x.dtype.is_float:
            return x
        return self.cast(x, self.dtype if self.dtype.is_float else element_type(torch.get_default_dtype()))

    def wide(self, x: Any) -> Any:
        """Numbers of 16 bits in f32; of lists each element, and whatever else is given as it is."""
        if isinstance(x, list | tuple):
            return [self.wide(v) for v in x]
        return self.cast(x, f32) if isinstance(x, Value) and _is_half(x.dtype) else x

    def single(self, rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a rule on numbers of 16 bits when it computes in f32, as PyTorch does inside an operator:
        rounded once, where squares, sums and quotients on the way would lose digits or overflow."""
        stated = self.results if isinstance(self.results, tuple | list) else [self.results]
        if not any(isinstance(s, torch.Tensor) and s.dtype in (torch.float16, torch.bfloat16) for s in stated):
            return rule(self, *args, **kwargs)
        inner = replace(self, in_single=True)
        match = rule(inner, *self.wide(args), **{name: self.wide(v) for name, v in kwargs.items()})
        several = list(match) if isinstance(match, list | tuple) else [match]
        for k, (value, result) in enumerate(zip(several, stated, strict=False)):
            if isinstance(value, Value) and value.dtype is f32 and isinstance(result, torch.Tensor):
                several[k] = self.cast(value, element_type(result.dtype))
        return several if isinstance(match, list | tuple) else several[0]

    def places(self, x: Value) -> Value:
        """The places of elements that are not zero, a row each: as many as data says, which is PyTorch's symbol for the
        first dimension of the result, and from here on one of ours."""
        result, count = self.emit_all("nonzero", x)
        rows = self.head(result, count)
        size = self.results.shape[0]
        if isinstance(size, torch.SymInt):
            self.sizes.known[str(size.node.expr)] = rows.shape[0]
        return rows

    # --- indices ------------------------------------------------------------------------------------------------------

    def check_indices(self, indices: Value, extent: Expr, *, from_end: bool = False) -> None:
        """Let calls check that indices are places of a dimension, where sizes alone decide it. What data says is not
        looked at: gathers and scatters stay inside of tensors by themselves. Where they are outside at all sizes the
        model is refused, for what it assumes holds for none.

        Args:
            from_end: whether PyTorch takes negative ones, which count from the end.
        """
        parts = None if self.arrays is None else ends(indices, self.builder, self.arrays)
        count = indices.type.size
        if not parts or known(count < 1):
            return
        within = inside(parts, extent, from_end=from_end)
        condition = within if known(count > 0) else within | (count < 1)
        inputs = [v for v in self.builder.inputs if not is_room(v)]
        symbols = {s for v in inputs for d in v.shape for s in variables(d)}
        if not known(condition) and symbols.issuperset(variables(condition)):
            self.builder.assume(condition, f"the indices of {self.name} are places of the dimension")

    # --- gradients ----------------------------------------------------------------------------------------------------

    def surrogate(self, value: Value, like: Callable[[], Value]) -> Value:
        """A value through which, where gradients are asked for, they flow as if it were `like`: how PyTorch says them
        where there are several, as of equal elements and at corners."""
        if self.random is None or not value.dtype.is_float:
            return value
        return self.emit("surrogate", self.emit("stop_gradient", value), like())

    def picked(self, value: Value, x: Value, index: Value, axis: int) -> Value:
        """A value that is the element at `index` of each row along an axis of `x`, to which alone gradients flow;
        the index has the value's shape, and so has the axis if it is kept, with one element or more."""

        def element() -> Value:
            retained = index if index.type.rank == x.type.rank else self.reshape(index, _with_one(index.shape, axis))
            return self.reshape(self.emit("gather_elements", x, retained, axis=axis), value.shape)

        return self.surrogate(value, element)

    # --- small things that many rules want ----------------------------------------------------------------------------

    def axis(self, axis: int, x: Value) -> int:
        """An axis as a position; a scalar counts as having one dimension."""
        return axis_of(axis, max(x.type.rank, 1))

    def axes(self, arguments: int | Sequence[int] | None, x: Value) -> tuple[int, ...]:
        """Sorted positions; none given is all of them."""
        if isinstance(arguments, int):
            arguments = [arguments]
        if not arguments:
            return tuple(range(x.type.rank))
        return tuple(sorted({self.axis(a, x) for a in arguments if x.type.rank}))

    def broadcast(self, x: Value, shape: Sequence[Any]) -> Value:
        target = dims(shape)
        return x if target == x.shape else self.emit("broadcast", x, shape=target)

    def filled(self, number: Operand, t: DType, shape: Sequence[Any]) -> Value:
        """A tensor of one number."""
        return self.broadcast(self.operand(number, t), shape)

    def unsupported(self, what: str, **details: Any) -> UnsupportedError:
        return UnsupportedError(f"{self.name} {what} is not supported", **details)


def _with_one(shape: Sequence[Expr], axis: int) -> tuple[Any, ...]:
    return (*shape[:axis], 1, *shape[axis:])


def _is_half(t: DType) -> bool:
    return t.is_float and t.bits == 16


def _number(x: Any) -> Any:
    """A number for type promotion: expressions are integers."""
    return 1 if isinstance(x, Expr) else x
