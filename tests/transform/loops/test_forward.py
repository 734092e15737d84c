"""Padded copies whose source is read instead: the same results, and copies that stay."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.parser import parse_func
from tilewright.transform.loops.forward import forward_copies

FUNC = """
func @tiles(x: f32[n, 8], y: f32[m, 8], z: f32[8]) where n in 0..100, m in 0..30 {{
  for t in 0..m {{
    alloc strip: f32[6, 8]
    alloc sums: f32[8]
    for r in 0..3 {{
      for q in 0..2 unrolled {{
        for v in 0..8 vectorized {{ {stored} }}
      }}
    }}
    for u in 0..8 vectorized {{ sums[u] = 0.0 }}
    for k in 0..{times} {{ for w in 0..8 vectorized {{ sums[w] = sums[w] * 2.0 + strip[{read}] }} }}
    {tail}
    for o in 0..8 vectorized {{ y[t, o] = sums[o] }}
  }}
}}
"""
ROW = "t * 4 + r * 2 + q"
PARTS = {
    "stored": f"strip[r * 2 + q, v] = select(1 <= {ROW} and {ROW} <= n, x[{ROW} - 1, v], 0.0)",
    "times": "6",
    "read": "5 - k, w",
    "tail": "",
}


def test_the_same_results() -> None:
    func = parse_func(FUNC.format(**PARTS))
    forwarded = forward_copies(func)
    assert forwarded != func
    for n, m in ((0, 2), (1, 1), (7, 3), (40, 10), (41, 11), (100, 30)):
        x = np.arange(8 * n, dtype=np.float32).reshape(n, 8)
        results = []
        for version in (func, forwarded):
            y = np.zeros((m, 8), np.float32)
            interpret(version, [x, y, np.zeros(8, np.float32)])
            results.append(y)
        np.testing.assert_array_equal(*results)
        padded = np.zeros((4 * m + 8, 8), np.float32)
        padded[1 : n + 1] = x[: 4 * m + 7]
        weights = (2.0 ** np.arange(6, dtype=np.float32))[:, None]
        want = np.array([(padded[4 * t : 4 * t + 6] * weights).sum(0) for t in range(m)]).reshape(m, 8)
        np.testing.assert_array_equal(results[1], want)


STAY = {
    "read more often than written": {"times": "7", "read": "k % 6, w"},
    "lanes apart in the source": {
        "stored": f"strip[r * 2 + q, v] = select(1 <= {ROW} and {ROW} <= n, x[v % n, r * 2 + q], 0.0)"
    },
    "no place for each element": {
        "stored": f"strip[r + q, v] = select(1 <= {ROW} and {ROW} <= n, x[{ROW} - 1, v], 0.0)"
    },
    "never whole": {"stored": f"strip[r * 2 + q, v] = select(1 <= r * 2 + q and {ROW} <= n, x[{ROW} - 1, v], 0.0)"},
    "not padded": {"stored": "strip[r * 2 + q, v] = x[r * 2 + q, v]"},
    "something is written that the source may be": {
        "tail": "for p in 0..8 vectorized { z[p] = strip[0, p] }",
        "times": "5",
    },
}


@pytest.mark.parametrize("what", STAY)
def test_copies_that_stay(what: str) -> None:
    func = parse_func(FUNC.format(**(PARTS | STAY[what])))
    assert forward_copies(func) == func
