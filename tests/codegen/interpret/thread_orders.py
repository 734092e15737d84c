"""Kernels run thread by thread: each goes on to its next barrier before another one does, in an order that is chosen.

An independent reference for the grid interpreter: a schedule without races gives the same results in every order. It
knows blocks of threads and their barriers, not those of warps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.codegen.cuda.private import extents_of_threads, of_threads
from tilewright.codegen.interpret.memory import Array
from tilewright.codegen.interpret.scalars import caster, function, value_of
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var
from tilewright.ir.loops import Allocate, Barrier, For, If, Let, PrimFunc, Seq, Stmt, Store
from tilewright.ir.rewrite import walk

Names = dict[Var, Any]


class Block:
    """One block's memory, beside that of the parameters."""

    def __init__(self, place: dict[str, int], memory: dict[Buffer, Array]) -> None:
        self.place = place
        self.memory = memory
        self.shared: dict[Buffer, Array] = {}


class Thread:
    """One thread: its indices, its own buffers, and what its variables are."""

    def __init__(self, block: Block, index: dict[str, int]) -> None:
        self.block = block
        self.index = index
        self.local: dict[Buffer, Array] = {}
        self.names: Names = {}

    def memory(self, b: Buffer) -> Array:
        known = [m[b] for m in (self.local, self.block.shared, self.block.memory) if b in m]
        return known[0]

    def value(self, e: Expr) -> Any:
        match e:
            case Const():
                return value_of(e.dtype)(e.value)
            case Var():
                return self.names[e]
            case Load(buffer, indices):
                return value_of(buffer.dtype)(self.memory(buffer)[self.at(indices)])
            case Op("select", (condition, then, orelse)):
                return self.value(then if self.value(condition) else orelse)
            case Op("and", (left, right)):
                return self.value(left) and self.value(right)
            case Op("or", (left, right)):
                return self.value(left) or self.value(right)
            case Op("cast", (only,)):
                return caster(only.dtype, e.dtype)(self.value(only))
            case Op(name, args):
                return function(name, args[0].dtype)(*map(self.value, args))
        raise AssertionError(e)

    def at(self, indices: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(int(self.value(i)) for i in indices)

    def run(self, s: Stmt) -> Iterator[None]:
        """Yields at barriers."""
        match s:
            case Seq(stmts):
                for child in stmts:
                    yield from self.run(child)
            case Store(buffer, indices, value):
                self.memory(buffer)[self.at(indices)] = self.value(value)
            case For() if of_threads(s) or (s.thread or "").startswith("blockIdx"):
                assert s.thread is not None
                mine = {**self.block.place, **self.index}[s.thread]
                if mine < self.value(s.extent):
                    self.names[s.var] = mine
                    yield from self.run(s.body)
            case For():
                for i in range(self.value(s.extent)):
                    self.names[s.var] = i
                    yield from self.run(s.body)
            case If():
                child = s.then if self.value(s.condition) else s.orelse
                if child is not None:
                    yield from self.run(child)
            case Let():
                self.names[s.var] = self.value(s.value)
                yield from self.run(s.body)
            case Allocate():
                shape = self.at(s.buffer.shape)
                fresh = np.full(shape, np.nan, s.buffer.dtype.numpy)
                if s.buffer.scope == "shared":
                    self.block.shared.setdefault(s.buffer, fresh)
                else:
                    self.local[s.buffer] = fresh
                yield from self.run(s.body)
            case Barrier():
                yield
            case _:
                raise AssertionError(s)


def run_in_order(func: PrimFunc, arrays: Sequence[Array], seed: int) -> None:
    """Run a flat function of known sizes in place, its blocks and threads in an order that a seed chooses: 0 is theirs,
    1 the reverse."""
    memory = dict(zip(func.params, arrays, strict=True))
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    for nest in nests:
        threads = extents_of_threads(func.with_body(nest))
        blocks = {
            s.thread: int(str(s.extent))
            for s in walk(nest)
            if isinstance(s, For) and s.thread is not None and s.thread.startswith("blockIdx")
        }
        for place in _ordered(_places(blocks), seed):
            block = Block(place, memory)
            left = [Thread(block, index).run(nest) for index in _places(threads)]
            while left:
                left = [t for t in _ordered(left, seed) if next(t, True) is None]


def _places(extents: dict[str, int]) -> list[dict[str, int]]:
    names = list(extents)
    return [dict(zip(names, map(int, i), strict=True)) for i in np.ndindex(*extents.values())]


def _ordered(things: list[Any], seed: int) -> list[Any]:
    if seed < 2:
        return things[::-1] if seed else things
    return random.Random(seed).sample(things, len(things))
