"""Replaces an operator's stages by the same stages with other tile sizes.

    block strip(r in 0..9, row in 0..1, ...)          block strip(r in 0..3, row in 0..3, ...)
    ...                                         ->    ...
    block conv(...): y[...] = result[...]             block conv(...): y[...] = result[...]

An operator's tensor expression may compute its result in tiles, inside which work is shared; a plan chooses their size.
The tensor expression for another size has the same stages over the same axes with other extents, so that names stay.
Stages of other operators do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ir.expr import Buffer, Expr, Var
from tilewright.ir.loops import Block, For, PrimFunc, Seq, Stmt, seq
from tilewright.ir.rewrite import map_expr, map_stmt, replace_buffers, walk
from tilewright.plans.framework.analysis import Operator, Structure, analyse
from tilewright.support.errors import ScheduleError
from tilewright.te import Tensor

A = TypeVar("A", bound=Attrs)


def restate(
    structure: Structure, operator: Operator[A], inputs: Sequence[Buffer], expression: Callable[..., Tensor]
) -> PrimFunc:
    """The function with one operator computed by another tensor expression over the same inputs.

    Args:
        inputs: the buffers that the operator reads.
        expression: maps placeholders for these to the tensor that the operator's last stage writes.

    Raises ScheduleError if the expression has other stages, or other axes in one.
    """
    func, old = structure.func, [stage.block for stage in operator.stages]
    (out,) = operator.stages[-1].writes
    places = [te.placeholder(b.shape, b.dtype, b.name) for b in inputs]
    created = te.create_prim_func([*places, expression(*places)], func.name)
    stages = analyse(created).stages
    expected, got = ([_form(block) for block in blocks] for blocks in (old, [stage.block for stage in stages]))
    if expected != got:
        raise ScheduleError("an operator was stated in other stages", expected=str(expected), got=str(got))
    buffers = dict(zip(created.params, (*inputs, out), strict=True))
    grown: dict[Buffer, Buffer] = {}
    for before, stage in zip(operator.stages[:-1], stages[:-1], strict=True):
        (retained,), (stated,) = before.writes, stage.writes
        grown[retained] = buffers[stated] = replace(retained, shape=stated.shape)
    nests = {_block(nest).name: nest for nest in _nests(func)}
    for block, nest in zip(old, _nests(created), strict=True):
        nests[block.name] = _named_as(nests[block.name], replace_buffers(nest, buffers))
    return replace(func, body=seq(nests.values()), buffers=tuple(grown.get(b, b) for b in func.buffers))


def _nests(func: PrimFunc) -> tuple[Stmt, ...]:
    """The loop nests at the top level of a function, one for each block."""
    return func.body.stmts if isinstance(func.body, Seq) else (func.body,)


def _block(nest: Stmt) -> Block:
    return next(s for s in walk(nest) if isinstance(s, Block))


def _form(block: Block) -> tuple[str, ...]:
    """The kinds of a block's iterators, spatial or reduce, in order."""
    return tuple(it.kind for it in block.iters)


def _named_as(old: Stmt, new: Stmt) -> Stmt:
    """The nest `new` with the names and notes of the nest `old`, which has the same form."""
    loops = zip(*([s for s in walk(nest) if isinstance(s, For)] for nest in (new, old)), strict=True)
    iters = zip(_block(new).iters, _block(old).iters, strict=True)
    named = {a.var: a.var.renamed(b.var.name) for pairs in (loops, iters) for a, b in pairs}
    memo: dict[Expr, Expr] = {}

    def on(s: Stmt) -> Stmt | None:
        match s:
            case For():
                return replace(s, var=named[s.var])
            case Block():
                own = tuple(replace(it, var=named[it.var]) for it in s.iters)
                return replace(s, name=_block(old).name, iters=own, notes=_block(old).notes)
        return None

    return map_stmt(new, on, lambda e: map_expr(e, lambda n: named.get(n) if type(n) is Var else None, memo))
