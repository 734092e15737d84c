"""The grid interpreter: random schedules compute what NumPy does, seeded races are all found, and none where there is
none. `python -m tests.codegen.interpret.test_grid N` tries N random schedules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.interpret.gpu_schedules import Array, Case, X, Y, case
from tests.codegen.interpret.thread_orders import run_in_order
from tilewright import te
from tilewright.codegen.interpret.grid import interpret_grid
from tilewright.codegen.interpret.interpreter import InterpretError, interpret
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.loops import Allocate, Barrier, For, PrimFunc, Seq, Stmt
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import replace_buffers, replace_stmt, walk, with_children
from tilewright.schedule.intrinsics import TensorIntrin, describe, register
from tilewright.schedule.tile_intrinsics import STORE, ZERO
from tilewright.support.errors import CallError

SAMPLED = 24


def outputs(func: PrimFunc, c: Case, run: Callable[[PrimFunc, list[Array]], None]) -> list[Array]:
    results = [np.full_like(x, np.nan) for x in c.outputs]
    run(func, [*[x.copy() for x in c.inputs], *results])
    return results


def without_barrier(func: PrimFunc, which: int) -> PrimFunc:
    """The function less one of its barriers."""
    seen = iter(range(1 << 20))

    def go(s: Stmt) -> Stmt:
        if isinstance(s, Barrier):
            return Seq(()) if next(seen) == which else s
        return with_children(s, tuple(map(go, s.children))) if s.children else s

    return func.with_body(go(func.body))


def barriers(func: PrimFunc) -> int:
    return sum(isinstance(s, Barrier) for s in walk(func.body))


def check(seed: int) -> Iterator[bool]:
    """One random schedule, as threads and in order; yields for each of its barriers whether its loss is a race."""
    c = case(seed)
    func = c.flat()
    for run in (interpret_grid, interpret):
        for got, wanted in zip(outputs(func, c, run), c.outputs, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=f"seed {seed}")
    for k in range(barriers(func)):
        try:
            outputs(without_barrier(func, k), c, interpret_grid)
        except InterpretError as error:
            assert "race" in str(error)
            yield True
        else:
            yield False


@pytest.mark.parametrize("seed", range(SAMPLED))
def test_random_schedules(seed: int) -> None:
    list(check(seed))


def raced_in_some_order(func: PrimFunc, c: Case) -> bool:
    """Whether threads give other results than NumPy where they take turns in one of three orders."""
    for order in range(3):
        results = outputs(func, c, lambda f, arrays, order=order: run_in_order(f, arrays, order))  # type: ignore[misc]
        if not all(map(np.array_equal, results, c.outputs)):
            return True
    return False


def compare_with_orders(seed: int) -> None:
    """A random schedule without barriers of warps: it gives one result in all orders, and so does each that lost a
    barrier without a race being found."""
    c = case(seed)
    func = c.flat()
    assert not raced_in_some_order(func, c)
    for k in range(barriers(func)):
        mutant = without_barrier(func, k)
        try:
            outputs(mutant, c, interpret_grid)
        except InterpretError:
            continue
        assert not raced_in_some_order(mutant, c), f"seed {seed}: the race without barrier {k} is not found"


@pytest.mark.parametrize("seed", [2, 3, 4, 6, 12, 18, 21, 22])
def test_every_order_of_threads(seed: int) -> None:
    compare_with_orders(seed)


def exact() -> Case:
    """A product whose sizes are multiples of its tiles, so that each element and each thread counts."""
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    copy = s[c].cache_write("local")
    for loop, index in zip(copy.tile(*copy.loops, 4, 4), ("blockIdx.y", "blockIdx.x", Y, X), strict=True):
        copy.bind(loop, index)
    stage = s[c]
    stage.compute_at(copy, copy.loops[-1])
    outer, _ = stage.split(stage.loops[-1], 4)
    for t in (a, b):
        part = stage.cache_read(t, "shared")
        part.compute_at(stage, outer)
        part.bind(part.loops[-2], Y)
        part.bind(part.loops[-1], X)
    x, y = np.arange(64, dtype=np.float32).reshape(8, 8), np.ones((8, 8), np.float32)
    return Case(s, [a, b, c], [x, y], [x @ y])


def changed(func: PrimFunc) -> Iterator[tuple[str, PrimFunc]]:
    """The function with a loop of threads of one iteration less or more, or with a smaller buffer; and what changed."""
    for s in walk(func.body):
        if isinstance(s, For) and s.thread is not None and s.thread.startswith("threadIdx"):
            for n in (3, 5):
                yield f"{s.var} in 0..{n}", func.with_body(replace_stmt(func.body, s, replace(s, extent=const(n))))
        if isinstance(s, Allocate) and s.buffer.scope == "shared":
            for d in range(2):
                shape = tuple(const(3) if k == d else n for k, n in enumerate(s.buffer.shape))
                smaller = replace(s.buffer, shape=shape)
                body = Allocate(smaller, replace_buffers(s.body, {s.buffer: smaller}))
                yield f"{s.buffer.name}{shape}", func.with_body(replace_stmt(func.body, s, body))


def test_smaller_regions_and_other_numbers_of_threads_are_noticed() -> None:
    c = exact()
    func = c.flat()
    np.testing.assert_array_equal(outputs(func, c, interpret_grid)[0], c.outputs[0])
    missed = []
    for what, mutant in changed(func):
        try:
            (got,) = outputs(mutant, c, interpret_grid)
        except InterpretError:
            continue
        if np.array_equal(got, c.outputs[0]):
            missed.append(what)
    assert not missed


def kernel(body: str, inputs: str = "A: f32[8]") -> PrimFunc:
    return parse_func(f"func @k({inputs}, B: f32[8]) {{ {body} }}")


def run(func: PrimFunc) -> Array:
    arrays = [np.arange(8, dtype=np.float32) for _ in func.params]
    interpret_grid(func, arrays)
    return arrays[-1]


SHIFT = """alloc S: f32[8] in shared
for t in 0..8 thread(threadIdx.x) { S[t] = A[t] }
%s
for u in 0..8 thread(threadIdx.x) { B[u] = S[(u + 1) %% 8] }"""


def test_a_barrier_makes_what_others_wrote_readable() -> None:
    assert list(run(kernel(SHIFT % "barrier"))) == [1, 2, 3, 4, 5, 6, 7, 0]
    with pytest.raises(InterpretError) as caught:
        run(kernel(SHIFT % ""))
    assert str(caught.value) == (
        "a race on S[1]: thread (1, 0, 0) of block (0, 0, 0) writes it in `S[t] = A[t]` and thread (0, 0, 0) of block "
        "(0, 0, 0) reads it in `B[u] = S[(u + 1) % 8]`, with no barrier between"
    )


RACES = {
    "two write": "for t in 0..8 thread(threadIdx.x) { B[t // 2] = A[t] }",
    "a step in place": "for t in 0..7 thread(threadIdx.x) { B[t] = B[t + 1] }",
    "written after it is read": """for b in 0..1 thread(blockIdx.x) {
          for t in 0..8 thread(threadIdx.x) { B[t] = A[7 - t] }
          for u in 0..8 thread(threadIdx.x) { A[u] = 0.0 } }""",
    "read by several before": """alloc S: f32[1] in shared
        for o in 0..1 thread(threadIdx.x) { S[0] = 1.0 }
        barrier
        for t in 0..8 thread(threadIdx.x) { B[t] = S[0] }
        for q in 0..1 thread(threadIdx.x) { S[0] = 2.0 }""",
    "the loop's next turn": """for t in 0..8 thread(threadIdx.x) {
          for k in 0..2 { alloc S: f32[8] in shared  S[t] = A[t]  barrier  B[t] = S[7 - t] } }""",
    "blocks": """for b in 0..2 thread(blockIdx.x) { for t in 0..4 thread(threadIdx.x) { B[t] = A[b * 4 + t] } }""",
    "blocks, with a barrier between": """for b in 0..2 thread(blockIdx.x) {
          for t in 0..4 thread(threadIdx.x) { B[b * 4 + t] = A[t] }
          barrier
          for u in 0..4 thread(threadIdx.x) { A[u] = B[(b * 4 + u + 4) % 8] } }""",
    "a warp's barrier for a block": """for y in 0..2 thread(threadIdx.y) { for t in 0..4 thread(threadIdx.x) {
          alloc S: f32[8] in shared  S[y * 4 + t] = A[t]  barrier(warp)  B[y * 4 + t] = S[7 - y * 4 - t] } }""",
}


@pytest.mark.parametrize("what", RACES)
def test_races(what: str) -> None:
    with pytest.raises(InterpretError, match="a race on"):
        run(kernel(RACES[what]))


ORDERED = {
    "its own element": """alloc S: f32[8] in shared
        for t in 0..8 thread(threadIdx.x) { S[t] = A[t] }
        for u in 0..8 thread(threadIdx.x) { B[u] = S[u] + S[u] }""",
    "a warp's memory": """for y in 0..2 thread(threadIdx.y) { for t in 0..4 thread(threadIdx.x) {
          alloc S: f32[4] in warp  S[t] = A[y * 4 + t]  barrier(warp)  B[y * 4 + t] = S[3 - t] } }""",
    "only read": """for b in 0..2 thread(blockIdx.x) { for t in 0..4 thread(threadIdx.x) { B[b * 4 + t] = A[0] } }""",
    "kernels one after another": """for t in 0..8 thread(threadIdx.x) { B[t] = A[t] }
        for u in 0..8 thread(blockIdx.x) { A[u] = B[7 - u] }""",
}


@pytest.mark.parametrize("what", ORDERED)
def test_what_is_no_race(what: str) -> None:
    func = kernel(ORDERED[what])
    nests = func.body.stmts if isinstance(func.body, Seq) else (func.body,)
    assert nests
    run(func)


def test_a_barrier_that_only_some_come_to() -> None:
    body = "for t in 0..8 thread(threadIdx.x) { if A[t] < 3.0 { barrier  B[t] = 1.0 } }"
    with pytest.raises(InterpretError, match=r"a barrier where not all threads come: thread \(3, 0, 0\) of block"):
        run(kernel(body))
    body = "for t in 0..8 thread(threadIdx.x) { for k in 0..t { barrier  B[t] = 1.0 } }"
    with pytest.raises(InterpretError, match="a barrier where not all threads come"):
        run(kernel(body))
    whole = (
        "for b in 0..2 thread(blockIdx.x) { for t in 0..4 thread(threadIdx.x) { if b < 1 { barrier  B[t] = 1.0 } } }"
    )
    assert list(run(kernel(whole))) == [1, 1, 1, 1, 4, 5, 6, 7]


def test_loops_of_fewer_and_of_more_threads() -> None:
    body = "for t in 0..8 thread(threadIdx.x) { for u in 0..%d thread(threadIdx.x) { B[u] = 9.0 } }"
    assert list(run(kernel(body % 3))) == [9, 9, 9, 3, 4, 5, 6, 7]
    inner = "for y in 0..2 thread(threadIdx.x) { for u in 0..8 thread(threadIdx.x) { B[u] = 9.0 } }"
    with pytest.raises(InterpretError, match="has 8 iterations where 2 threads come"):
        run(kernel(f"for a in 0..8 thread(threadIdx.x) {{ {inner} }}"))


def test_what_is_refused() -> None:
    with pytest.raises(InterpretError, match="no hardware index"):
        run(kernel("for i in 0..8 { B[i] = A[i] }"))
    with pytest.raises(InterpretError, match=r"index \[8\] outside"):
        run(kernel("for t in 0..8 thread(threadIdx.x) { B[t] = A[t + 1] }"))
    with pytest.raises(CallError, match="wrong shape"):
        interpret_grid(
            kernel("for t in 0..8 thread(threadIdx.x) { B[t] = A[t] }"), [np.zeros(7, "f"), np.zeros(8, "f")]
        )


TILES = """func @square(A: f32[16, 16], D: f32[16, 16]) {
  for b in 0..1 thread(blockIdx.x) {
    for t in 0..%d thread(threadIdx.x) {
      alloc S: f32[16, 16] in shared
      for r in 0..%d { S[r * %d + t // 16, t %% 16] = A[r * %d + t // 16, t %% 16] }
      barrier
      alloc C: f32[16, 16] in tiles
      if t < 64 {
        call tile_zero_f32(C[0 +: 16, 0 +: 16];)
        call square_tiles(C[0 +: 16, 0 +: 16]; S[0 +: 16, 0 +: 16], S[0 +: 16, 0 +: 16])
        call tile_store_f32(D[0 +: 16, 0 +: 16]; C[0 +: 16, 0 +: 16])
      }
    }
  }
}"""


def test_a_warp_multiplies_tiles_as_one() -> None:
    product = describe(
        "square_tiles", {"i": 16, "j": 16, "k": 16}, "k", (f32, f32, f32), {"A": "ik", "B": "kj", "C": "ij"}
    )
    register(TensorIntrin("square_tiles", product))
    assert (ZERO[f32].name, STORE[f32].name) == ("tile_zero_f32", "tile_store_f32")
    func = parse_func(TILES % (32, 8, 2, 2))
    x, y = np.arange(256, dtype=np.float32).reshape(16, 16) % 7, np.full((16, 16), np.nan, np.float32)
    interpret_grid(func, [x, y])
    np.testing.assert_array_equal(y, x @ x)
    with pytest.raises(InterpretError, match=r"a race on S\[.*the warp of thread \(0, 0, 0\) of block"):
        interpret_grid(without_barrier(func, 0), [x, y])
    with pytest.raises(InterpretError, match="a race on D"):  # two warps store the same tile
        interpret_grid(parse_func(TILES % (64, 4, 4, 4)), [x, y])
    with pytest.raises(InterpretError, match="blocks are not whole warps"):
        interpret_grid(parse_func(TILES % (16, 16, 1, 1)), [x, y])
    with pytest.raises(InterpretError, match="a warp's instruction where not all of it comes"):
        interpret_grid(parse_func((TILES % (32, 8, 2, 2)).replace("t < 64", "t < 31")), [x, y])


def test_threads_that_do_not_come_touch_nothing() -> None:
    body = "for t in 0..8 thread(threadIdx.x) { B[t] = select(t < 4, A[t + 4], select(t == 5, A[t * 0], 7.0)) }"
    assert list(run(kernel(body))) == [4, 5, 6, 7, 7, 0, 7, 7]


if __name__ == "__main__":
    dropped = [raced for seed in range(int(sys.argv[1])) for raced in check(seed)]
    print(f"{sys.argv[1]} schedules = NumPy; {sum(dropped)} of {len(dropped)} barriers left out are races")
    ordered = [seed for seed in range(int(sys.argv[1])) if seed % 8 in (2, 3, 4, 6)]
    for seed in ordered:
        compare_with_orders(seed)
    print(f"{len(ordered)} of them in three orders of threads: no race that shows is missed")
