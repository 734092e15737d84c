"""Blocks of about equal size: every row once, no more blocks than before, and loops that stay as they are."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.expr import as_int
from tilewright.ir.loops import For, Let
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import substitute, walk
from tilewright.transform.loops.fit import fit_buffers
from tilewright.transform.loops.portions import even_blocks
from tilewright.transform.loops.unread import leave_out_unread

FUNC = """
func @blocks(x: f32[n], y: f32[n], z: f32[40]) where n in {least}..100 {{
  for b in 0..(n + 11) // 12 @even_blocks(size=12, unit={unit}) {{
    alloc t: f32[12]
    for i in 0..12 {{ t[i] = {value} }}
    for j in 0..12 {{ {read} }}
  }}
}}
"""
PARTS = {
    "least": 0,
    "unit": 4,
    "value": "x[(b * 12 + i) % n] * f32((b * 12 + i) % n // 3 * 2)",
    "read": "if b * 12 + j < n { y[b * 12 + j] = y[b * 12 + j] + t[j] }",
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("unit", [1, 2, 3, 4, 12])
@pytest.mark.parametrize("least", [0, 1])
def test_every_row_once(least: int, unit: int) -> None:
    func = parse_func(FUNC.format(**(PARTS | {"least": least, "unit": unit})))
    even = even_blocks(func)
    assert any(isinstance(s, Let) for s in walk(even.body)) and "even_blocks" not in str(even)
    shorter = fit_buffers(leave_out_unread(even))
    for n in range(least, 60):
        x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
        want = x * (np.arange(n) // 3 * 2).astype(np.float32)
        for each in (even, shorter):
            y = np.zeros_like(x)
            interpret(each, [x, y, np.zeros(40, np.float32)])
            np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("unit", [1, 3, 4])
def test_blocks_are_alike_and_no_more_than_before(unit: int) -> None:
    even = even_blocks(parse_func(FUNC.format(**(PARTS | {"unit": unit}))))
    (named,) = [s for s in walk(even.body) if isinstance(s, Let)]
    (loop,) = [s for s in walk(even.body) if isinstance(s, For) and s.var.name == "b"]
    (n,) = even.symbols
    for count in range(1, 100):
        size = as_int(substitute(named.value, {n: count}))
        blocks = as_int(substitute(loop.extent, {n: count, named.var: size}))
        assert size is not None and blocks is not None
        assert size <= 12 and size % unit == 0 and blocks <= ceil(count / 12)
        last = count - (blocks - 1) * size
        assert 0 < last <= size
        assert size == ceil(ceil(count / unit) / ceil(count / 12)) * unit


STAY = {
    "the block's own number": {"value": "f32(b)"},
    "half of a row's number": {"value": "x[(b * 6 + i) % n]"},
    "parts of a row that blocks are whole numbers of": {"value": "f32((b * 12 + i) // 3)"},
    "something that no row is": {"read": "z[b + j] = 1.0 if b * 12 + j < n { y[b * 12 + j] = t[j] }"},
    "two numbers of rows": {"read": "if b * 12 + j < n { y[b * 12 + j] = t[j] } if b * 12 + j < n - 1 { z[j] = t[j] }"},
    "no condition": {"read": "z[j] = t[j]"},
}


@pytest.mark.parametrize("what", STAY)
def test_loops_that_stay(what: str) -> None:
    text = FUNC.format(**(PARTS | STAY[what]))
    ordinary = text.replace(" @even_blocks(size=12, unit=4)", "")
    assert str(even_blocks(parse_func(text))) == str(parse_func(ordinary))


def test_known_numbers_of_rows_stay() -> None:
    loops = FUNC.format(**PARTS).replace(" where n in 0..100", "").replace("[n]", "[30]").replace("(n + 11) // 12", "3")
    text = loops.replace("% n]", "% 30]").replace("< n {", "< 30 {")
    assert str(even_blocks(parse_func(text))) == str(parse_func(text.replace(" @even_blocks(size=12, unit=4)", "")))
