"""Lines whose last tile overlaps the one before: every length right, no test in whole tiles, and what must stay."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.loops import Let, PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk
from tilewright.transform.loops.overlap import overlap_tails
from tilewright.transform.loops.partition import partition_loops
from tilewright.transform.loops.verify import verify_loops

WINDOW = """
func @window(x: f32[n], y: f32[(n + 1) // 2]) where n in {low}..{high} {{
  for t in 0..({count} + {less}) // {size} {{
    alloc sum: f32[{size}] in local
    for v in 0..{size} {kind} {{ if t * {size} + v < {count} {{ sum[v] = 0.0 }} }}
    for k in 0..3 unrolled {{
      for u in 0..{size} {kind} {{
        if t * {size} + u < {count} {{
          sum[u] = sum[u] + select(1 <= t * {double} + u * 2 + k and t * {double} + u * 2 + k <= n,
                                   x[t * {double} + u * 2 + k - 1], 0.0)
        }}
      }}
    }}
    for w in 0..{size} {kind} {{ if t * {size} + w < {count} {{ y[t * {size} + w] = sum[w] }} }}
  }}
}}
"""


def window(size: int, kind: str = "vectorized", low: int = 0, high: int = 100) -> PrimFunc:
    """Sums of three neighbours, with stride 2 and a border of zeros."""
    sizes = {"size": size, "less": size - 1, "double": 2 * size, "count": "(n + 1) // 2"}
    return parse_func(WINDOW.format(**sizes, kind=kind, low=low, high=high))


def sums(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x, (1, 2))
    return np.array([padded[i : i + 3].sum() for i in range(0, len(x), 2)], np.float32)


@pytest.mark.parametrize("kind", ["vectorized", "unrolled"])
@pytest.mark.parametrize("size", [2, 4, 7, 8, 16])
def test_every_length(size: int, kind: str) -> None:
    func = window(size, kind)
    overlapped = overlap_tails(func)
    assert overlapped != func
    assert parse_func(str(overlapped)) == overlapped
    for n in range(5 * size + 3):
        x = np.arange(n, dtype=np.float32)
        got = np.full((n + 1) // 2, np.nan, np.float32)
        interpret(overlapped, [x, got])
        np.testing.assert_array_equal(got, sums(x), err_msg=f"length {n}")


@pytest.mark.parametrize(("low", "high", "versions"), [(0, 100, 6), (9, 100, 4), (15, 100, 2), (17, 100, 1)])
def test_versions_that_can_be(low: int, high: int, versions: int) -> None:
    """More elements than the 8 of a tile are there from 17 on, as many at 15 and 16; fewer are in tiles of 4, in three
    versions as well, but from 9 on in one: two tiles that overlap."""
    result = overlap_tails(window(8, low=low, high=high))
    assert sum(isinstance(s, Let) for s in walk(result.body)) == versions


def test_of_whole_tiles_only_windows_are_tested() -> None:
    text = str(overlap_tails(window(8, low=17)))
    assert not re.search(r"if .* < ", text)
    assert "select(" in text


COLUMNS = """
func @columns(x: f32[n], y: f32[n]) where n in {low}..100 {{
  for t in 0..(n + 3) // 4 {{
    alloc sum: f32[4] in local
    for v in 0..4 unrolled {{ if t * 4 + v < n {{ sum[v] = 0.0 }} }}
    for k in 0..{taps} unrolled {{
      for u in 0..4 unrolled {{
        if t * 4 + u < n and {left} <= t * 4 + u + k and t * 4 + u + k < n + {left} {{
          sum[u] = sum[u] + x[t * 4 + u + k - {left}]
        }}
      }}
    }}
    for w in 0..4 unrolled {{ if t * 4 + w < n {{ y[t * 4 + w] = sum[w] }} }}
  }}
}}
"""


@pytest.mark.parametrize(("taps", "least"), [(3, None), (5, 6), (7, 7), (9, 8)])
def test_windows_that_leave_a_line_at_one_end_are_not_tested(taps: int, least: int | None) -> None:
    """A tile of 4 columns with 2 beside it: from 6 elements on its windows of 5 leave at most one end of the line, and
    each tap is known to be in it or out. Below, both ends are tested."""
    func = parse_func(COLUMNS.format(low=1, taps=taps, left=taps // 2))
    overlapped = overlap_tails(func)
    assert least is None or f" in {least}..100" in str(overlapped)
    tests = str(partition_loops(overlap_tails(parse_func(COLUMNS.format(low=least or 5, taps=taps, left=taps // 2)))))
    first = tests.split("for t", maxsplit=1)[0]
    assert not re.search(r"if .*\bn", first)
    for n in range(1, 24):
        x = np.arange(1, n + 1, dtype=np.float32)
        got = np.full(n, np.nan, np.float32)
        interpret(overlapped, [x, got])
        np.testing.assert_array_equal(got, np.convolve(x, np.ones(taps, np.float32), "full")[taps // 2 :][:n])


STAY = {
    "what is read is written": ("y[t * 8 + w] = sum[w]", "y[t * 8 + w] = y[t * 8 + w] + sum[w]"),
    "parameters may share memory": (" where n in 0..100", " where n in 0..100 @may_alias"),
    "the number of the tile": ("sum[v] = 0.0", "sum[v] = f32(t)"),
    "a tile shared by threads": ("(n + 1) // 2 + 7) // 8 {", "(n + 1) // 2 + 7) // 8 parallel {"),
    "other tiles": ("(n + 1) // 2 + 7) // 8 {", "(n + 1) // 2 + 15) // 8 {"),
}


@pytest.mark.parametrize("what", STAY)
def test_loops_that_stay(what: str) -> None:
    old, new = STAY[what]
    text = WINDOW.format(size=8, less=7, double=16, count="(n + 1) // 2", kind="vectorized", low=0, high=100)
    assert old in text
    func = parse_func(text.replace(old, new, 1))
    assert overlap_tails(func) == func


def test_one_mask_a_vector_stays() -> None:
    """Where elements are tested only for being there, a masked vector is as cheap as a whole one."""
    func = parse_func(
        """
        func @whole(x: f32[n], y: f32[n]) where n in 0.. {
          for t in 0..(n + 7) // 8 {
            for v in 0..8 vectorized { if t * 8 + v < n { y[t * 8 + v] = x[t * 8 + v] * 2.0 } }
          }
        }"""
    )
    assert overlap_tails(func) == func


def test_what_a_name_inside_decides_splits_no_loop_enclosing() -> None:
    """`partition_loops` knows no number of a name outside of where it is bound."""
    func = parse_func(
        """
        func @named(x: f32[40], y: f32[40], z: f32[n]) where n in 1..40 {
          for t in 0..5 {
            let m = n
            for v in 0..8 vectorized { y[t * 8 + v] = select(t * 8 + v < m, x[t * 8 + v], 0.0) }
          }
        }"""
    )
    verify_loops(partition_loops(func))


def test_an_extent_inside_by_such_a_name_splits_no_loop_enclosing() -> None:
    func = parse_func(
        """
        func @triangle(x: f32[n, n], y: f32[n, n]) where n in 1.. {
          for i in 0..n parallel {
            let m = n
            for t in 0..(m + 7) // 8 {
              for v in 0..8 vectorized {
                if t * 8 + v < n { y[i, t * 8 + v] = select(t * 8 + v <= i, x[i, t * 8 + v], 0.0) }
              }
            }
          }
        }"""
    )
    split = partition_loops(func)
    verify_loops(split)
    for n in (1, 8, 21):
        x, got = np.ones((n, n), np.float32), np.full((n, n), np.nan, np.float32)
        interpret(split, [x, got])
        np.testing.assert_array_equal(got, np.tril(x))
