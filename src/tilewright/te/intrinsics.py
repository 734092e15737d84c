"""Users' own intrinsics: what an instruction sequence computes as a stage, and how LLVM is told to do it.

a, b = te.placeholder((8,), name="a"), te.placeholder((8,), name="b")
out = te.compute((8,), lambda i: te.maximum(a[i], b[i]), name="out")
te.intrinsic("max_8", out, [a, b], llvm=TEXT)
...
s[C].tensorize(inner, "max_8")

What `te.intrinsic` gives can be called on slices, for a stage that it computes:

max_8 = te.intrinsic("max_8", out, [a, b], llvm=TEXT)
C = te.compute((n, 8), lambda i: max_8(A[i, 0:8], B[i, 0:8]), name="C")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arith import prove_equal
from tilewright.ir.expr import Expr, Load, Var
from tilewright.ir.loops import Block, Stmt
from tilewright.ir.op_types import readable
from tilewright.ir.reduce import Reduce
from tilewright.ir.rewrite import map_expr, map_stmt, substitute
from tilewright.ir.scopes import Memory, register_memory
from tilewright.native.toolchain import has_assembly
from tilewright.schedule.intrinsics import TensorIntrin, register
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError, VerifyError
from tilewright.te.blocks import create_prim_func, stages_of
from tilewright.te.tensors import ComputeOp, IterVar, OverSlices, Slices, Tensor, new_axis


@dataclass(frozen=True, slots=True, eq=False)
class Intrinsic:
    """A user's intrinsic: its name, and the stage that defines its meaning. Call it with slices of tensors in the order
    of its inputs; a scalar takes an element."""

    name: str
    op: ComputeOp
    inputs: tuple[Tensor, ...]
    reset: bool

    def __call__(self, *operands: Slices | Tensor | Expr, reduce_axis: IterVar | Sequence[IterVar] = ()) -> OverSlices:
        """The body of a stage whose last axes are the intrinsic's, for `te.compute` with a function of the others.

        Args:
            operands: a part of a tensor for each input (`A[i, 0:16]`), of its shape.
            reduce_axis: over which the intrinsic's own sum is continued.

        Raises ExpressionError for parts that do not fit.
        """
        outer = (reduce_axis,) if isinstance(reduce_axis, IterVar) else tuple(reduce_axis)
        (body,) = self.op.bodies
        if outer and (self.reset or not isinstance(body, Reduce)):
            what = f"intrinsic {self.name!r} is no sum that another could be continued by"
            raise ExpressionError(what, expected="no reduce_axis")
        if len(operands) != len(self.inputs):
            what = f"intrinsic {self.name!r} takes a part of a tensor for each input"
            raise ExpressionError(what, expected=len(self.inputs), got=len(operands))
        values: dict[Var, Expr] = {}
        parts: dict[Any, Callable[[tuple[Expr, ...]], Expr]] = {
            t: self._part(t, item, values) for t, item in zip(self.inputs, operands, strict=True)
        }
        axis = tuple(new_axis(a.name, substitute(a.extent, values)) for a in self.op.axis)
        values |= {old.var: new.var for old, new in zip(self.op.axis, axis, strict=True)}
        own = [new_axis(a.name, substitute(a.extent, values), "reduce") for a in self.op.reduce_axis]
        values |= {old.var: new.var for old, new in zip(self.op.reduce_axis, own, strict=True)}

        def on(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer in parts:
                return parts[e.buffer](e.indices)
            return values.get(e) if isinstance(e, Var) else None

        if not isinstance(body, Reduce):
            return OverSlices(self.name, axis, map_expr(body, on))
        axes = tuple((a.var, a.extent) for a in (*outer, *own))
        numbers = tuple(map_expr(v, on) for v in body.values)
        return OverSlices(
            self.name, axis, Reduce(body.reducer, numbers, axes, map_expr(body.condition, on), body.index)
        )

    def _part(self, wanted: Tensor, operand: Any, values: dict[Var, Expr]) -> Callable[[tuple[Expr, ...]], Expr]:
        """A function from indices of the input `wanted` to elements of the slice `operand` that a call passes for it.
        The extents of the input's symbols are added to `values`."""
        where = f"input {wanted.name!r} of intrinsic {self.name!r}"
        if not wanted.shape and isinstance(operand, Expr):
            return lambda indices: operand
        if isinstance(operand, Tensor):
            operand = operand[tuple(slice(None) for _ in operand.shape)] if operand.shape else Slices(operand, ())
        extents = [n for _, n in operand.ranges if n is not None] if isinstance(operand, Slices) else None
        fits = extents is not None and len(extents) == len(wanted.shape) and operand.tensor.dtype is wanted.dtype
        if extents is not None and fits:
            for d, n in zip(wanted.shape, extents, strict=True):
                said = values.setdefault(d, n) if isinstance(d, Var) else d
                fits = fits and prove_equal(said, n)
        if not fits:
            got = operand.tensor.dtype if isinstance(operand, Slices) else type(operand).__name__
            shape = "" if extents is None else f"[{', '.join(map(readable, extents))}]"
            raise ExpressionError(f"{where} is no such part of a tensor", expected=wanted, got=f"{got}{shape}")

        def element(indices: tuple[Expr, ...]) -> Expr:
            left = iter([substitute(i, values) for i in indices])
            return Load(operand.tensor, tuple(b if n is None else b + next(left) for b, n in operand.ranges))

        return element


def intrinsic(
    name: str,
    output: Tensor,
    inputs: Sequence[Tensor],
    *,
    llvm: str | None = None,
    features: Sequence[str] = (),
    dense: bool = False,
    c: str | None = None,
    reset: bool = False,
) -> Intrinsic:
    """Make an intrinsic known to `tensorize` by its name.

    Args:
        name: of the intrinsic.
        output: one stage over the inputs, which is its meaning; a sum adds to what is there already. Extents are
            numbers of at least 2, or symbols that an input has as a dimension.
        inputs: placeholders; in memory they may be parts of larger arrays, rows apart by any distance. One without
            dimensions is a scalar.
        llvm: definitions of LLVM text with a function `@tw.intrin.<name>` that takes, for each of the inputs and then
            the output, its address and the strides in elements (i64) of all dimensions but the last, along which
            elements follow one another, and then the symbols (i64), by first appearance. Without it, and on machines
            without the features, the loops are written out.
        features: what a target must have for the text.
        dense: only dense operands fit.
        c: definitions of C with a function `tw_intrin_<name>` that takes the same, strides and symbols as int64_t:
            what `source("c")` calls. Without it, the loops are written out there.
        reset: whether a reduction is the intrinsic's own, from its identity to its end: what is there is overwritten.
            A stage is tensorized with its init then, and all of its reduction.

    Returns an `Intrinsic`, which can be called on slices. Raises ExpressionError if `output` is not a single stage, or
    if a text lacks its function or contains assembly; ExpressionError or ScheduleError if the stage cannot be an
    intrinsic's, or if another intrinsic has this name.
    """
    if not isinstance(output, Tensor) or output.op is None:
        raise ExpressionError(f"intrinsic {name!r}: the output is no stage", expected="what te.compute gave")
    if len(stages_of([output])) != 1:
        raise ExpressionError(f"intrinsic {name!r} must be one stage", where=output.op.line)
    if llvm is not None and f"@tw.intrin.{name}(" not in llvm:
        raise ExpressionError(
            f"intrinsic {name!r}: the text defines no such function", expected=f"@tw.intrin.{name}(...)"
        )
    if llvm is not None and has_assembly(llvm):
        raise ExpressionError(f"intrinsic {name!r}: the text has instructions of a machine as text (asm)")
    if c is not None and f"tw_intrin_{name}(" not in c:
        raise ExpressionError(
            f"intrinsic {name!r}: the C text defines no such function", expected=f"tw_intrin_{name}(...)"
        )
    func = create_prim_func([*inputs, output], name)
    meaning = func if reset else func.with_body(map_stmt(func.body, _without_init))
    register(TensorIntrin(name, meaning, llvm, tuple(features), dense, c))
    assert isinstance(output.op, ComputeOp)
    return Intrinsic(name, output.op, tuple(inputs), reset)


def scope(name: str, capacity: int) -> str:
    """Describe a memory of an accelerator: its name becomes a scope for `set_scope`, `cache_read` and `cache_write`.

    Args:
        name: of the scope, as programs print it.
        capacity: bytes that all buffers of the scope share; a program that needs more is refused when it is lowered.

    Returns the name. Raises ExpressionError for a name that is no identifier, or that another memory has, and for a
    capacity that is no positive number. On the interpreter and in C such a buffer is an array like any other.
    """
    if not isinstance(name, str) or not name.isidentifier() or isinstance(capacity, bool) or not capacity > 0:
        raise ExpressionError("no memory", expected="a name and a number of bytes", got=(name, capacity))
    try:
        register_memory(Memory(name, capacity))
    except VerifyError as error:
        raise ExpressionError(error.headline()) from error
    return name


def _without_init(s: Stmt) -> Stmt | None:
    return replace(s, init=None) if isinstance(s, Block) else None
