"""Regions of statements and blocks."""

from __future__ import annotations

from tilewright import te
from tilewright.arith.regions import Collector, reads, writes
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import Buffer, Var, const
from tilewright.ir.loops import Block, For, PrimFunc, Region, Stmt
from tilewright.ir.parser import parse_stmt
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


def test_statement_over_the_loops_enclosing_it() -> None:
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


I, N = Var("i"), Var("n", lo=1)
BUFFERS = [*(Buffer(name, f32, (const(64),)) for name in "ABC"), Buffer("I", i64, (const(9),))]


def parsed(body: str) -> Stmt:
    return parse_stmt(body, [N], BUFFERS)


def test_names_stand_for_their_values() -> None:
    nest = parsed("for i in 0..4 { let k = i * 2 let l = k + 1 A[l] = B[k] }")
    assert text(reads(nest)) == ["B[0:7]"] and text(writes(nest)) == ["A[1:7]"]
    tiles = parsed("for t in 0..4 { for u in 0..8 { block b (v = spatial(32): t * 8 + u) { A[v + 1] = B[v * 2] } } }")
    assert text(reads(tiles)) == ["B[0:63]"] and text(writes(tiles)) == ["A[1:32]"]
    inner = loops(tiles)[1]
    assert text(writes(inner, {Var("t"): const(4)})) == ["A[t * 8 + 1:8]"]


def test_conditions_belong_to_their_branch() -> None:
    nest = parsed("for i in 0..8 { let k = i + 1 if k < 3 { A[i] = B[i] } else { A[k] = C[i] } }")
    result = Collector(nest).accesses()
    assert [(a.buffer.name, a.is_write, [str(c) for c in a.conditions]) for a in result] == [
        ("B", False, ["i + 1 < 3"]),
        ("A", True, ["i + 1 < 3"]),
        ("C", False, ["not i + 1 < 3"]),
        ("A", True, ["not i + 1 < 3"]),
    ]
    assert [[str(i) for i in a.indices] for a in result] == [["i"], ["i"], ["i"], ["i + 1"]]
    assert text(writes(nest)) == ["A[0:9]"]
    only = Collector(nest).accesses(BUFFERS[2])
    assert [(a.buffer.name, a.is_write) for a in only] == [("C", False)]
    assert Collector(parsed("if n < 3 { A[0] = B[0] }")).accesses()[0].conditions != ()


def test_instructions_touch_regions() -> None:
    body = "call f(A[v * 4 +: 4]; B[v +: 2], C[0 +: 64])"
    ordinary = parsed(f"for i in 0..8 {{ block b (v = spatial(8): i) {{ {body} }} }}")
    summed = parsed(f"for i in 0..8 {{ block b (v = spatial(1): 0, r = reduce(8): i) {{ {body} }} }}")
    assert text(reads(ordinary)) == ["B[0:9]", "C[0:64]"] and text(writes(ordinary)) == ["A[0:32]"]
    assert sorted(text(reads(summed))) == ["A[0:4]", "B[0:2]", "C[0:64]"] and text(writes(summed)) == ["A[0:4]"]
    block = next(s for s in walk(ordinary) if isinstance(s, Block))
    assert text(reads(block)) == ["B[v:2]", "C[0:64]"] and text(writes(block)) == ["A[v * 4:4]"]
    assert all(a.indices == () for a in Collector(block).accesses())
    only = Collector(summed).accesses(BUFFERS[0])
    assert [a.is_write for a in only] == [False, True]


def test_what_no_one_knows_counts_whole() -> None:
    for body in ("A[I[i]] = 0.0", "call f(A[I[i] +: 2];)", "A[i] = 0.0 A[I[i]] = 0.0", "A[max(I[i], 3)] = 0.0"):
        nest = parsed(f"for i in 0..8 {{ {body} }}")
        assert text(writes(nest)) == ["A[0:64]"], body
        assert text(reads(nest)) == ["I[0:8]"]
    assert text(writes(parsed("for i in 0..8 { A[min(max(I[i], 3), 7)] = 0.0 }"))) == ["A[3:5]"]
    assert text(writes(parsed("for i in 0..n { A[i] = 0.0 A[5] = 0.0 }"))) == ["A[0:max(n - 1, 5) + 1]"]


def test_starts_of_reductions_are_no_reads() -> None:
    block = parsed("block b (v = spatial(8): 0, r = reduce(8): 0) { init { A[v] = 0.0 } A[v] = A[v] + B[r] }")
    result = [(a.buffer.name, a.is_write) for a in Collector(block).accesses()]
    assert result == [("A", True), ("A", False), ("B", False), ("A", True)]
