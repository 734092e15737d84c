"""Index polynomials: equal addresses have equal forms, lanes can be read off."""

from __future__ import annotations

import pytest

from tilewright.codegen.llvm.polynomial import Atoms, Converter, add, as_constant, key, multiply, split_lane
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Buffer, Expr, Var, const

i, j, n, v = Var("i"), Var("j"), Var("n"), Var("v")


def converter(**constants: int) -> Converter:
    return Converter(Atoms(), {Var(name): value for name, value in constants.items()})


def test_equal_offsets_are_equal() -> None:
    c = converter()
    assert key(c.poly((i + 1) * n - j)) == key(c.poly(n + i * n - j))
    assert as_constant(add(c.poly(i * 3 + 2), c.poly(i * 3), -1)) == 2


def test_constants_of_unrolled_loops_fold_even_inside_divisions() -> None:
    c = converter(i=7, j=2)
    assert as_constant(c.poly(i // 2 * 10 + (i * 3 + j) % 5)) == 30 + 23 % 5
    assert as_constant(c.poly((i << const(2)) - j)) == 26


def test_fused_index_is_put_together_once_more() -> None:
    c = converter()
    b = Buffer("b", f32, (const(6), const(7), const(3)))
    fused = i * 16 + v
    offset = c.offset(b, (fused // 7, fused % 7, const(1)))
    assert key(offset) == key(c.poly(fused * 3 + 1))


@pytest.mark.parametrize("width", [n, n // 2, n + 3])
def test_fused_index_over_lines_of_any_length(width: Expr) -> None:
    c = converter(j=5)
    b = Buffer("b", f32, (const(6), n, width, const(3)))
    fused = i * 16 + v + j
    offset = c.offset(b, (const(2), fused // width, fused % width, const(1)))
    assert key(offset) == key(c.poly(2 * n * width * 3 + (i * 16 + v + 5) * 3 + 1))
    other = c.offset(b, (const(0), fused // (width + 1), fused % width, const(0)))
    assert key(other) != key(c.poly(fused * 3))


def test_a_fused_index_is_put_together_whose_remainder_was_simplified() -> None:
    c = converter()
    x = Buffer("x", f32, (const(36), const(36)))
    start = i % 27 * 12
    whole = c.offset(x, ((start + v) // 36 + i % 27, (i * 12 + v) % 36))
    assert key(whole) == key(c.poly(i % 27 * 48 + v))
    other = c.offset(x, ((start + v) // 36, (i * 11 + v) % 36))
    assert key(other) == key(add(multiply(c.poly((start + v) // 36), c.poly(const(36))), c.poly((i * 11 + v) % 36)))


def test_lane_coefficient() -> None:
    c = converter()
    lane = c.atoms.number(v)
    rest, coefficient = split_lane(c.poly(i * n + v * 4 + v * n + 3), lane)
    assert key(rest) == key(c.poly(i * n + 3))
    assert coefficient is not None
    assert key(coefficient) == key(c.poly(n + 4))
    assert split_lane(multiply(c.poly(v), c.poly(v + 1)), lane)[1] is None
