"""A version for each number of rows, where the range of a symbol has one tile of them at the most."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.parser import parse_func
from tilewright.transform.loops.remainder import MAX_REMAINDER, rows_by_number

FUNC = """
func @few(a: f32[n, 6], b: f32[6, 8], c: f32[n, 8]) where n in {low}..{high} {{
  for p in 0..1 {kind} {{
    alloc t: f32[{size}, 8] in local
    for q in 0..{size} unrolled {{ if q < n {{ for u in 0..8 vectorized {{ t[q, u] = 0.0 }} }} }}
    for k in 0..6 {{
      for r in 0..{size} unrolled {{
        if {test} {{ for v in 0..8 vectorized {{ t[r, v] = t[r, v] + a[r, k] * b[k, v] }} }}
      }}
    }}
    for s in 0..{size} unrolled {{ if s < n {{ for w in 0..8 vectorized {{ c[s, w] = t[s, w] }} }} }}
  }}
}}
"""


def function_of(low: int, high: int, kind: str = "parallel", test: str = "r < n") -> str:
    return FUNC.format(low=low, high=high, size=high + 1, kind=kind, test=test)


@pytest.mark.parametrize("kind", ["parallel", ""])
@pytest.mark.parametrize(("low", "high"), [(0, 2), (1, 5), (6, 7), (2, MAX_REMAINDER)])
def test_every_number(low: int, high: int, kind: str) -> None:
    """Every number of rows of a thread, or of all where one thread does it."""
    func = parse_func(function_of(low, high, kind))
    numbered = rows_by_number(func)
    text = str(numbered)
    assert not any(" < n {" in line for line in text.splitlines()), "a row is tested"
    assert text.count("a[r") == high - max(low, 1) + 1
    rng = np.random.default_rng(low)
    for n in range(low, high + 1):
        a, b = rng.standard_normal((n, 6)).astype(np.float32), rng.standard_normal((6, 8)).astype(np.float32)
        got, want = (np.full((n, 8), np.nan, np.float32) for _ in range(2))
        interpret(numbered, [a, b, got])
        interpret(func, [a, b, want])
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(function_of(1, MAX_REMAINDER + 1), id="too many numbers"),
        pytest.param(function_of(1, 5, test="r < n and k < n"), id="another test"),
        pytest.param(function_of(1, 5, test="r < n - 1"), id="two numbers of rows"),
        pytest.param(function_of(1, 5).replace("for k in 0..6 {", "for k in 0..6 unrolled {"), id="no sum over a loop"),
    ],
)
def test_what_stays(text: str) -> None:
    func = parse_func(text)
    assert rows_by_number(func) == func


def test_versions_of_several_rows_have_fewer_copies() -> None:
    """A step stores 128 bytes a row here; two steps of four rows are as many as an iteration should have."""
    wide = function_of(1, 5).replace("for k in 0..6 {", "for k in 0..6 @unroll(times=4) {")
    for size in ("b: f32[6, 8]", "c: f32[n, 8]", "t: f32[6, 8]", "0..8 vectorized"):
        wide = wide.replace(size, size.replace("8", "32"))
    text = str(rows_by_number(parse_func(wide)))
    copies = [
        int(m[1]) if (m := re.search(r"times=(\d)", line)) else 1 for line in text.splitlines() if "in 0..6" in line
    ]
    assert copies == [4, 4, 4, 2, 2]


SHARED = """
func @shared(a: f32[n, 6], b: f32[6, 128], c: f32[n, 128]) where n in 1..4 {{
  for p in 0..1 parallel {{
    alloc t: f32[4, 128] in local
    for q in 0..4 unrolled {{ if q < n {{ for u in 0..128 vectorized {{ t[q, u] = 0.0 }} }} }}
    for o in 0..3 @prefetch(buffers=[b], nbytes=3072, lines={lines}, rows=4) {{
      for k in 0..2 @unroll(times=2) {{
        for r in 0..4 unrolled {{
          if r < n {{ for v in 0..128 vectorized {{ t[r, v] = t[r, v] + a[r, o*2 + k] * b[o*2 + k, v] }} }}
        }}
      }}
    }}
    for s in 0..4 unrolled {{ if s < n {{ for w in 0..128 vectorized {{ c[s, w] = t[s, w] }} }} }}
  }}
}}
"""


@pytest.mark.parametrize(("lines", "joined"), [(16, True), (7, False)])
def test_one_step_alone_is_no_loop_in_a_loop_over_what_is_prefetched(lines: int, joined: bool) -> None:
    """A step stores 512 bytes a row: two of one row are enough, one of two rows or more, if lines can be halved."""
    func = parse_func(SHARED.format(lines=lines))
    numbered = rows_by_number(func)
    text = str(numbered)
    assert text.count("in 0..6 @prefetch") == (3 if joined else 0)
    assert text.count("lines=8") == (3 if joined else 0)
    assert text.count("@unroll(times=2)") == (1 if joined else 4), "one step in a loop of its own"
    for n in range(1, 5):
        rng = np.random.default_rng(n)
        a, b = rng.standard_normal((n, 6)).astype(np.float32), rng.standard_normal((6, 128)).astype(np.float32)
        got, want = (np.full((n, 128), np.nan, np.float32) for _ in range(2))
        interpret(numbered, [a, b, got])
        interpret(func, [a, b, want])
        np.testing.assert_array_equal(got, want)
