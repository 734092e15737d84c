"""The language, case by case: elements, types, indices and shapes, against NumPy."""

from __future__ import annotations

import cProfile
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.te.conformance import close, evaluate, random
from tilewright import te
from tilewright.ir.dtype import f16
from tilewright.support.errors import ExpressionError

N = te.var("n")


def unary(dtype: str, values: Any, body: Callable[[Any], Any]) -> Any:
    """`body` of each value."""
    x = np.asarray(values, dtype)
    a = te.placeholder(x.shape, dtype, name="A")
    return evaluate(te.compute(x.shape, lambda i: body(a[i]), name="B"), [(a, x)])[0]


def binary(dtype: str, x: Any, y: Any, body: Callable[[Any, Any], Any]) -> Any:
    a, b = te.placeholder(x.shape, dtype, name="A"), te.placeholder(x.shape, dtype, name="B")
    c = te.compute(x.shape, lambda i: body(a[i], b[i]), name="C")
    return evaluate(c, [(a, x), (b, y)], schedule=_vectors(c))[0]


def _vectors(c: te.Tensor) -> Callable[[Any], Any]:
    return lambda s: s[c].vectorize(s[c].split(c.axis[0], 8)[1])


ARITHMETIC = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul], ids=lambda f: f.__name__)
def test_arithmetic(dtype: str, op: Callable[[Any, Any], Any]) -> None:
    """Integers wrap around."""
    x, y = random((19,), dtype, 1), random((19,), dtype, 2)
    if np.dtype(dtype).kind != "f":
        x[:2] = np.iinfo(dtype).max
    close(binary(dtype, x, y, op), op(x, y))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
def test_bits(dtype: str, op: Callable[[Any, Any], Any]) -> None:
    x, y = random((19,), dtype, 1), random((19,), dtype, 2)
    close(binary(dtype, x, y, op), op(x, y))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_shifts_and_complements(dtype: str) -> None:
    x = random((19,), dtype, 1)
    close(unary(dtype, x, lambda e: e << 3), x << 3)
    close(unary(dtype, x, lambda e: e >> 2), x >> 2)
    close(unary(dtype, x, lambda e: ~e), ~x)
    close(unary(dtype, x, lambda e: -e), -x)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_counting_bits(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([0, 1, 2, 3, info.max, info.min, info.max // 3, 12], dtype)
    words = [int(v) & ((1 << info.bits) - 1) for v in x]
    close(unary(dtype, x, te.popcount), np.array([w.bit_count() for w in words]))
    close(unary(dtype, x, te.clz), np.array([info.bits - w.bit_length() for w in words]))
    close(unary(dtype, x, te.ctz), np.array([(w & -w).bit_length() - 1 if w else info.bits for w in words]))


def _trunc(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


DIVISIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[int, int], int]]] = {
    "floordiv": (operator.floordiv, lambda a, b: a // b if b else 0),
    "mod": (operator.mod, lambda a, b: a % b if b else 0),
    "truncdiv": (te.truncdiv, _trunc),
    "truncmod": (te.truncmod, lambda a, b: a - _trunc(a, b) * b if b else 0),
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_divisions(name: str, dtype: str) -> None:
    """All signs; by zero gives zero."""
    body, meaning = DIVISIONS[name]
    low = 0 if dtype == "uint8" else -7
    pairs = [(a, b) for a in range(low, 8) for b in range(max(low, -4), 5)]
    x, y = np.array([a for a, _ in pairs], dtype), np.array([b for _, b in pairs], dtype)
    close(binary(dtype, x, y, body), np.array([meaning(a, b) for a, b in pairs], dtype))


@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 8, -3])
def test_divisions_of_axes(divisor: int) -> None:
    """Index arithmetic, which the simplifier may rewrite."""
    b = te.compute((40,), lambda i: (i - 17) // divisor * 100 + (i - 17) % divisor, name="B")
    i = np.arange(40) - 17
    close(evaluate(b, [])[0], i // divisor * 100 + i % divisor)


COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.mark.parametrize("op", COMPARISONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8"])
def test_comparisons(op: Callable[[Any, Any], Any], dtype: str) -> None:
    x, y = random((19,), dtype, 1).round(), random((19,), dtype, 2).round()
    if dtype == "float32":
        x[:4], y[2:6] = [np.nan, np.inf, -np.inf, 0], np.nan
    close(binary(dtype, x, y, lambda a, b: te.cast(op(a, b), "int32")), op(x, y).astype(np.int32))
    close(binary(dtype, x, y, op), op(x, y))


CASTS = [
    ("float32", "int32"),
    ("float32", "uint8"),
    ("float32", "float16"),
    ("float32", "float64"),
    ("float64", "float32"),
    ("float16", "float32"),
    ("int8", "float32"),
    ("uint8", "int8"),
    ("int32", "int8"),
    ("int64", "int32"),
    ("int32", "bool"),
    ("bool", "float32"),
    ("bool", "int64"),
    ("float32", "bool"),
]


@pytest.mark.parametrize(("start", "end"), CASTS)
def test_casts(start: str, end: str) -> None:
    x = np.abs(random((19,), start, 3) * 3) if end == "uint8" and start == "float32" else random((19,), start, 3)
    with np.errstate(all="ignore"):
        close(unary(start, x, lambda e: te.cast(e, end)), x.astype(end))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    name: getattr(np, name)
    for name in (
        "exp exp2 expm1 log log2 log1p sqrt sin cos tan sinh cosh tanh arctan arcsinh arcsin arccos arctanh "
        "floor ceil trunc abs"
    ).split()
} | {
    "rsqrt": lambda v: 1 / np.sqrt(v),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "round": np.rint,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x = np.linspace(0.05, 0.95, 19, dtype=np.float32) * (1 if name in ("arcsin", "arccos", "arctanh") else 3)
    close(unary("float32", x, getattr(te, name)), FUNCTIONS[name](x.astype(np.float64)).astype(np.float32), 2e-6)


def test_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5], np.float32)
    close(unary("float32", x, lambda e: te.cast(te.isnan(e), "int8")), np.isnan(x).astype(np.int8))
    close(unary("float32", x, lambda e: te.cast(te.isinf(e), "int8")), np.isinf(x).astype(np.int8))
    close(unary("float32", x, lambda e: te.cast(te.isfinite(e), "int8")), np.isfinite(x).astype(np.int8))
    close(unary("float32", x, lambda e: te.maximum(e, 1.0)), np.maximum(x, np.float32(1)))
    close(unary("float32", x, lambda e: te.minimum(e, 1.0)), np.minimum(x, np.float32(1)))


def test_pairs_of_floats() -> None:
    x, y = random((19,), seed=1), np.abs(random((19,), seed=2)) + 0.5
    close(binary("float32", x, y, te.fmod), np.fmod(x, y))
    close(binary("float32", x, y, te.atan2), np.arctan2(x, y))
    close(binary("float32", y, x, te.power), np.power(y, x))
    close(binary("float32", x, y, operator.truediv), x / y)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_remainders_of_floats(dtype: str) -> None:
    """`%` has the sign of the divisor, zeros too, as in NumPy; what is no number stays none."""
    special = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 0.75, np.inf, -np.inf, np.nan, 5.5, -5.5, 1000.0, -0.1]
    x, y = (g.ravel().astype(dtype) for g in np.meshgrid(special, special))
    got = binary(dtype, x, y, operator.mod)
    with np.errstate(invalid="ignore"):
        expected = np.remainder(x, y)
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(expected)[number])
    finite = np.array([7.5, -7.5, 2.0, -0.5], dtype)
    np.testing.assert_array_equal(unary(dtype, finite, lambda e: e % -2.0), finite % np.array(-2, dtype))
    np.testing.assert_array_equal(unary(dtype, finite, lambda e: -9.25 % e), np.array(-9.25, dtype) % finite)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_quotients_of_floats(dtype: str) -> None:
    """`//` rounds to minus infinity, as NumPy's does, with its zeros; what is no number stays none."""
    special = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 0.75, np.inf, -np.inf, np.nan, 5.5, -5.5, 1000.0, -0.1, 0.1, 0.3]
    x, y = (g.ravel().astype(dtype) for g in np.meshgrid(special, special))
    got = binary(dtype, x, y, operator.floordiv)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.floor_divide(x, y)
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(expected)[number])
    x, y = random((400,), dtype, 3) * 50, random((400,), dtype, 4)
    np.testing.assert_array_equal(binary(dtype, x, y, operator.floordiv), np.floor_divide(x, y))
    finite = np.array([7.5, -7.5, 2.0, -0.5], dtype)
    np.testing.assert_array_equal(unary(dtype, finite, lambda e: e // -2.0), finite // np.array(-2, dtype))
    np.testing.assert_array_equal(unary(dtype, finite, lambda e: -9.25 // e), np.array(-9.25, dtype) // finite)


def test_a_remainder_of_two_types_is_refused() -> None:
    a, b = te.placeholder((3,), name="A"), te.placeholder((3,), "float64", name="B")
    with pytest.raises(ExpressionError, match="mod"):
        te.compute((3,), lambda i: a[i] % b[i])


INDEXING: dict[str, tuple[tuple[Any, ...], Callable[..., Any], tuple[Any, ...], Callable[[Any], Any]]] = {
    "copy": ((7, 5), lambda a, i, j: a[i, j], (7, 5), lambda x: x),
    "transpose": ((5, 7), lambda a, i, j: a[j, i], (7, 5), lambda x: x.T),
    "reverse": ((9,), lambda a, i: a[8 - i], (9,), lambda x: x[::-1]),
    "every other": ((9,), lambda a, i: a[i * 2], (5,), lambda x: x[::2]),
    "backwards by three": ((12,), lambda a, i: a[11 - i * 3], (4,), lambda x: x[::-3]),
    "broadcast": ((5,), lambda a, i, j: a[j], (7, 5), lambda x: np.broadcast_to(x, (7, 5))),
    "outer": ((5,), lambda a, i, j: a[i] * a[j], (5, 5), lambda x: np.outer(x, x)),
    "diagonal": ((6, 6), lambda a, i: a[i, i], (6,), np.diagonal),
    "flatten": ((4, 6), lambda a, i: a[i // 6, i % 6], (24,), lambda x: x.reshape(24)),
    "reshape": ((4, 6), lambda a, i, j, k: a[(i * 12 + j * 4 + k) // 6, (j * 4 + k) % 6], (2, 3, 4), None),
    "pack": ((13,), lambda a, i, j: te.if_then_else(i * 4 + j < 13, a[i * 4 + j], 0.0), (4, 4), None),
    "unpack": ((4, 4), lambda a, i: a[i // 4, i % 4], (13,), lambda x: x.reshape(16)[:13]),
    "pad": (
        (4, 5),
        lambda a, i, j: te.if_then_else(te.all_of([i >= 1, i < 5, j >= 2, j < 7]), a[i - 1, j - 2], -1.0),
        (6, 8),
        lambda x: np.pad(x, ((1, 1), (2, 1)), constant_values=-1),
    ),
    "roll": ((11,), lambda a, i: a[(i + 3) % 11], (11,), lambda x: np.roll(x, -3)),
    "repeat": ((5,), lambda a, i: a[i // 3], (15,), lambda x: np.repeat(x, 3)),
    "tile": ((5,), lambda a, i: a[i % 5], (15,), lambda x: np.tile(x, 3)),
    "upper": ((6, 6), lambda a, i, j: te.if_then_else(j >= i, a[i, j], 0.0), (6, 6), np.triu),
    "difference": ((9,), lambda a, i: a[i + 1] - a[i], (8,), np.diff),
    "stencil": ((9,), lambda a, i: a[i] + a[i + 1] * 2.0 + a[i + 2], (7,), lambda x: x[:-2] + 2 * x[1:-1] + x[2:]),
    "six dimensions": ((2, 1, 3, 2, 1, 2), lambda a, *i: a[i] * 2.0, (2, 1, 3, 2, 1, 2), lambda x: 2 * x),
    "no dimensions": ((), lambda a: a[()] + 1.0, (), lambda x: x + 1),
    "one element": ((1,), lambda a, i: a[i], (1,), lambda x: x),
    "nothing": ((0, 3), lambda a, i, j: a[i, j] + 1.0, (0, 3), lambda x: x),
    "clamped": ((9,), lambda a, i: a[te.minimum(te.maximum(i - 2, 0), 8)], (13,), lambda x: np.pad(x, 2, mode="edge")),
    "depth to space": (
        (8, 3, 3),
        lambda a, c, h, w: a[c * 4 + h % 2 * 2 + w % 2, h // 2, w // 2],
        (2, 6, 6),
        lambda x: x.reshape(2, 2, 2, 3, 3).transpose(0, 3, 1, 4, 2).reshape(2, 6, 6),
    ),
}


@pytest.mark.parametrize("case", INDEXING)
def test_indexing(case: str) -> None:
    shape, body, out, meaning = INDEXING[case]
    x = random(shape, seed=4)
    if meaning is None:
        padded = np.pad(x.reshape(-1), (0, int(np.prod(out)) - x.size))
        meaning = lambda _: padded.reshape(out)  # noqa: E731
    a = te.placeholder(shape, name="A")
    names = te.compute(out, lambda *i: body(a, *i), name="B")
    close(evaluate(names, [(a, x)])[0], meaning(x))


@pytest.mark.parametrize("size", [1, 2, 7, 8, 31])
def test_symbolic_sizes(size: int) -> None:
    """One function for any size: dimensions that are expressions of others."""
    a = te.placeholder((N,), name="A")
    double = te.compute((N * 2,), lambda i: a[i // 2], name="double")
    wide = te.compute((N + 3,), lambda i: te.if_then_else(i < N, a[i], 7.0), name="wide")
    half = te.compute(((N + 1) // 2,), lambda i: a[i * 2], name="half")
    x = random((size,), seed=5)
    shapes = [(2 * size,), (size + 3,), ((size + 1) // 2,)]
    got = evaluate([double, wide, half], [(a, x)], shapes)
    close(got[0], np.repeat(x, 2))
    close(got[1], np.pad(x, (0, 3), constant_values=7))
    close(got[2], x[::2])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (8, 16), (5, 33)])
def test_two_symbols(rows: int, columns: int) -> None:
    m = te.var("m")
    a, b = te.placeholder((N, m), name="A"), te.placeholder((m,), name="B")
    c = te.compute((m, N), lambda i, j: a[j, i] + b[i], name="C")
    x, y = random((rows, columns)), random((columns,), seed=1)
    close(evaluate(c, [(a, x), (b, y)], [(columns, rows)])[0], x.T + y[:, None])


def test_gather_scatter_by_index_tensors() -> None:
    a, at = te.placeholder((9, 4), name="A"), te.placeholder((5,), "int32", name="I")
    b = te.compute((5, 4), lambda i, j: a[at[i], j], name="B")
    one_hot = te.compute((5, 9), lambda i, j: te.if_then_else(te.cast(at[i], "int64") == j, 1.0, 0.0), name="H")
    x, index = random((9, 4)), np.array([8, 0, 3, 3, 7], np.int32)
    got = evaluate([b, one_hot], [(a, x), (at, index)], unchecked=True)
    close(got[0], x[index])
    close(got[1], np.eye(9, dtype=np.float32)[index])


def test_lazy_branches() -> None:
    """The branch that is not taken is not touched, however deep."""
    a = te.placeholder((4,), name="A")
    b = te.compute(
        (12,),
        lambda i: te.if_then_else(i < 4, a[i], te.if_then_else(i < 8, a[7 - i], a[i - 8] * 2.0)),
        name="B",
    )
    x = random((4,))
    close(evaluate(b, [(a, x)])[0], np.concatenate([x, x[::-1], 2 * x]))


def test_several_outputs() -> None:
    a = te.placeholder((6, 7), name="A")
    low, high = te.compute((6, 7), lambda i, j: (te.minimum(a[i, j], 0.0), te.maximum(a[i, j], 0.0)), name="B")
    c = te.compute((6, 7), lambda i, j: low[i, j] * 2.0 + high[i, j], name="C")
    x = random((6, 7))
    got = evaluate([low, high, c], [(a, x)])
    for array, meant in zip(
        got, (np.minimum(x, 0), np.maximum(x, 0), 2 * np.minimum(x, 0) + np.maximum(x, 0)), strict=True
    ):
        close(array, meant)


def test_outputs_of_several_types() -> None:
    a = te.placeholder((7,), name="A")
    whole, part = te.compute((7,), lambda i: (te.cast(te.floor(a[i]), "int32"), a[i] - te.floor(a[i])), name="B")
    x = random((7,)) * 5
    got = evaluate([whole, part], [(a, x)])
    close(got[0], np.floor(x).astype(np.int32))
    close(got[1], x - np.floor(x))


def test_constant_tables() -> None:
    table = te.const_matrix([[1, 2, 3], [4, 5, 6]])
    b = te.compute((3, 2), lambda i, j: table[j, i] * 2.0, name="B")
    close(evaluate(b, [])[0], 2 * np.array([[1, 4], [2, 5], [3, 6]], np.float32))


def test_numbers_take_the_name_of_their_type() -> None:
    assert te.const(1.5, "float16") is te.const(1.5, f16)
    assert te.const(300, "uint8") is te.const(44, "u8")
    with pytest.raises(ExpressionError, match="no such element type"):
        te.const(1, "float17")


def test_long_tables_are_walked_over_seldom() -> None:
    """Entries are no operands, which each pass looks at: the calls of functions that one more costs."""

    def calls(count: int) -> int:
        profile = cProfile.Profile()
        profile.enable()
        table = te.const_matrix(np.arange(count) * 0.5)
        position = te.placeholder((4,), "int64", name="A")
        b = te.compute((4,), lambda i: table[position[i]], name="B")
        tw.build(te.create_schedule(b), [position, b])
        profile.disable()
        return sum(entry.callcount for entry in profile.getstats())

    calls(10)  # what is made once in a process
    assert (calls(3000) - calls(1000)) / 2000 < 100
