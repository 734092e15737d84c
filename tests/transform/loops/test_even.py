"""The last tiles of a symbolic number of rows: every row once, and loops that must stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.parser import parse_func
from tilewright.transform.loops.even import even_tails

FUNC = """
func @rows(a: f32[n, 4], b: f32[{size}], c: f32[n, 4]) where n in 0..100 {{
  for i in 0..(n + {less}) // {size} {{
    alloc t: f32[{size}, 4] in local
    for r in 0..{size} unrolled {{ if i * {size} + r < n {{ for v in 0..4 {{ t[r, v] = {value} }} }} }}
    for q in 0..{size} unrolled {{
      if i * {size} + q < n {{
        for w in 0..4 {{ {stored} }}
      }}
    }}
  }}
}}
"""
MOVED = "a[i * {size} + r, v] * f32(i * {double} + r * 2 + 7)"
ADDED = "c[i * {size} + q, w] = c[i * {size} + q, w] + t[q, w]"


def last_tile(size: int) -> str:
    return f" @last_tile(rows={size + 1})"


def rows(size: int, value: str = MOVED, stored: str = ADDED) -> str:
    sizes = {"size": size, "less": size - 1, "double": 2 * size}
    return FUNC.format(**sizes, value=value.format(**sizes), stored=stored.format(**sizes))


@pytest.mark.parametrize("size", [3, 4, 5, 8, 13, 14])
def test_every_row_once(size: int) -> None:
    func = parse_func(rows(size))
    even = even_tails(func)
    assert even != func
    for n in range(3 * size + 2):
        a = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        got = np.zeros_like(a)
        interpret(even, [a, np.zeros(size, np.float32), got])
        np.testing.assert_array_equal(got, a * (2 * np.arange(n, dtype=np.float32)[:, None] + 7))


@pytest.mark.daily(3)
@pytest.mark.parametrize("stored", [ADDED, "c[i * {size} + q, w] = exp(t[q, w] * 0.01)"], ids=["stored", "computed"])
@pytest.mark.parametrize("size", [3, 4, 12])
def test_a_row_more_in_the_last_tile(size: int, stored: str) -> None:
    """Where one row is left it is part of the last tile; nothing else is different, and there is no version of a whole
    tile."""
    loops = rows(size, stored=stored)
    func, more = (
        parse_func(loops.replace(f"// {size} {{", f"// {size}{note} {{", 1)) for note in ("", last_tile(size))
    )
    even = even_tails(more)
    versions = [f"i_rows == {n} " in str(even) for n in range(size + 3)]
    assert versions == [0 < n <= size + 1 and n != size for n in range(size + 3)]
    for n in range(3 * size + 3):
        a = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        got, want = np.zeros_like(a), np.zeros_like(a)
        interpret(even, [a, np.zeros(size, np.float32), got])
        interpret(func, [a, np.zeros(size, np.float32), want])
        np.testing.assert_array_equal(got, want)


def test_more_rows_than_versions_may_have() -> None:
    loops = rows(13)
    assert str(even_tails(parse_func(loops.replace("// 13 {", "// 13 @last_tile(rows=14) {", 1)))).replace(
        " @last_tile(rows=14)", ""
    ) == str(even_tails(parse_func(loops)))


def test_numbers_of_rows_that_do_not_come_have_no_version() -> None:
    """Where one row and two have versions of the function, three are the fewest of a last tile; of more than a tile
    they are half of it."""
    loops = rows(8).replace("n in 0..100", "n in 1..100")
    start, end = loops.index("  for i"), loops.rindex("}")
    fewer = "for r in 0..{n} {{ for v in 0..4 {{ c[r, v] = a[r, v] * f32(r * 2 + 7) }} }}"
    versions = [f"if n == {n} {{ {fewer.format(n=n)} }} else {{" for n in (2, 1)]
    func = parse_func(f"{loops[:start]} {' '.join(versions)} {loops[start:end]} }} }} }}")
    even, alone = even_tails(func), even_tails(parse_func(loops))
    assert [f"i_rows == {n} " in str(alone) for n in range(8)] == [n > 0 for n in range(8)]
    assert [f"i_rows == {n} " in str(even) for n in range(8)] == [n > 2 for n in range(8)]
    for n in range(1, 27):
        a = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        got = np.zeros_like(a)
        interpret(even, [a, np.zeros(8, np.float32), got])
        np.testing.assert_array_equal(got, a * (2 * np.arange(n, dtype=np.float32)[:, None] + 7))


PARTS = """
func @parts(a: f32[n, 4], c: f32[n, 4]) where n in 0..200 {
  for p in 0..(n + 19) // 20 parallel {
    for i in 0..4 {
      alloc t: f32[5, 4] in local
      for r in 0..5 unrolled {
        if p * 20 + i * 5 + r < n { for v in 0..4 { t[r, v] = a[p * 20 + i * 5 + r, v] } }
      }
      for q in 0..5 unrolled {
        if p * 20 + i * 5 + q < n { for w in 0..4 { c[p * 20 + i * 5 + q, w] = t[q, w] * f32(n) } }
      }
    }
  }
}
"""


def test_every_row_once_of_each_part() -> None:
    """Parts of so many rows that a number of tiles fills them: the tiles of the last one."""
    func = parse_func(PARTS)
    even = even_tails(func)
    assert "i_rows" in str(even)
    for n in range(67):
        a = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        got = np.zeros_like(a)
        interpret(even, [a, got])
        np.testing.assert_array_equal(got, a * n)


def test_parts_after_the_last_row_have_none() -> None:
    place = "c[p * 20 + i * 5 + q, w]"
    func = parse_func(PARTS.replace("(n + 19) // 20 parallel", "10").replace(f"{place} =", f"{place} = {place} +"))
    even = even_tails(func)
    assert "i_rows" in str(even)
    for n in (0, 1, 7, 20, 33, 101, 199):
        a = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        got = np.zeros_like(a)
        interpret(even, [a, got])
        np.testing.assert_array_equal(got, a * n)


@pytest.mark.parametrize("operation", ["exp", ""])
def test_epilogues_have_no_versions(operation: str) -> None:
    """The tile of an epilogue goes through memory; what is only stored has a version for each number of rows."""
    stored = f"c[i * {{size}} + q, w] = {operation}(t[q, w] * 0.01)"
    func, copied = parse_func(rows(5, stored=stored)), parse_func(rows(5, stored="c[i * {size} + q, w] = t[q, w]"))
    even = even_tails(func)
    assert str(even).count("0.01") == 2 and "t_raw" in str(even)
    assert str(even_tails(copied)).count("c[") == 5 and "t_raw" not in str(even_tails(copied))
    for n in range(17):
        a = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        got, want = np.zeros_like(a), np.zeros_like(a)
        interpret(even, [a, np.zeros(5, np.float32), got])
        interpret(func, [a, np.zeros(5, np.float32), want])
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [2, 15, 16])
def test_tiles_of_a_small_number_of_rows_and_of_several_stay(size: int) -> None:
    func = parse_func(rows(size))
    assert even_tails(func) == func


STAY = {
    "a place in the tile is not a row": {"value": "a[i * {size} + r, v] + b[r]"},
    "the number of the tile": {"value": "a[i * {size} + r, v] + f32(i)"},
    "a condition on a row's number": {"value": "select(i * {size} + r < 7, a[i * {size} + r, v], 0.0)"},
    "rows in another order": {"value": "a[r * 2 + i, v]"},
    "half of a row's number": {"value": "select(i % 2 == 0, a[i * {size} + r, v], 0.0)"},
    "one place of each tile": {"stored": "b[q] = t[q, w]"},
}


@pytest.mark.parametrize("what", STAY)
def test_loops_that_stay(what: str) -> None:
    func = parse_func(rows(5, **STAY[what]))
    assert even_tails(func) == func


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("for i in 0..(n + 4) // 5 {", "for i in 0..(n + 4) // 5 parallel {"),
        ("for i in 0..(n + 4) // 5 {", "for i in 0..(n + 9) // 5 {"),
        ("for r in 0..5 unrolled", "for r in 0..5"),
        ("if i * 5 + q < n {", "if i * 5 + q < n - 1 {"),
        ("if i * 5 + r < n {", "if i * 6 + r < n {"),
    ],
)
def test_loops_of_another_form_stay(old: str, new: str) -> None:
    text = rows(5)
    assert old in text
    func = parse_func(text.replace(old, new, 1))
    assert even_tails(func) == func
