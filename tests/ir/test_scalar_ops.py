"""The meaning of the scalar operators, at single values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tilewright.ir.scalar_ops import OPS

INF, NAN = math.inf, math.nan


def value(name: str, *args: Any, dtype: Any = np.float64) -> Any:
    with np.errstate(over="raise", invalid="ignore"):
        result = np.asarray(OPS[name].numpy(*(np.asarray(a, dtype) for a in args)))
    assert result.dtype == dtype or OPS[name].rule == "bool"
    return result[()]


@pytest.mark.parametrize("x", [-800.0, -3.0, -0.5, 0.0, 0.25, 2.0, 800.0])
def test_functions_of_one_number(x: float) -> None:
    """Far from zero too, where an exponential by itself is no number any more."""
    normal = 0.5 * math.erfc(-x / math.sqrt(2))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    wanted = {
        "sigmoid": 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
        "erf": math.erf(x),
        "gelu": x * normal,
        "gelu_tanh": x * 0.5 * (1 + math.tanh(inner)),
    }
    for name, want in wanted.items():
        assert value(name, x) == pytest.approx(want, rel=1e-13, abs=1e-15), name


@pytest.mark.parametrize(
    ("name", "a", "b", "wanted"),
    [
        ("floordiv", -7, 2, -4),
        ("floordiv", 7, 0, 0),
        ("mod", -7, 2, 1),
        ("mod", 7, 0, 0),
        ("mod", 7, -2, -1),
        ("truncdiv", -7, 2, -3),
        ("truncdiv", 7, -2, -3),
        ("truncdiv", -7, -2, 3),
        ("truncdiv", -8, 2, -4),
        ("truncdiv", 7, 2, 3),
        ("truncdiv", 7, 0, 0),
        ("truncmod", -7, 2, -1),
        ("truncmod", 7, -2, 1),
        ("truncmod", 7, 0, 0),
    ],
)
def test_quotients_and_remainders(name: str, a: int, b: int, wanted: int) -> None:
    assert value(name, a, b, dtype=np.int32) == wanted


@pytest.mark.parametrize(
    ("x", "n", "wanted"),
    [
        (3.0, 2.0, 12.0),
        (3.0, -1.5, 0.75),
        (3.0, 0.5, 3.0),
        (0.0, 9000.0, 0.0),
        (3.0, 9000.0, INF),
        (3.0, -9000.0, 0.0),
        (1e-300, 1100.0, 1e-300 * 2.0**550 * 2.0**550),
        (3.0, INF, INF),
        (-3.0, INF, -INF),
        (3.0, -INF, 0.0),
        (3.0, NAN, NAN),
    ],
)
def test_scaleb(x: float, n: float, wanted: float) -> None:
    with np.errstate(all="ignore"):
        got = np.asarray(OPS["scaleb"].numpy(np.float64(x), np.float64(n)))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, wanted)
    with np.errstate(all="ignore"):
        half = np.asarray(OPS["scaleb"].numpy(np.float16(x), np.float16(n)))
    assert half.dtype == np.float16


def test_lookup_stays_in_its_table() -> None:
    assert [OPS["lookup"].numpy(np.int64(k), 5, 7, 9) for k in (-3, 0, 1, 2, 3, 40)] == [5, 5, 7, 9, 9, 9]


def test_larger_takes_the_first_where_a_number_is_missing() -> None:
    for a, b, want in ((1.0, 2.0, 2.0), (2.0, 1.0, 2.0), (1.0, NAN, 1.0), (NAN, 1.0, NAN)):
        np.testing.assert_array_equal(value("larger", a, b), want)
    assert value("fma", 2.0, 3.0, 4.0) == 10.0
