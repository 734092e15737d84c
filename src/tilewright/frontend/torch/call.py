"""`Call`: one ATen operator as its import rule sees it: what PyTorch states about its results, and methods that emit
operators."""

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
"""A tensor or a number; numbers that depend on symbolic sizes are expressions."""


@dataclass(slots=True)
class Call(Emitter):
    """The ATen operator that is being imported. `results`: PyTorch's fake tensor of the result, or several; `operands`:
    those of arguments that are single tensors; `read`: which results other nodes read; `random`: the source of random
    numbers, if the graph has one."""

    name: str
    results: Any
    sizes: Sizes
    operands: tuple[Any, ...] = ()
    read: frozenset[int] = frozenset()
    random: Random | None = None
    arrays: Mapping[str, Any] | None = None
    """Weights whose numbers are the same at every call, by name; None inside of bodies of control flow, which may not
    run."""
    in_single: bool = False
    """Whether the rule computes 16-bit floats in f32 (`single`)."""

    # --- results ------------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        """The element type of the (first) result; f32 while a rule runs in `single`, which rounds afterwards."""
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
        """`x`, a number or an expression of sizes, as a scalar of type `t`."""
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
        """The operands cast to their common type, by PyTorch's type promotion."""
        t = promoted(*((o.dtype, o.type.rank) if isinstance(o, Value) else _number(o) for o in operands))
        return [self.operand(o, t) for o in operands]

    def floats(self, x: Value) -> Value:
        """Integers cast to the result's type if that is a float, else to PyTorch's default floating-point type."""
        if x.dtype.is_float:
            return x
        return self.cast(x, self.dtype if self.dtype.is_float else element_type(torch.get_default_dtype()))

    def wide(self, x: Any) -> Any:
        """`x` with 16-bit floats cast to f32, also inside of lists; other values unchanged."""
        if isinstance(x, list | tuple):
            return [self.wide(v) for v in x]
        return self.cast(x, f32) if isinstance(x, Value) and _is_half(x.dtype) else x

    def single(self, rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The results of `rule` for 16-bit floats, computed in f32 and rounded once at the end, as PyTorch does inside
        an operator; with other types the rule's as they are."""
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

    def places(self, x: Value, axis: int | None = 0) -> Value:
        """The coordinates of the elements of `x` that are not zero, one row each. Their number is a symbol, which is
        also recorded for PyTorch's symbol of it, the extent of the node's result along `axis` (None: of none). Of one
        `x` it is one symbol, as for PyTorch, so that what several nodes read by one mask has one size."""
        rows = self._places_before(x)
        if rows is None:
            result, count = self.emit_all("nonzero", x)
            rows = self.head(result, count)
        size = None if axis is None else self.results.shape[axis]
        if isinstance(size, torch.SymInt):
            self.sizes.known[str(size.node.expr)] = rows.shape[0]
        return rows

    def _places_before(self, x: Value) -> Value | None:
        """The coordinates that a node before this one has of `x`; None if there is none."""
        nodes = self.builder.nodes
        counted = next((n for n in nodes if n.op == "nonzero" and n.inputs[0] is x), None)
        if counted is None:
            return None
        return next((n.outputs[0] for n in nodes if n.op == "head" and n.inputs == counted.outputs), None)

    # --- indices ------------------------------------------------------------------------------------------------------

    def check_indices(self, indices: Value, extent: Expr, *, from_end: bool = False) -> None:
        """Assume that `indices` are inside of a dimension of `extent`, if sizes alone decide them; calls check it.
        Indices from data are not checked, as gathers and scatters never leave their tensors. A model whose indices are
        outside at all sizes is refused.

        Args:
            from_end: whether PyTorch accepts negative indices, which count from the end.
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
        """`value` with the gradient of `like()`, in training: PyTorch's choice of a subgradient, as for equal maxima or
        at corners."""
        if self.random is None or not value.dtype.is_float:
            return value
        return self.emit("surrogate", self.emit("stop_gradient", value), like())

    def picked(self, value: Value, x: Value, index: Value, axis: int) -> Value:
        """`value`, whose gradient in training flows to the element of `x` at `index` in each row along `axis`, which it
        equals. `index` has the shape of `value`, with or without the axis."""

        def element() -> Value:
            retained = index if index.type.rank == x.type.rank else self.reshape(index, _with_one(index.shape, axis))
            return self.reshape(self.emit("gather_elements", x, retained, axis=axis), value.shape)

        return self.surrogate(value, element)

    # --- small things that many rules want ----------------------------------------------------------------------------

    def axis(self, axis: int, x: Value) -> int:
        """An axis as a position; a scalar counts as having one dimension."""
        return axis_of(axis, max(x.type.rank, 1))

    def axes(self, arguments: int | Sequence[int] | None, x: Value) -> tuple[int, ...]:
        """The axes as sorted, non-negative positions; all axes if the argument is None or empty."""
        if isinstance(arguments, int):
            arguments = [arguments]
        if not arguments:
            return tuple(range(x.type.rank))
        return tuple(sorted({self.axis(a, x) for a in arguments if x.type.rank}))

    def broadcast(self, x: Value, shape: Sequence[Any]) -> Value:
        target = dims(shape)
        return x if target == x.shape else self.emit("broadcast", x, shape=target)

    def filled(self, number: Operand, t: DType, shape: Sequence[Any]) -> Value:
        """A tensor of `shape` and type `t` whose elements are all `number`."""
        return self.broadcast(self.operand(number, t), shape)

    def unsupported(self, what: str, **details: Any) -> UnsupportedError:
        return UnsupportedError(f"{self.name} {what} is not supported", **details)


def _with_one(shape: Sequence[Expr], axis: int) -> tuple[Any, ...]:
    return (*shape[:axis], 1, *shape[axis:])


def _is_half(t: DType) -> bool:
    return t.is_float and t.bits == 16


def _number(x: Any) -> Any:
    """`x` as an operand of type promotion, for which an expression of sizes counts as an integer."""
    return 1 if isinstance(x, Expr) else x
