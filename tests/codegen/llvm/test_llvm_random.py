"""Random flat programs: whatever the loops are called, native code does what the interpreter does."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import run
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import boolean, f32, i8, i32, i64
from tilewright.ir.expr import Buffer, Expr, Op, Var, cast, const, equal, minimum, select
from tilewright.ir.loops import Allocate, For, If, Let, PrimFunc, Stmt, Store, seq
from tilewright.targets.target import Target

TYPES = (i32, f32, i64, i8)
KINDS = ("serial", "vectorized", "vectorized", "unrolled", "parallel")
n = Var("n", lo=1)


class Programs:
    """Draws programs. Indices stay inside by `%`, or by a select or If around them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0
        self.loops: list[tuple[Var, Expr]] = []
        self.lets: list[Var] = []
        self.dtype = self.random.choice(TYPES)
        self.symbolic = self.random.random() < 0.4
        self.buffers: list[Buffer] = []
        self.written: list[Buffer] = []

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def shape(self) -> tuple[Expr, ...]:
        rank = self.random.choice((1, 2, 2))
        sizes = [const(self.random.choice((1, 2, 3, 5, 8, 17, 20, 40))) for _ in range(rank)]
        if self.symbolic and self.random.random() < 0.5:
            sizes[self.random.randrange(rank)] = n
        return tuple(sizes)

    def function(self) -> PrimFunc:
        inputs = [Buffer(f"in{k}", self.dtype, self.shape()) for k in range(2)]
        outputs = [Buffer(f"out{k}", self.dtype, self.shape()) for k in range(2)]
        size = Buffer("size", i8, (n,))
        self.buffers, self.written = [*inputs, *outputs], list(outputs)
        body = seq([self.nest(self.random.choice((1, 2, 2, 3))) for _ in range(self.random.choice((1, 2)))])
        return PrimFunc("f", (*inputs, *outputs, size), body)

    def nest(self, depth: int) -> Stmt:
        if depth == 0:
            return seq([self.statement() for _ in range(self.random.choice((1, 1, 2)))])
        r = self.random.random()
        if r < 0.12:
            return self.guarded(depth)
        if r < 0.2 and self.loops:
            return self.allocation(depth)
        extent: Expr = const(self.random.choice((0, 1, 2, 3, 4, 7, 16, 19, 33)) if depth < 3 else 3)
        if self.symbolic and self.random.random() < 0.3:
            extent = n
        var = Var(self.fresh("i"))
        self.loops.append((var, extent))
        body = self.nest(depth - 1)
        self.loops.pop()
        return For(var, extent, body, self.random.choice(KINDS))  # type: ignore[arg-type]

    def guarded(self, depth: int) -> Stmt:
        condition = self.condition()
        if self.random.random() < 0.3:
            var = Var(self.fresh("t"), self.dtype)
            value = self.value(2)
            self.lets.append(var)
            body: Stmt = Let(var, value, self.nest(depth - 1))
            self.lets.pop()
            return body
        orelse = self.nest(depth - 1) if self.random.random() < 0.4 else None
        return If(condition, self.nest(depth - 1), orelse)

    def allocation(self, depth: int) -> Stmt:
        local = Buffer(self.fresh("tmp"), self.dtype, (const(self.random.choice((1, 3, 16))),), "local")
        var = Var(self.fresh("z"))
        clear = For(var, local.shape[0], Store(local, (var,), const(1, self.dtype)), self.random.choice(KINDS[:4]))  # type: ignore[arg-type]
        self.buffers.append(local)
        self.written.append(local)
        body = self.nest(depth - 1)
        self.buffers.remove(local)
        self.written.remove(local)
        return Allocate(local, seq([clear, body]))

    def statement(self) -> Stmt:
        target = self.random.choice(self.written)
        at = tuple(self.index(e) for e in target.shape)
        if self.random.random() < 0.35:
            more = ("add", "min", "max") if self.dtype is f32 else ("add", "mul", "min", "max", "bitxor")
            op = self.random.choice(more)
            value: Expr = Op(op, (target[at], self.value(2)))
        else:
            value = self.value(3)
        return Store(target, at, value)

    def index(self, extent: Expr) -> Expr:
        if not self.loops or self.random.random() < 0.1:
            return const(0)
        fitting = [v for v, e in self.loops if e is extent]
        if fitting and self.random.random() < 0.7:
            return self.random.choice(fitting)
        v = self.random.choice(self.loops)[0]
        choice = self.random.randrange(6)
        w = self.random.choice(self.loops)[0]
        raw = (v, v * 2 + 1, v * 3 + w, v // 2 + w, v % 3 + w, v + w * 4)[choice]
        return raw % extent if self.random.random() < 0.8 else minimum(raw, extent - 1)

    def condition(self) -> Expr:
        if self.loops and self.random.random() < 0.7:
            v = self.random.choice(self.loops)[0]
            other: Expr = const(self.random.choice((0, 1, 3, 7, 18)))
            if self.symbolic and self.random.random() < 0.5:
                other = n
            other = other + self.random.choice(self.loops)[0] * self.random.choice((0, 0, 1, 2))
            name = self.random.choice(("lt", "le", "gt", "ge", "eq", "ne"))
            result: Expr = Op(name, (v, other) if self.random.random() < 0.5 else (other, v))
            if self.random.random() < 0.2:
                result = equal(v % 3, 1)
        else:
            result = self.value(1) > self.value(1)
        if self.random.random() < 0.2:
            result = Op(self.random.choice(("and", "or")), (result, self.condition()))
        return result

    def value(self, depth: int) -> Expr:
        r = self.random.random()
        if depth == 0 or r < 0.3:
            if self.lets and self.random.random() < 0.4:
                return self.random.choice(self.lets)
            if self.loops and self.random.random() < 0.2:
                return cast(self.random.choice(self.loops)[0], self.dtype)
            if self.random.random() < 0.2:
                return const(self.random.choice((0, 1, 2, 3)), self.dtype)
            b = self.random.choice(self.buffers)
            return b[tuple(self.index(e) for e in b.shape)]
        a, b2 = self.value(depth - 1), self.value(depth - 1)
        if r < 0.5:
            return select(self.condition(), self.guarded_load() if self.random.random() < 0.5 else a, b2)
        if r < 0.6:
            return cast(cast(a, self.random.choice((f32, i32, i64, boolean))), self.dtype)
        more = () if self.dtype is f32 else ("mul", "floordiv", "mod")
        return Op(self.random.choice(("add", "sub", "min", "max", *more)), (a, b2))

    def guarded_load(self) -> Expr:
        """A load that is inside only where the select around it says so."""
        b = self.random.choice(self.buffers)
        if not self.loops:
            return self.value(1)
        indices, conditions = [], const(True)
        for extent in b.shape:
            i = self.random.choice(self.loops)[0] - self.random.choice((0, 1, 5))
            indices.append(i)
            conditions = Op("and", (conditions, Op("and", (i >= 0, i < extent))))  # type: ignore[assignment]
        return select(conditions, b[tuple(indices)], const(0, self.dtype))


def arrays(func: PrimFunc, size: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    results = []
    for b in func.params:
        shape = tuple(size if e is n else int(e.value) for e in b.shape)  # type: ignore[attr-defined]
        results.append(rng.integers(-4, 5, shape).astype(b.dtype.numpy))
    return results


def check(seed: int) -> None:
    func = Programs(seed).function()
    for size in (1, 21) if n in func.symbols else (1,):
        got = arrays(func, size, seed)
        want = [a.copy() for a in got]
        interpret(func, want)
        run(func, *got, n=size)
        for b, g, w in zip(func.params, got, want, strict=True):
            if not np.array_equal(g, w, equal_nan=b.dtype.is_float):
                raise AssertionError(f"seed {seed}, n = {size}, {b.name}:\n{func}\n{g}\n{w}")


COUNT = 4000 if os.environ.get("TILEWRIGHT_FUZZ") else 100


@pytest.mark.daily(2)
@pytest.mark.costly(3)
@pytest.mark.parametrize("block", range(10))
def test_native_is_interpreted(block: int) -> None:
    for seed in range(block * COUNT // 10, (block + 1) * COUNT // 10):
        check(seed)


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64"])
def test_narrower_vectors(name: str) -> None:
    target = Target.parse(name)
    if not set(target.features) <= set(Target.host().features):
        pytest.skip(f"this machine cannot run {name}")
    for seed in range(1000, 1010):
        func = Programs(seed).function()
        got = arrays(func, 21, seed)
        want = [a.copy() for a in got]
        interpret(func, want)
        run(func, *got, n=21, target=target)
        assert all(np.array_equal(g, w, equal_nan=True) for g, w in zip(got, want, strict=True)), f"seed {seed}"
