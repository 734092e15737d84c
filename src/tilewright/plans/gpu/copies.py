"""Copies of a factor's tile to shared memory by the threads of a block: 16 bytes at once if the elements are
contiguous, asynchronously if there are several stages; zeros outside of the factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, gcd
from typing import Protocol

from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, all_of, as_int, const, is_const, select
from tilewright.ir.loops import For, If, Intrinsic, Let, Region, Stmt, Store
from tilewright.plans.gpu.product_tiles import WARP, Moving, loaded
from tilewright.schedule.mma_intrinsics import COPY_ASYNC, COPY_ONE_ASYNC
from tilewright.support.classes import dataclass

UNROLLED = 4
"""The number of copies of a thread that are unrolled."""


class Place(Protocol):
    """The layout in shared memory of a factor's tiles, one for each stage of the pipeline."""

    @property
    def buffer(self) -> Buffer:
        """The shared memory with the tiles of all stages."""
        ...

    def place(self, stage: Expr, line: Expr, k: Expr) -> tuple[Expr, ...]:
        """The indices in `buffer` of the element at line `line` and depth `k` of a stage's tile."""
        ...


@dataclass(frozen=True, slots=True)
class Side:
    """One factor of a product, as its tiles are copied to shared memory.

    Args:
        value: maps (line and depth, in units of a copy; number within a copy) to the element.
        limit, depth: the numbers of lines and of elements of depth in the factor.
        first: the first line of the block's tile.
        count, deep: the lines and the depth of a tile.
        moving: how it is copied to shared memory.
        shared: the layout of its tiles.
        deeper: whether elements that are copied one by one are contiguous along the depth.
    """

    value: Callable[[Expr, Expr, Expr], Expr]
    limit: Expr
    depth: Expr
    first: Expr
    count: int
    deep: int
    moving: Moving
    shared: Place
    deeper: bool = True


@dataclass(frozen=True, slots=True)
class Copier:
    """Builds copies: `new` creates variables, `by_threads` the loops over `threads` threads."""

    new: Callable[[str], Var]
    by_threads: Callable[[Callable[[Expr, Expr], Stmt]], Stmt]
    threads: int
    stages: int

    def copied(self, side: Side, whole: Expr, stage: Expr) -> Stmt:
        """Loops in which all threads of a block copy step number `whole` of the depth into the tile `stage`. Eight
        neighbouring threads copy the eight lines of a core matrix or, element by element, adjacent elements."""
        total = side.count * side.deep // side.moving.width
        rounds = max(1, ceil(total / self.threads))

        def bring(warp: Expr, lane: Expr) -> Stmt:
            def one(q: Expr) -> Stmt:
                e, m, d = self.new("e"), self.new("line"), self.new("d")
                line, deep, lines, depths = self.assigned(side, e)
                stored = self.moved(side, (m, d), (line, deep), stage)
                stored = Let(m, side.first // lines + line, Let(d, whole * (side.deep // depths) + deep, stored))
                if total % self.threads:
                    stored = If(e < total, stored)
                return Let(e, q * self.threads + warp * WARP + lane, stored)

            return self.rounds(rounds, one)

        return self.by_threads(bring)

    def rounds(self, count: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """A loop of `count` rounds around `body(round)`, partly unrolled: full unrolling would take registers for
        addresses."""
        each = gcd(count, UNROLLED)
        if each == count:
            return self.unrolled("q", count, body) if count > 1 else body(const(0))
        turn = self.new("turn")
        return For(turn, const(count // each), self.unrolled("q", each, lambda q: body(turn * each + q)))

    def unrolled(self, name: str, extent: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """An unrolled loop of `extent` iterations around `body(variable)`."""
        var = self.new(name)
        return For(var, const(extent), body(var), "unrolled")

    def assigned(self, side: Side, e: Expr) -> tuple[Expr, Expr, int, int]:
        """The place in the tile that copy number `e` fills, as (line, depth, lines per unit, elements of depth per
        unit); line and depth are counted in these units."""
        moving, depth = side.moving, side.deep
        width = moving.width
        if moving.across:
            groups = side.count // width
            return e // 8 % groups, e // (8 * groups) * 8 + e % 8, width, 1
        if width > 1:
            groups = depth // width
            return e // (8 * groups) * 8 + e % 8, e // 8 % groups, 1, width
        if side.deeper:
            return e // depth, e % depth, 1, 1
        return e % side.count, e // side.count, 1, 1

    def moved(self, side: Side, source: tuple[Var, Var], target: tuple[Expr, Expr], stage: Expr) -> Stmt:
        """The statement of one copy into the tile `stage`, at `target`, from `source` of the factor, both (line, depth)
        in units of a copy; zeros are stored where `source` is outside of the factor."""
        width, across = side.moving.width, side.moving.across
        zero, buffer = const(0, side.shared.buffer.dtype), side.shared.buffer
        line, deep = (target[0] * width, target[1]) if across else (target[0], target[1] * width)
        place = side.shared.place(stage, line, deep)
        if width == 1:
            return self.moved_one(side, source, place, all_of(self.within(side, *source)))
        condition, read = _condition_of(side.value(*source, const(0)))
        inside = all_of([*self.within(side, *source), condition])
        first = place[-1] if across and width < SIZE else const(0)
        v = self.new("v")
        cleared = For(v, const(width), Store(buffer, (*place[:-1], first + v), zero), "vectorized")
        if self.stages > 1:
            return _under(inside, self.moved_async(read, place, first, side, cleared), cleared)
        u = self.new("v")
        _, value = _condition_of(side.value(*source, u))
        stored = For(u, const(width), Store(buffer, (*place[:-1], first + u), value), "vectorized")
        return _under(inside, stored, cleared)

    def moved_one(self, side: Side, source: tuple[Var, Var], place: tuple[Expr, ...], inside: Expr) -> Stmt:
        """The statement that copies the element at `source` (line, depth) of the factor `side` to `place`, or zero
        where `inside` is false; asynchronously if that is possible."""
        buffer = side.shared.buffer
        value, zero = side.value(*source, const(0)), const(0, buffer.dtype)
        pair = loaded(value) if self.stages > 1 and side.moving.under_way else None
        if pair is None:
            return Store(buffer, place, select(inside, value, zero))
        condition, read = pair
        one = const(1)
        to, from_ = (Region(b, tuple((i, one) for i in at)) for b, at in ((buffer, place), (read.buffer, read.indices)))
        copy = Intrinsic(COPY_ONE_ASYNC[buffer.dtype].name, (to,), (from_,))
        return _under(all_of([inside, condition]), copy, Store(buffer, place, zero))

    def moved_async(self, read: Expr, place: tuple[Expr, ...], first: Expr, side: Side, cleared: Stmt) -> Stmt:
        """The asynchronous copy of 16 bytes of the factor `side`, beginning with the load `read`, to `place`. A select
        of several arrays becomes branches, one copy in each. `first` takes the place of the last index in `place`;
        `cleared` is the statement for what is not copied."""
        if isinstance(read, Op):
            assert read.name == "select", read
            condition, then, otherwise = read.args
            return If(
                condition,
                self.moved_async(then, place, first, side, cleared),
                self.moved_async(otherwise, place, first, side, cleared),
            )
        assert isinstance(read, Load)
        one, width = const(1), const(side.moving.width)
        to, from_ = (
            Region(b, (*((i, one) for i in at[:-1]), (at[-1], width)))
            for b, at in ((side.shared.buffer, (*place[:-1], first)), (read.buffer, read.indices))
        )
        return Intrinsic(COPY_ASYNC[side.shared.buffer.dtype].name, (to,), (from_,))

    def within(self, side: Side, line: Expr, deep: Expr) -> Iterator[Expr]:
        """The conditions under which (`line`, `deep`), in units of a copy, is inside of the factor, without those that
        always hold."""
        width, across = side.moving.width, side.moving.across
        known, depth = as_int(side.limit), as_int(side.depth)
        if known is None or known % side.count:
            yield (line * width if across else line) < side.limit
        if depth is None or depth % side.deep:
            yield (deep if across else deep * width) < side.depth


SIZE = 8
"""The number of lines in a core matrix."""


def _condition_of(value: Expr) -> tuple[Expr, Expr]:
    """(condition, value) of `select(condition, value, 0)`; (true, value) of other values."""
    return loaded(value) or (const(True), value)


def _under(condition: Expr, then: Stmt, otherwise: Stmt) -> Stmt:
    return then if is_const(condition, True) else If(condition, then, otherwise)


__all__ = ["Copier", "Place", "Side"]
