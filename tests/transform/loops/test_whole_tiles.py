"""Last tiles of a transposition that are moved back until they are whole."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.parser import parse_func
from tilewright.ir.verify import verify_func
from tilewright.transform.loops.whole_tiles import whole_tiles


def tile(first: int, rows: int, results: int = 16, value: str = "t{n}[p{n}, q{n}]") -> str:
    """The text of a tile of `rows` rows of x from row `first` on, of whose columns `results` are stored."""
    n = f"{first}_{results}"
    value = value.format(n=n)
    return (
        f"alloc t{n}: f32[16, 16] in local {{ for i{n} in 0..{rows} unrolled {{ for k{n} in 0..16 vectorized {{ "
        f"t{n}[i{n}, k{n}] = x[c, {first} + i{n}, k{n}] }} }} for q{n} in 0..{results} unrolled {{ "
        f"for p{n} in 0..{rows} vectorized {{ y[c, q{n}, {first} + p{n}] = {value} }} }} }} "
    )


def transposition(body: str, rows: int, notes: str = "") -> str:
    return f"func @f(x: f32[2, {rows}, 16], y: f32[2, 16, {rows}]) {notes} {{ for c in 0..2 {{ {body} }} }}"


def rows_of_tiles(text: str) -> list[int]:
    return [int(line.split("..")[1].split()[0]) for line in text.splitlines() if line.strip().startswith("for i")]


@pytest.mark.parametrize("rows", [17, 28, 31])
def test_the_last_tile_is_whole(rows: int) -> None:
    func = parse_func(transposition(tile(0, 16) + tile(16, rows - 16), rows))
    result = whole_tiles(func)
    verify_func(result)
    assert rows_of_tiles(str(func)) == [16, rows - 16] and rows_of_tiles(str(result)) == [16, 16]
    x = np.random.default_rng(0).standard_normal((2, rows, 16)).astype("f4")
    y = np.full((2, 16, rows), np.nan, np.float32)
    interpret(result, [x, y])
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1))


def test_each_branch_under_one_condition() -> None:
    parts = [f"if c < 1 {{ {tile(a, n)} }} else {{ {tile(a, n, 13)} }} " for a, n in ((0, 16), (16, 12))]
    func = parse_func(transposition("".join(parts), 28))
    verify_func(func)
    result = whole_tiles(func)
    verify_func(result)
    assert rows_of_tiles(str(func)) == [16, 16, 12, 12] and rows_of_tiles(str(result)) == [16] * 4
    x = np.random.default_rng(0).standard_normal((2, 28, 16)).astype("f4")
    y = np.full((2, 16, 28), np.nan, np.float32)
    interpret(result, [x, y])
    np.testing.assert_array_equal(y[0], x[0].T)
    np.testing.assert_array_equal(y[1, :13], x[1].T[:13])
    assert np.isnan(y[1, 13:]).all()


@pytest.mark.parametrize(
    "body",
    [
        tile(0, 16) + tile(20, 8),  # not next to each other
        tile(0, 16) + tile(16, 12, 13),  # other columns
        tile(0, 16) + tile(16, 12, value="t{n}[p{n}, q{n}] * 2.0"),  # not the same values
        tile(0, 16) + tile(16, 12).replace("x[c", "x[1 - c"),  # another part of the source
        tile(0, 16) + tile(16, 12).replace("y[c, q16_16, 16 + p16_16]", "x[c, 16 + p16_16, q16_16]"),
        "".join(  # in place
            tile(a, n).replace(f"y[c, q{a}_16, {a} + p{a}_16]", f"x[c, {a} + p{a}_16, q{a}_16]")
            for a, n in ((0, 16), (16, 12))
        ),
        tile(0, 4) + tile(4, 3),  # small ones are transposed where they stand
        f"if c < 1 {{ {tile(0, 16)} }} " + tile(16, 12),
        tile(16, 12) + tile(0, 16),
        tile(0, 16).replace("..16 unrolled { for p", "..c + 1 unrolled { for p")  # other columns, by a variable
        + tile(16, 12).replace("..16 unrolled { for p", "..c + 2 unrolled { for p"),
        "".join(f"if y[0, 0, 0] < 1.0 {{ {tile(a, n)} }} " for a, n in ((0, 16), (16, 12))),  # which the first changes
    ],
)
def test_other_statements_stay(body: str) -> None:
    func = parse_func(transposition(body, 28))
    assert whole_tiles(func) is func


def test_parameters_that_may_share_memory_stay() -> None:
    func = parse_func(transposition(tile(0, 16) + tile(16, 12), 28, "@may_alias"))
    assert whole_tiles(func) is func
