"""The access patterns of a reduction: the stride of each load for each iterator, and how much of a buffer a part of the
iterations reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from math import lcm, prod

from tilewright.arith import linear
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, as_int
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import loads, variables, walk
from tilewright.plans.framework.analysis import Stage
from tilewright.plans.framework.cost import number
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Access:
    """A load. `moves` has for each dimension of the buffer the growth of the index with each iterator; None if that is
    not constant, as for an index from data. An iterator that is divided into blocks, `i // 32` and `i % 32`, moves the
    first index by 1/32 and the second by 1, and `blocks` has the size."""

    load: Load
    moves: tuple[Mapping[Var, Fraction] | None, ...]
    mentioned: frozenset[Var]
    blocks: Mapping[Var, int] = field(default_factory=dict)
    _spans: tuple[_Span, ...] = field(init=False, repr=False, compare=False)
    _strides: Mapping[Var, int | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        dimensions = zip(self.load.indices, self.moves, self.buffer.shape, strict=True)
        object.__setattr__(self, "_spans", tuple(_span(*dimension) for dimension in dimensions))
        object.__setattr__(self, "_strides", {v: self._stride(v) for v in self.mentioned})

    @property
    def buffer(self) -> Buffer:
        return self.load.buffer

    @property
    def itemsize(self) -> int:
        return self.buffer.dtype.itemsize

    def uses(self, var: Var) -> bool:
        """Whether the load's address depends on `var`."""
        return var in self.mentioned

    def stride(self, var: Var) -> int | None:
        """The stride of the load in elements when `var` grows by one (within a block, if `var` is divided into blocks);
        None if it is not constant."""
        return self._strides.get(var, 0)

    def _stride(self, var: Var) -> int | None:
        total, size = 0, 1
        for k in reversed(range(len(self.moves))):
            move = self.moves[k]
            if move is None:
                if var in variables(self.load.indices[k]):
                    return None
            else:
                by = move.get(var, Fraction(0))
                total += int(by) * size if by.denominator == 1 else 0
            size *= number(self.buffer.shape[k])
        return total

    def permuted(self, order: Sequence[int]) -> Access:
        """The access to this element in a copy of the buffer with its dimensions in this order."""
        buffer = replace(self.buffer, shape=tuple(self.buffer.shape[k] for k in order))
        load = Load(buffer, tuple(self.load.indices[k] for k in order))
        return Access(load, tuple(self.moves[k] for k in order), self.mentioned, self.blocks)

    def touched(self, extents: Mapping[Var, int], line: int) -> float:
        """The bytes of the buffer, in whole cache lines, that iterations of these extents read. An index without
        constant strides is assumed to take a different value for each combination of its iterators."""
        size = self.buffer.dtype.itemsize
        values = 1
        for span in self._spans[:-1]:
            values *= span.values(extents)
        for span in self._spans[-1:]:
            return values * float(-(-span.values(extents) * size // line) * line)
        return float(size)


@dataclass(frozen=True, slots=True)
class _Span:
    """The number of values that an index takes, at most `size`. Each iterator moves it by a number of
    `denominator`-ths; for an index without constant strides, `uneven` are the iterators that it depends on.
    Precomputed, as estimates need it thousands of times."""

    size: int
    steps: tuple[tuple[Var, int], ...]
    denominator: int
    uneven: tuple[Var, ...]

    def values(self, extents: Mapping[Var, int]) -> int:
        if self.uneven:
            return min(self.size, prod(extents.get(v, 1) for v in self.uneven))
        # Whole blocks: tiles begin where one does.
        parts = sum([by * (extents[v] - 1) for v, by in self.steps if v in extents])
        return min(self.size, 1 + parts // self.denominator)


def _span(index: Expr, move: Mapping[Var, Fraction] | None, size: Expr) -> _Span:
    if move is None:
        return _Span(number(size), (), 1, tuple(variables(index)))
    whole = lcm(*(by.denominator for by in move.values()))
    steps = tuple((v, int(abs(by) * whole)) for v, by in move.items() if by)
    return _Span(number(size), steps, whole, ())


def accesses(stage: Stage) -> tuple[Access, ...]:
    """The distinct loads of a reduction's element, without that of its accumulator."""
    result: dict[Load, Access] = {}
    for stmt in walk(stage.block.body):
        if isinstance(stmt, Store):
            for load in loads(stmt.value):
                if load.buffer not in stage.writes:
                    result[load] = _access(load, stage)
    return tuple(result.values())


def _access(load: Load, stage: Stage) -> Access:
    iters = [it.var for it in stage.block.iters]
    used = frozenset(v for v in iters for i in load.indices if v in variables(i))
    parts = [_blocked(i, iters) for i in load.indices]
    sizes = {part[1]: part[2] for part in parts if part is not None}
    # Division and remainder belong together: only both in one load are a place in blocks.
    whole = {v: c for v, c in sizes.items() if {p[0] for p in parts if p and p[1:] == (v, c)} == {"floordiv", "mod"}}
    moves = [
        {p[1]: Fraction(1, p[2]) if p[0] == "floordiv" else Fraction(1)} if p and p[1] in whole else _moves(i, iters)
        for p, i in zip(parts, load.indices, strict=True)
    ]
    return Access(load, tuple(moves), used, whole)


def _blocked(index: Expr, iters: list[Var]) -> tuple[str, Var, int] | None:
    """(operation, iterator, size of a block) of an index `i // size` or `i % size`; None for other indices."""
    if not isinstance(index, Op) or index.name not in ("floordiv", "mod"):
        return None
    var, size = index.args[0], as_int(index.args[1])
    return (index.name, var, size) if isinstance(var, Var) and var in iters and size else None


def _moves(index: Expr, iters: list[Var]) -> Mapping[Var, Fraction] | None:
    """By how much each iterator moves an index; None if some iterator's stride is not constant."""
    if loads(index):
        return None
    form = linear(index)
    if any(atom not in iters and any(v in variables(atom) for v in iters) for atom, _ in form.terms):
        return None
    return {v: Fraction(form.coefficient(v)) for v in iters if form.coefficient(v)}


__all__ = ["Access", "accesses"]
