"""Straight-line programs for products with constant matrices: the product exactly, in few operations."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tilewright.arith.straight import Straight, operations, straight_line

Matrix = tuple[tuple[Fraction, ...], ...]


def value(program: Straight, x: list[Fraction]) -> list[Fraction]:
    values = list(x)
    for terms in program.variables:
        values.append(sum((factor * values[k] for factor, k in terms), Fraction(0)))
    return [sum((factor * values[k] for factor, k in terms), Fraction(0)) for terms in program.rows]


def check(matrix: Matrix, whole: bool = False) -> Straight:
    program = straight_line(matrix, whole=whole)
    rng = random.Random(1)
    x = [Fraction(rng.randint(-99, 99), 7) for _ in range(program.inputs)]
    assert value(program, x) == [sum((m * v for m, v in zip(row, x, strict=True)), Fraction(0)) for row in matrix]
    for number, terms in enumerate(program.variables):  # computed in order
        assert all(k < program.inputs + number for _, k in terms)
    return program


def matrix(rng: random.Random, rows: int, columns: int, entries: tuple[Fraction, ...]) -> Matrix:
    return tuple(tuple(rng.choice(entries) for _ in range(columns)) for _ in range(rows))


SMALL = tuple(Fraction(x) for x in (0, 1, -1, 2, "1/2", "1/3"))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 2), (4, 6), (8, 8), (13, 10), (16, 12), (64, 65)])
def test_the_product(rows: int, columns: int) -> None:
    """Few entries, many, and more than are searched."""
    for seed in range(3):
        inputs = matrix(random.Random(seed), rows, columns, SMALL)
        program = check(inputs)
        naive = sum(operations(tuple((x, k) for k, x in enumerate(row) if x)) for row in inputs)
        assert program.operations <= naive
        assert bool(program.variables) == (6 < rows * columns <= 4096) or rows * columns <= 6


@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (6, 6), (8, 8), (16, 12)])
def test_whole_numbers_stay_whole(rows: int, columns: int) -> None:
    """Entries of which many are multiples of others, and many are not: no variable is a half or a third of a sum."""
    fractions = 0
    for seed in range(5):
        inputs = matrix(random.Random(seed), rows, columns, tuple(map(Fraction, (0, 1, -1, 2, -2, 3, 4, -6))))
        program = check(inputs, whole=True)
        assert all(x.denominator == 1 for terms in (*program.variables, *program.rows) for x, _ in terms)
        fractions += any(x.denominator > 1 for terms in check(inputs).variables for x, _ in terms)
    assert rows < 6 or fractions


def test_operations_of_a_sum() -> None:
    one, half = Fraction(1), Fraction(1, 2)
    assert [operations(t) for t in ((), ((one, 0),), ((-one, 0), (half, 1)), ((half, 0),), ((half, 0), (half, 1)))] == [
        0, 0, 1, 1, 2,
    ]  # fmt: skip


def test_even_and_odd_parts_are_shared() -> None:
    """y0 = a + b + c + d, y1 = a - b + c - d: the sums of a, c and of b, d."""
    one = Fraction(1)
    program = check(((one, one, one, one), (one, -one, one, -one)))
    assert program.operations == 4 and len(program.variables) == 2


def test_rows_and_columns_that_are_sums_of_two_others() -> None:
    """In a matrix of many entries, of which no two rows share a pair: the last row is the first minus the second, the
    last column the sum of the first two."""
    rng = random.Random(0)
    primes = [Fraction(p) for p in range(1009, 4000, 2) if all(p % q for q in range(3, 64, 2))]
    rng.shuffle(primes)
    rows = [[primes.pop() for _ in range(11)] for _ in range(11)]
    rows.append([a - b for a, b in zip(rows[0], rows[1], strict=True)])
    arguments = tuple((*row, row[0] + row[1]) for row in rows)
    program = check(arguments)
    # 11 rows of 11 products and sums, 2 sums of inputs, one difference of rows.
    assert program.operations == 11 * 11 + 2 + 1


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_a_row_that_is_a_sum_whatever_the_signs(signs: tuple[int, int]) -> None:
    rng = random.Random(0)
    rows = [[Fraction(rng.getrandbits(30) | 1) for _ in range(12)] for _ in range(11)]
    rows.append([signs[0] * a + signs[1] * b for a, b in zip(rows[0], rows[1], strict=True)])
    assert check(tuple(map(tuple, rows))).operations == 11 * 12 + 1


def test_factors_are_exact_binary_fractions() -> None:
    """The factor b is scaled among 3a + b and its multiples: a third would be rounded."""
    three, one = Fraction(3), Fraction(1)
    program = check(((three, one), (2 * three, 2 * one)))
    assert program.variables == (((three, 0), (one, 1)),)
    program = check(((one, three), (2 * one, 2 * three)))
    assert program.variables == (((one, 0), (three, 1)),)
