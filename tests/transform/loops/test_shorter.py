"""Sums of vectors over lines of any length: the same elements, no test inside of a sum, and what stays."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.loops import For, If, PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk
from tilewright.targets.target import Target
from tilewright.transform.loops.narrow import narrow_tails
from tilewright.transform.loops.shorter import shorter_sums
from tilewright.transform.loops.verify import verify_loops
from tilewright.transform.loops.whole import whole_vectors

COLUMNS = """
func @columns(a: f32[5, n], w: f32[5, 3], c: f32[3, n]) where n in 1..{size} {{
  alloc t: f32[3, {size}]
  for f in 0..3 unrolled {{ for i in 0..{size} vectorized {{ if i < n {{ t[f, i] = 0.0 }} }} }}
  for k in 0..5 {{
    for g in 0..3 unrolled {{
      for v in 0..{size} vectorized {{ if v < n {{ t[g, v] = t[g, v] + a[k, v] * w[k, g] }} }}
    }}
  }}
  for h in 0..3 unrolled {{ for u in 0..{size} vectorized {{ if u < n {{ c[h, u] = max(t[h, u], 0.0) }} }} }}
}}
"""


def lowered(func: PrimFunc, target: Target) -> PrimFunc:
    return whole_vectors(narrow_tails(shorter_sums(func, target), target))


@pytest.mark.parametrize("name", ["znver4", "x86-64-v3"])
@pytest.mark.parametrize("size", [16, 24, 32, 96])
def test_every_length(name: str, size: int) -> None:
    func = parse_func(COLUMNS.format(size=size))
    short = lowered(func, Target.parse(name))
    verify_loops(short)
    sums = [s for s in walk(short.body) if isinstance(s, For) and s.kind == "serial"]
    assert sums and not any(isinstance(s, If) for loop in sums for s in walk(loop)), "a vector is tested in a sum"
    for n in range(1, size + 1):
        rng = np.random.default_rng(n)
        a, w = rng.standard_normal((5, n)).astype(np.float32), rng.standard_normal((5, 3)).astype(np.float32)
        a[2, n // 2] = np.nan
        got, want = (np.full((3, n), 7.0, np.float32) for _ in range(2))
        interpret(short, [a, w, got])
        interpret(func, [a, w, want])
        np.testing.assert_array_equal(got, want)


def test_versions_by_half_parts() -> None:
    result = shorter_sums(parse_func(COLUMNS.format(size=96)), Target.parse("znver4"))
    extents = [int(str(s.extent)) for s in walk(result.body) if isinstance(s, For) and s.kind == "vectorized"]
    assert sorted(set(extents)) == [16, 32, 48, 96] and len(extents) == 12


STAY = {
    "a line inside of the temporary's loops": ("if v < n", "if v < n - k"),
    "another condition": ("if i < n", "if i < n - 1"),
    "a sum that is written out": ("for k in 0..5 {", "for k in 0..5 unrolled {"),
    "a temporary that is written elsewhere": ("for h in", "t[0, 0] = 1.0\n  for h in"),
}


@pytest.mark.parametrize("what", STAY)
def test_sums_that_stay(what: str) -> None:
    text = COLUMNS.format(size=96)
    old, new = STAY[what]
    assert old in text
    func = parse_func(text.replace(old, new, 1))
    assert shorter_sums(func, Target.parse("znver4")) == func
