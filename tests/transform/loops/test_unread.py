"""Iterations whose results nothing reads: what is left makes all that is read, and loops that must run on."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.loops import For, If
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk
from tilewright.transform.loops.even import even_tails
from tilewright.transform.loops.unread import leave_out_unread

FUNC = """
func @blocks(x: f32[n], y: f32[n], z: f32[48]) where n in 0..200 {{
  for b in 0..(n + 47) // 48 {{
    alloc s: f32[48]
    alloc t: f32[48]
    for a in 0..12 {{ for c in 0..4 {{ s[a * 4 + c] = f32(b * 48 + a * 4 + c) }} }}
    for j in 0..4 {{
      {other}
      for k in 0..3 {{ for v in 0..4 vectorized {{ t[j * 12 + k * 4 + v] = {value} }} }}
    }}
    for i in 0..48 {{ {read} }}
  }}
}}
"""
PARTS = {
    "other": "",
    "value": "s[j * 12 + k * 4 + v] * 2.0",
    "read": "if b * 48 + i < n { y[b * 48 + i] = t[i] }",
}


def test_what_is_read_is_created() -> None:
    func = parse_func(FUNC.format(**PARTS))
    less = leave_out_unread(func)
    bounded = {
        s.var.name for s in walk(less.body) if isinstance(s, For) and s.var.name in "aj" and "min" in str(s.extent)
    }
    assert bounded == {"a", "j"}
    for n in (0, 1, 11, 12, 13, 47, 48, 49, 96, 107, 200):
        y = np.zeros(n, np.float32)
        interpret(less, [np.zeros(n, np.float32), y, np.zeros(48, np.float32)])
        np.testing.assert_array_equal(y, 2 * np.arange(n, dtype=np.float32))


STAY = {
    "another place is read": {"read": "if b * 48 + i < n { y[b * 48 + i] = t[47 - i] }"},
    "read without a condition": {"read": "z[i] = t[i]"},
    "read under another condition, too": {"read": "z[i] = t[i] if b * 48 + i < n { y[b * 48 + i] = t[i] }"},
    "something else is written": {"other": "z[j] = 1.0"},
}


@pytest.mark.parametrize("what", STAY)
def test_loops_that_run_on(what: str) -> None:
    less = leave_out_unread(parse_func(FUNC.format(**(PARTS | STAY[what]))))
    (loop,) = [s for s in walk(less.body) if isinstance(s, For) and s.var.name == "j"]
    assert str(loop.extent) == "4"


@pytest.mark.parametrize(("size", "where", "stops"), [("n", " where n in 0..200", True), ("100", "", False)])
def test_iterations_that_prefetch_weights_together(size: str, where: str, stops: bool) -> None:
    """Where weights come from memory a known number of tiles runs on, for the last ones prefetch their share; an
    unknown one may be a small part of a block, of which all the others would be in vain."""
    text = FUNC.replace(" where n in 0..200", where + " @nonresident_weights").replace("for k in 0..3 {{", NOTED)
    less = leave_out_unread(parse_func(text.format(**PARTS).replace("n]", f"{size}]").replace("< n", f"< {size}")
                                       .replace("n + 47", f"{size} + 47")))  # fmt: skip
    (loop,) = [s for s in walk(less.body) if isinstance(s, For) and s.var.name == "j"]
    assert (str(loop.extent) != "4") == stops


NOTED = "for k in 0..3 @prefetch(buffers=[x], nbytes=4096, rows=4) {{"


ROWS = """
func @products(x: f32[8], y: f32[n], z: f32[48]) where n in 0..200 {{
  for b in 0..(n + 47) // 48 {{
    alloc t: f32[48]
    for j in 0..8 {{
      alloc sums: f32[6] in local
      for r0 in 0..6 unrolled {{ sums[r0] = 0.0 }}
      for k in 0..8 {{ for r1 in 0..6 unrolled {{ sums[r1] = sums[r1] + x[k] * f32(b * 48 + j * 6 + r1) }} }}
      {other}
      for r2 in 0..6 unrolled {{ t[j * 6 + r2] = {value} }}
    }}
    for i in 0..48 {{ if b * 48 + i < n {{ y[b * 48 + i] = t[i] }} }}
  }}
}}
"""


@pytest.mark.parametrize(
    ("other", "value", "by_row"),
    [
        ("", "sums[r2]", True),
        ("", "sums[5 - r2]", False),
        ("for r3 in 0..6 unrolled { z[r3] = sums[r3] }", "1.0", False),
    ],
    ids=["rows", "other places of the tile", "something else is written"],
)
def test_rows_of_the_last_tile(other: str, value: str, by_row: bool) -> None:
    """Rows that nothing reads are not computed, where each row is computed by itself."""
    less = leave_out_unread(parse_func(ROWS.format(other=other, value=value)))
    (loop,) = [s for s in walk(less.body) if isinstance(s, For) and s.var.name == "j"]
    assert by_row == any(isinstance(s, If) for s in walk(loop.body))
    if not by_row:
        return
    x = np.arange(8, dtype=np.float32)
    even = even_tails(less)
    assert even is not less
    for n in (0, 1, 5, 6, 7, 8, 11, 12, 47, 48, 49, 55, 96, 100, 200):
        for func in (less, even):
            y = np.full(n, np.nan, np.float32)
            interpret(func, [x, y, np.zeros(48, np.float32)])
            np.testing.assert_array_equal(y, 28 * np.arange(n, dtype=np.float32))


def test_rows_that_were_tested_before_are_tested_once() -> None:
    """The operands of a row exist where the row is one of those that are read: the number of rows says both."""
    text = ROWS.format(other="", value="sums[r2]")
    for r in ("r0", "r1", "r2"):
        text = text.replace(
            f"for {r} in 0..6 unrolled {{", f"for {r} in 0..6 unrolled {{ if b * 48 + j * 6 + {r} < n {{"
        )
    text = text.replace("= 0.0 }", "= 0.0 } }").replace("r1) }", "r1) } }").replace("sums[r2] }", "sums[r2] } }")
    func = parse_func(text)
    less = leave_out_unread(func)
    (loop,) = [s for s in walk(less.body) if isinstance(s, For) and s.var.name == "j"]
    inside = [s for s in walk(loop.body) if isinstance(s, If)]
    assert len(inside) == 3 and all("min(" in str(s.condition) for s in inside)
    x = np.arange(8, dtype=np.float32)
    for n in (0, 1, 6, 7, 47, 48, 50, 96, 101):
        for each in (less, even_tails(less)):
            y = np.full(n, np.nan, np.float32)
            interpret(each, [x, y, np.zeros(48, np.float32)])
            np.testing.assert_array_equal(y, 28 * np.arange(n, dtype=np.float32))
