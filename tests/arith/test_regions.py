"""Regions of statements and blocks."""

from __future__ import annotations

from tilewright import te
from tilewright.arith.regions import reads, writes
from tilewright.ir.expr import Var, const
from tilewright.ir.loops import Block, For, PrimFunc, Region, Stmt
from tilewright.ir.rewrite import walk
from tilewright.transform.loops.blocks import lower_blocks


def text(regions: tuple[Region, ...]) -> list[str]:
    return [f"{r.buffer.name}[{', '.join(f'{a}:{n}' for a, n in r.ranges)}]" for r in regions]


def matmul() -> PrimFunc:
    n = te.var("n")
    a, b = te.placeholder((n, 64), name="A"), te.placeholder((64, 32), name="B")
    k = te.reduce_axis(64, "k")
    c = te.compute((n, 32), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    return te.create_prim_func([a, b, c])


def loops(s: Stmt) -> list[For]:
    return [x for x in walk(s) if isinstance(x, For)]


def test_block_over_its_own_iterators() -> None:
    block = next(s for s in walk(matmul().body) if isinstance(s, Block))
    assert text(reads(block)) == ["C[vi:1, vj:1]", "A[vi:1, vk:1]", "B[vk:1, vj:1]"]
    assert text(writes(block)) == ["C[vi:1, vj:1]"]


def test_statement_over_the_loops_around_it() -> None:
    j_loop = loops(matmul().body)[1]
    assert text(reads(j_loop)) == ["C[i:1, 0:32]", "A[i:1, 0:64]", "B[0:64, 0:32]"]
    assert text(writes(j_loop)) == ["C[i:1, 0:32]"]


def test_union_of_neighbours() -> None:
    a = te.placeholder((34,), name="A")
    s = te.compute((32,), lambda i: a[i] + a[i + 1] + a[i + 2], name="S")
    nest = te.create_prim_func([a, s]).body
    block = next(x for x in walk(nest) if isinstance(x, Block))
    assert text(reads(block)) == ["A[vi:3]"]
    assert text(reads(nest)) == ["A[0:34]"]


def test_an_index_from_memory_counts_whole() -> None:
    table, index = te.placeholder((100, 8), name="T"), te.placeholder((5,), "i64", name="I")
    g = te.compute((5, 8), lambda i, j: table[index[i], j], name="G")
    block = next(x for x in walk(te.create_prim_func([table, index, g]).body) if isinstance(x, Block))
    assert sorted(text(reads(block))) == ["I[vi:1]", "T[0:100, vj:1]"]


def test_strides_and_context() -> None:
    a = te.placeholder((64,), name="A")
    s = te.compute((16,), lambda i: a[i * 4 + 1], name="S")
    (loop,) = loops(te.create_prim_func([a, s]).body)
    inner = lower_blocks(te.create_prim_func([a, s])).body.children[0]
    assert text(reads(inner, {Var("i"): const(16)})) == ["A[i * 4 + 1:1]"]
    assert text(reads(loop)) == ["A[1:61]"]
