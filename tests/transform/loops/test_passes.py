"""Each pass of the loop lowering, as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.expr import as_int
from tilewright.ir.loops import For, If, PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk
from tilewright.ir.verify import verify_func
from tilewright.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops
from tilewright.transform.loops.blocks import lower_blocks
from tilewright.transform.loops.compact import compact_buffers
from tilewright.transform.loops.conditions import bound_loops, move_conditions
from tilewright.transform.loops.dead import drop_dead_stores
from tilewright.transform.loops.double import double_buffers
from tilewright.transform.loops.merge import merge_loops
from tilewright.transform.loops.partition import partition_loops
from tilewright.transform.loops.reuse import reuse_outputs
from tilewright.transform.loops.simplify import simplify_loops
from tilewright.transform.loops.workspace import plan_workspace

Golden = Callable[..., None]
HOST = Target("x86_64-unknown-linux-gnu", "x86-64-v3")


def before_after(golden: Golden, before: PrimFunc, *passes: Callable[[PrimFunc], PrimFunc]) -> None:
    after = before
    for p in passes:
        after = p(after)
    verify_func(after)
    golden(f"before\n\n{before}\n\nafter\n\n{after}")


def add(n: Any) -> PrimFunc:
    a, b = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    return te.create_prim_func([a, b, te.compute((n,), lambda i: a[i] + b[i], name="C")], "add")


def matmul(n: Any, m: Any, k: Any) -> PrimFunc:
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis(k, "k")
    return te.create_prim_func([a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), name="C")], "mm")


def tiled(n: Any, m: Any, k: Any) -> Schedule:
    s = Schedule(matmul(n, m, k))
    block = s.block("C")
    i, j, r = s.loops(block)
    io, jo, ii, ji = s.tile(i, j, 6, 16)
    s.reorder(io, jo, r, ii, ji)
    copy = s.cache_write(block, "local")
    s.reverse_compute_at(copy, jo)
    s.unroll(ii)
    s.vectorize(ji)
    return s


def padded_conv() -> Schedule:
    x, w = te.placeholder((28, 14), name="X"), te.placeholder((3, 8), name="W")
    k = te.reduce_axis(3, "k")

    def element(h: Any, q: Any, o: Any) -> Any:
        inside = te.all_of([q + k >= 1, q + k < 15])
        return te.sum(te.if_then_else(inside, x[h, q + k - 1], 0.0) * w[k, o], k)

    s = Schedule(te.create_prim_func([x, w, te.compute((28, 14, 8), element, name="Y")], "conv"))
    h, q, o, k_loop = s.loops("Y")
    qo, qi = s.split(q, factor=2)
    s.reorder(h, qo, k_loop, qi, o)
    s.unroll(qi)
    s.vectorize(o)
    return s


def test_blocks_with_init_before_the_reduction(golden: Golden) -> None:
    before_after(golden, matmul(8, 8, 8), lower_blocks)


def test_blocks_with_init_in_place(golden: Golden) -> None:
    s = Schedule(matmul(8, 8, 8))
    _i, j, k = s.loops("C")
    s.fuse(j, k)
    before_after(golden, s.func, lower_blocks, simplify_loops)


def test_simplify_removes_what_is_known(golden: Golden) -> None:
    s = Schedule(add(32))
    (i,) = s.loops("C")
    s.split(i, factors=[None, 4, 8])
    before_after(golden, s.func, lower_blocks, simplify_loops)


def test_compact_to_the_tile(golden: Golden) -> None:
    n = te.var("n")
    a = te.placeholder((n, 64), name="A")
    b = te.compute((n, 64), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((n, 62), lambda i, j: b[i, j] + b[i, j + 1] + b[i, j + 2], name="C")
    s = Schedule(te.create_prim_func([a, c], "stencil"))
    _i, j = s.loops("C")
    jo, _ = s.split(j, factor=16)
    s.compute_at("B", jo)
    before_after(golden, s.func, lower_blocks, compact_buffers, simplify_loops)


def test_conditions_move_and_bound_loops(golden: Golden) -> None:
    s = Schedule(add(te.var("n")))
    (i,) = s.loops("C")
    s.split(i, factor=32)
    before_after(golden, s.func, lower_blocks, move_conditions, bound_loops)


def test_loops_end_where_nothing_more_is_stored() -> None:
    def extent(condition: str, more: str = "") -> int | None:
        body = f"for i in 0..6 unrolled {{ if {condition} {{ A[i] = 0.0 }} }} {more}"
        func = bound_loops(parse_func(f"func @f(A: f32[6]) {{ for t in 0..5 {{ {body} }} }}"))
        loops = [s for s in walk(func.body) if isinstance(s, For) and s.var.name == "t"]
        return as_int(loops[0].extent) if loops else 1

    assert extent("t * 6 + i < 8") == 2
    assert extent("t * 6 + i < 6") == 1
    assert extent("t * 6 + i < 100") == 5
    assert extent("t * 2 - i < 3") == 4  # 2t < 3 + 5
    assert extent("t * 2 - i < 3 and t < 3") == 3
    assert extent("t * 6 + i < 8", "if t < 4 { A[0] = 1.0 }") == 4
    assert extent("t * 6 + i < 8", "A[0] = 1.0") == 5
    assert extent("t * 6 + i < 8", "if t * 6 < 9 { A[0] = 1.0 } else { A[1] = 1.0 }") == 5
    assert extent("3 < t * 6 + i") == 5


def test_partition_symbolic(golden: Golden) -> None:
    s = Schedule(add(te.var("n")))
    (i,) = s.loops("C")
    _io, ii = s.split(i, factor=32)
    s.vectorize(ii)
    before_after(golden, s.func, lower_blocks, partition_loops)


def test_partition_parallel(golden: Golden) -> None:
    s = Schedule(add(100))
    (i,) = s.loops("C")
    io, ii = s.split(i, factor=32)
    s.vectorize(ii)
    s.parallel(io)
    before_after(golden, s.func, lower_blocks, partition_loops)


def test_partition_fused(golden: Golden) -> None:
    s = Schedule(matmul(19, 4, 3))
    i, j, _ = s.loops("C")
    io, ii = s.split(i, factor=8)
    s.reorder(io, j, ii)
    s.parallel(s.fuse(io, j))
    s.unroll(ii)
    before_after(golden, s.func, lower_blocks, partition_loops, bound_loops, simplify_loops)


def test_partition_two_tails(golden: Golden) -> None:
    before_after(golden, tiled(19, 37, 20).func, lambda f: lower_loops(f, HOST))


def test_partition_two_tails_symbolic(golden: Golden) -> None:
    before_after(golden, tiled(te.var("n"), 37, 20).func, lambda f: lower_loops(f, HOST))


def test_partition_padding(golden: Golden) -> None:
    before_after(golden, padded_conv().func, lambda f: lower_loops(f, HOST))


def test_partition_is_bounded() -> None:
    func = lower_blocks(tiled(19, 37, 20).func)
    assert partition_loops(func, limit=1) == func
    two, four = (str(partition_loops(func, limit=n)).count("unrolled") for n in (2, 4))
    assert two < four


def test_a_condition_that_only_bounds_a_loop_makes_no_versions() -> None:
    """The bound becomes the loop's extent, where more than a statement is in the loop."""
    long, short = (
        parse_func(
            "func @lines(A: f32[n, 8], B: f32[n, 8]) where n in 1.. { for p in 0..(n + 63) // 64 { for l in 0..64 { "
            f"if p * 64 + l < n {{ for k in 0..8{kind} {{ B[p * 64 + l, k] = A[p * 64 + l, k] }} }} }} }} }}"
        )
        for kind in ("", " vectorized")
    )
    assert partition_loops(long) == long and partition_loops(short) != short
    assert "for l in 0..min(" in str(bound_loops(long))


@pytest.mark.parametrize("rows", [28, 30, 5])
def test_a_literal_bound_of_a_long_loop_makes_no_versions(rows: int) -> None:
    """Blocks of 6 rows have one body for all rows and for those that are left; where extents must be literals, two."""
    copies = "for k in 0..8 unrolled { B[p * 6 + l, k] = A[p * 6 + l, k] + A[p * 6 + l, 0] }"
    func = parse_func(
        f"func @rows(A: f32[{rows}, 8], B: f32[{rows}, 8]) {{ for p in 0..{-(-rows // 6)} parallel {{ "
        f"for l in 0..6 {{ if p * 6 + l < {rows} {{ {copies} }} }} }} }}"
    )
    assert partition_loops(func) is func
    bounded, versions = lower_loops(func, HOST), bound_loops(partition_loops(func, literal=True))
    assert str(bounded).count("] + A[") == 1
    assert str(versions).count("] + A[") == (2 if rows == 28 else 1)
    a = np.random.default_rng(0).standard_normal((rows, 8)).astype("f4")
    for each in (bounded, versions):
        b = np.full_like(a, np.nan)
        interpret(each, [a, b])
        assert np.array_equal(b, a + a[:, :1])


@pytest.mark.parametrize("channels", [36, 48, 33, 60])
def test_only_the_write_that_has_a_condition_has_versions(channels: int) -> None:
    """The loop that computes the rows stands once; the tile that is transposed is in each version as a whole, and the
    one for the last channels knows how many there are, since the loop around it is as short as a condition says."""
    blocks = -(-channels // 16)
    func = parse_func(
        f"func @blocks(x: f32[{blocks}, 16, 16], y: f32[{channels}, 16]) {{ for co in 0..{-(-blocks // 2)} parallel {{ "
        f"for c in 0..2 {{ if co * 2 + c < {blocks} {{ alloc r: f32[16, 16] for q in 0..16 {{ "
        "for l in 0..16 vectorized { r[q, l] = x[co * 2 + c, q, l] * 2.0 } } alloc t: f32[16, 16] in local "
        "for p in 0..16 unrolled { for k in 0..16 vectorized { t[p, k] = r[p, k] } } for i in 0..16 unrolled { "
        f"if co * 32 + c * 16 + i < {channels} {{ for j in 0..16 vectorized {{ y[co * 32 + c * 16 + i, j] = t[j, i] "
        "} } } } } } }"
    )
    result = bound_loops(partition_loops(func))
    verify_func(result)
    text = str(result)
    assert text.count("* 2.0") == 1 and text.count("alloc t") == (4 if channels == 60 else 2)
    assert all(str(s.condition) in ("co < 1", "c < 1") for s in walk(result.body) if isinstance(s, If))
    x = np.random.default_rng(0).standard_normal((blocks, 16, 16)).astype("f4")
    y = np.full((channels, 16), np.nan, np.float32)
    interpret(result, [x, y])
    np.testing.assert_array_equal(y, 2 * x.transpose(0, 2, 1).reshape(-1, 16)[:channels])


def test_tall_tiles_have_a_version_for_each_number_of_rows_that_remain() -> None:
    s = Schedule(matmul(te.var("n"), 32, 8))
    copy = s.cache_write("C", "local")
    i, j = s.loops(copy)
    io, ii = s.split(i, factor=14)
    s.compute_at("C", io)
    *_, i, j, r = s.loops("C")
    s.reorder(r, i, j)
    s.decompose_reduction("C", r)
    s.unroll(s.loops("C")[-2])
    s.unroll(ii)
    func = lower_loops(s.func, HOST)
    rows = {as_int(f.extent) for f in walk(func.body) if isinstance(f, For) and f.kind == "unrolled"}
    assert set(range(2, 15)) <= rows
    assert not any(isinstance(f.body, If) for f in walk(func.body) if isinstance(f, For) and f.kind == "unrolled")


def test_workspace_for_what_threads_share(golden: Golden) -> None:
    n = te.var("n")
    a = te.placeholder((n, 8), name="A")
    b = te.compute((n, 8), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((n, 8), lambda i, j: b[i, 7 - j] + 1.0, name="C")
    s = Schedule(te.create_prim_func([a, c], "twice"))
    s.parallel(s.loops("B")[0])
    s.parallel(s.loops("C")[0])
    before_after(golden, s.func, lower_blocks, compact_buffers, plan_workspace)


def test_workspace_for_each_thread(golden: Golden) -> None:
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="A")
    b = te.compute((n, m), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((n, m), lambda i, j: b[i, m - 1 - j] + 1.0, name="C")
    s = Schedule(te.create_prim_func([a, c], "rows"))
    i, _ = s.loops("C")
    s.compute_at("B", i)
    s.parallel(i)
    before_after(golden, s.func, lower_blocks, compact_buffers, simplify_loops, plan_workspace)


def test_dead_stores(golden: Golden) -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((8,), lambda i: b[i] + a[i], name="C")
    s = Schedule(te.create_prim_func([a, c], "inline"))
    func = s.func
    s.compute_inline("B")
    # The stage B again, although C no longer reads it.
    unread = PrimFunc(func.name, func.params, type(func.body)((func.body.children[0], s.func.body)), func.buffers)
    before_after(golden, unread, lower_blocks, compact_buffers, drop_dead_stores)


CARRIED = """func @carried(C: f32[4, 8]) {
  buffer B: f32[8]
  for i in 0..4 {
    for j in 0..8 {
      if i < 1 {
        B[j] = 1.0
      }
    }
    for k in 0..8 {
      C[i, k] = B[k]
    }
  }
}
"""


def test_what_an_iteration_leaves_to_the_next_is_retained(golden: Golden) -> None:
    before_after(golden, parse_func(CARRIED), compact_buffers)


SHARED = """func @shared(C: f32[n]) where n in 2.. {
  alloc B: f32[(n + 2) // 3 * 3 + min(n, 5) + n % 4]
  for i in 0..n parallel {
    B[i] = 1.0
  }
  for j in 0..n parallel {
    C[j] = B[n - j - 1]
  }
}
"""


def test_shapes_of_workspaces_are_polynomials() -> None:
    (_, workspace) = plan_workspace(parse_func(SHARED)).params
    assert str(workspace.shape[0]) == "n + 10"


def test_memory_of_what_vanishes_goes_with_it() -> None:
    """A store of what was read from the same place is no statement, and a buffer around nothing is none."""
    func = parse_func(
        "func @f(a: f32[8]) { for i in 0..8 { alloc b: f32[8] for j in 0..8 { a[j] = a[j] } } for k in 0..8 "
        "{ alloc c: f32[8] a[k] = a[k] } a[0] = 1.0 }"
    )
    after = simplify_loops(func)
    verify_func(after)
    assert after.body == parse_func("func @f(a: f32[8]) { a[0] = 1.0 }").body
    assert not list(walk(simplify_loops(parse_func("func @f(a: f32[8]) { alloc b: f32[8] a[1] = a[1] }")).body))[1:]


@pytest.mark.parametrize(
    ("first", "second", "never"),
    [
        ("(t // 3 + 2) % 3 < 1", "t < 3", True),
        ("(t // 3 + 2) % 3 < 1", "t > 3", False),
        ("t % 4 == 3", "t < 3", True),
        ("I[t] // 4 == 1", "I[t] < 4", False),  # what is read may be another number by then
    ],
)
def test_what_conditions_enclosing_exclude_is_dead(first: str, second: str, never: bool) -> None:
    """A quotient says nothing of the number, but the number of the quotient."""
    body = f"for t in 0..8 {{ if {first} {{ I[t] = 0 if {second} {{ a[t] = 1.0 }} else {{ a[t] = 2.0 }} }} }}"
    text = str(simplify_loops(parse_func(f"func @f(I: i64[8], a: f32[8]) {{ {body} }}")))
    assert ("1.0" not in text, "2.0" in text) == (never, True)


@pytest.mark.parametrize(
    "body",
    [
        "for j in 0..8 { c[i, j] = b[j] } for k in 0..8 { b[k] = a[i, k] }",  # it is read first
        "for j in 0..8 { b[j] = a[i, j] } for k in 0..8 { a[8 - i, k] = b[k] }",  # what fills it is written meanwhile
    ],
)
def test_what_cannot_be_filled_in_advance_has_no_two_half_parts(body: str) -> None:
    func = parse_func(
        "func @f(a: f32[9, 8], c: f32[9, 8]) "
        f"{{ for i in 0..9 @double_buffer(buffers=[b]) {{ alloc b: f32[8] {body} }} }}"
    )
    after = double_buffers(func)
    assert after.body == replace(func.body, notes=())  # type: ignore[type-var]


def test_a_start_stays_where_its_loops_depend_on_the_reduction() -> None:
    """Rows that become shorter: the loop over a row cannot stand before the loop that says how long it is."""
    func = parse_func(
        """func @triangle(a: f32[4, 4], c: f32[4]) {
          for k in 0..4 {
            for i in 0..4 - k {
              block C (vi = spatial(4): i, vk = reduce(4): k) { init { c[vi] = 0.0 } c[vi] = c[vi] + a[vk, vi] }
            }
          }
        }"""
    )
    flat = lower_loops(func, Target.parse("znver4"))
    a, c = np.random.default_rng(0).integers(-9, 9, (4, 4)).astype(np.float32), np.full(4, np.nan, np.float32)
    interpret(flat, [a, c])
    np.testing.assert_array_equal(c, [a[: 4 - i, i].sum() for i in range(4)])


@pytest.mark.parametrize(
    ("between", "merged"),
    [
        ("for q in 0..4 { z[q] = 3.0 }", True),
        ("for q in 0..16 { s[q] = 3.0 }", False),  # what the second loop reads, too
        ("for q in 0..16 { part[q] = part[q] + 1.0 }", True),
        ("for q in 0..16 { s[q] = e[q] }", False),
        ("for q in 0..16 { e[q + 16] = 5.0 }", False),
    ],
)
def test_loops_are_merged_past_what_has_nothing_to_do_with_them(between: str, merged: bool) -> None:
    func = parse_func(
        f"""func @sum(x: f32[64], e: f32[64], s: f32[16], z: f32[4], part: f32[16]) {{
          for i in 0..4 {{ for v in 0..16 vectorized {{ e[i * 16 + v] = x[i * 16 + v] + 1.0 }} }}
          {between}
          for k in 0..4 {{ for w in 0..16 vectorized {{ part[w] = part[w] + e[k * 16 + w] * s[w] }} }}
        }}"""
    )
    after = merge_loops(func)
    assert (after != func) == merged
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 9, size).astype(np.float32) for size in (64, 64, 16, 4, 16)]
    got = [a.copy() for a in arrays]
    interpret(func, arrays)
    interpret(after, got)
    for name, a, b in zip(("x", "e", "s", "z", "part"), arrays, got, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_rows_that_are_recreated_are_not_held_by_an_output() -> None:
    """Each turn makes four rows and finishes two: the next turn would write over one that is finished."""
    func = parse_func(
        """func @rows(x: f32[6, 64], y: f32[6, 64]) {
          buffer e: f32[6, 64]
          for i in 0..3 {
            for j in 0..4 { for u in 0..64 {
              block e (er = spatial(6): i + j, ec = spatial(64): u) { e[er, ec] = x[er, ec] + 1.0 } } }
            for k in 0..2 { for v in 0..64 {
              block y (yr = spatial(6): i * 2 + k, yc = spatial(64): v) { y[yr, yc] = e[yr, yc] * 2.0 } } }
          }
        }"""
    )
    after = reuse_outputs(func, 16)
    x = np.random.default_rng(0).integers(-9, 9, (6, 64)).astype(np.float32)
    y = np.full((6, 64), np.nan, np.float32)
    interpret(lower_loops(after, Target.parse("znver4")), [x, y])
    np.testing.assert_array_equal(y, 2 * (x + 1))
