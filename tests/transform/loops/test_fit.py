"""Buffers with as many rows as there are: what is used of them fits, and which ones keep their size."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.expr import Var, as_int
from tilewright.ir.loops import Allocate
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import substitute, walk
from tilewright.transform.loops.fit import fit_buffers

FUNC = """
func @planes(x: f32[n, 16], y: f32[n, 16]) where n in 1..200 {{
  for b in 0..(n + 47) // 48 {{
    alloc t: f32[{planes}, 48, 16]{scope}
    for p in 0..{planes} {{
      for i in 0..{made} {{ for v in 0..16 vectorized {{ t[p, i, v] = x[(b * 48 + i) % n, v] * f32(p) }} }}
    }}
    for j in 0..48 {{
      if b * 48 + j < n {{ for w in 0..16 vectorized {{ y[b * 48 + j, w] = t[1, j, w] + t[7, j, w] }} }}
    }}
  }}
}}
"""
PARTS = {"planes": 100, "scope": "", "made": "min(n - b * 48, 48)"}


def test_what_is_used_has_its_place() -> None:
    func = fit_buffers(parse_func(FUNC.format(**PARTS)))
    (buffer,) = [s.buffer for s in walk(func.body) if isinstance(s, Allocate)]
    (n,) = func.symbols
    sizes = []
    for value in (1, 2, 10, 47, 48, 49, 96, 200):
        rows = as_int(substitute(buffer.shape[1], {n: value}))
        assert rows is not None and rows % 2 == 1
        sizes.append(rows)
        x = np.random.default_rng(value).standard_normal((value, 16)).astype(np.float32)
        y = np.full_like(x, np.nan)
        interpret(func, [x, y])
        np.testing.assert_array_equal(y, x + x * np.float32(7))
    assert sizes == [1, 3, 11, 47, 49, 49, 49, 49]
    assert isinstance(n, Var)


UNCHANGED = {
    "all rows are made": {"made": "48"},
    "small enough for the stack": {"planes": 8},
    "registers": {"scope": " in local"},
}


@pytest.mark.parametrize("what", UNCHANGED)
def test_buffers_that_keep_their_size(what: str) -> None:
    func = parse_func(FUNC.format(**(PARTS | UNCHANGED[what])))
    assert fit_buffers(func) is func
