"""Users' own intrinsics: what an instruction sequence computes as a stage, and how LLVM is told to do it.

a, b = te.placeholder((8,), name="a"), te.placeholder((8,), name="b")
out = te.compute((8,), lambda i: te.maximum(a[i], b[i]), name="out")
te.intrinsic("max_8", out, [a, b], llvm=TEXT)
...
s[C].tensorize(inner, "max_8")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.loops import Block, Stmt
from tilewright.ir.rewrite import map_stmt
from tilewright.ir.scopes import Memory, register_memory
from tilewright.schedule.intrinsics import TensorIntrin, register
from tilewright.support.errors import ExpressionError, VerifyError
from tilewright.te.blocks import create_prim_func, stages_of
from tilewright.te.tensors import Tensor


def intrinsic(
    name: str,
    output: Tensor,
    inputs: Sequence[Tensor],
    *,
    llvm: str | None = None,
    features: Sequence[str] = (),
    dense: bool = False,
    c: str | None = None,
) -> TensorIntrin:
    """Make an intrinsic known to `tensorize` by its name.

    Args:
        name: of the intrinsic.
        output: one stage over the inputs, which is its meaning; a sum adds to what is there already. Extents are
            numbers of at least 2.
        inputs: placeholders; in memory they may be parts of larger arrays, rows apart by any distance.
        llvm: definitions of LLVM text with a function `@tw.intrin.<name>` that takes, for each of the inputs and then
            the output, its address and the strides in elements (i64) of all dimensions but the last, along which
            elements follow one another. Without it, and on machines without the features, the loops are written out.
        features: what a target must have for the text.
        dense: only dense operands fit.
        c: definitions of C with a function `tw_intrin_<name>` that takes the same, strides as int64_t: what
            `source("c")` calls. Without it, the loops are written out there.

    Raises ExpressionError or ScheduleError if the stage or the text is no such thing, or another one has the name.
    """
    if not isinstance(output, Tensor) or output.op is None:
        raise ExpressionError(f"intrinsic {name!r}: the output is no stage", expected="what te.compute gave")
    if len(stages_of([output])) != 1:
        raise ExpressionError(f"intrinsic {name!r} must be one stage", where=output.op.line)
    if llvm is not None and f"@tw.intrin.{name}(" not in llvm:
        raise ExpressionError(
            f"intrinsic {name!r}: the text defines no such function", expected=f"@tw.intrin.{name}(...)"
        )
    if c is not None and f"tw_intrin_{name}(" not in c:
        raise ExpressionError(
            f"intrinsic {name!r}: the C text defines no such function", expected=f"tw_intrin_{name}(...)"
        )
    func = create_prim_func([*inputs, output], name)
    meaning = func.with_body(map_stmt(func.body, _without_init))
    return register(TensorIntrin(name, meaning, llvm, tuple(features), dense, c))


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
