"""Computations that versions share are done before the tests that choose one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import run
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.parser import parse_func
from tilewright.targets.target import Target

VERSION = """
      for k in 0..8 {note} {{
        for r in 0..{rows} unrolled {{
          for v in 0..16 vectorized {{ y[7*p + r, v] = y[7*p + r, v] + x[{first} + r, k] * w[{panel}, k, v] }}
        }}
      }}
"""
NOTE = "@prefetch(buffers=[w], nbytes=512, lines=1, rows=12, strip=12)"


def versions(panel: str = "p % 3", first: str = "7*p") -> str:
    t = [VERSION.format(rows=rows, panel=panel, first=first, note=NOTE) for rows in (1, 2, 3)]
    head = "func @f(x: f32[n, 8], w: f32[3, 8, 16], d: f32[m, 3], y: f32[n, 16]) where n in 1..100, m in 0..9 {"
    head += " for p in 0..(n + 6)//7 parallel {"
    chain = f"if n - 7*p == 1 {{ {t[0]} }} else if n - 7*p == 2 {{ {t[1]} }} else {{ if 3 <= n - 7*p {{ {t[2]} }} }}"
    return f"{head} {chain} }} }}"


def test_shares_and_bases_are_computed_once() -> None:
    text = emit_llvm(parse_func(versions()), Target.parse("x86-64-v3"))
    assert text.count("urem") == 3, "p % 3, the place in the strip, and the threads' share of p"
    assert text.count(" freeze ") == 3, "where x, w and y begin for this panel"
    before, *_ = text.split("\nthen")
    assert before.count(" freeze ") == 3


@pytest.mark.parametrize(("panel", "first"), [("p % m", "7*p"), ("p // m % 3", "7*p"), ("p % 3", "7*p // m")])
def test_what_one_branch_alone_may_divide_by_stays_there(panel: str, first: str) -> None:
    """m may be 0 where no branch is taken."""
    text = emit_llvm(parse_func(versions(panel, first)), Target.parse("x86-64-v3"))
    before, *_ = text.split("\nthen")
    assert "%m" in text.split("\nthen", 1)[1]
    assert "%m" not in before.split("{", 1)[1]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 10, 17, 24])
def test_the_result_is_that_of_the_interpreter(n: int) -> None:
    func, rng = parse_func(versions()), np.random.default_rng(n)
    x, w = rng.standard_normal((n, 8)).astype(np.float32), rng.standard_normal((3, 8, 16)).astype(np.float32)
    got, want = (np.ones((n, 16), np.float32) for _ in range(2))
    run(func, x, w, np.zeros((2, 3), np.float32), got, n=n, m=2)
    interpret(func, [x, w, np.zeros((2, 3), np.float32), want])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
