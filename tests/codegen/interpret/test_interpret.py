"""The interpreter: values against NumPy, arithmetic of every type, and the mistakes it catches."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tilewright import te
from tilewright.codegen.interpret.interpreter import InterpretError, interpret
from tilewright.codegen.interpret.scalars import caster, function
from tilewright.ir.dtype import BY_NAME, DType, bf16, f16, f32, f64, i4, i8, i32, i64, u8, u64
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.scalar_ops import OPS
from tilewright.support.errors import CallError


def rng_array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_matmul_with_symbolic_rows() -> None:
    m = te.var("m", hi=64)
    a, b = te.placeholder((m, 9), name="A"), te.placeholder((9, 5), name="B")
    k = te.reduce_axis(9, "k")
    c = te.compute((m, 5), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    func = te.create_prim_func([a, b, c])
    x, y, out = rng_array(7, 9), rng_array(9, 5, seed=1), np.zeros((7, 5), np.float32)
    interpret(func, {"A": x, "B": y, "C": out})
    np.testing.assert_allclose(out, x @ y, rtol=1e-5, atol=1e-6)


def test_softmax_in_stages() -> None:
    x = te.placeholder((4, 6), name="X")
    k, r = te.reduce_axis(6, "k"), te.reduce_axis(6, "r")
    top = te.compute((4,), lambda i: te.max(x[i, k], k), name="top")
    e = te.compute((4, 6), lambda i, j: te.exp(x[i, j] - top[i]), name="E")
    total = te.compute((4,), lambda i: te.sum(e[i, r], r), name="total")
    y = te.compute((4, 6), lambda i, j: e[i, j] / total[i], name="Y")
    data, out = rng_array(4, 6), np.zeros((4, 6), np.float32)
    interpret(te.create_prim_func([x, y]), [data, out])
    expected = np.exp(data - data.max(1, keepdims=True))
    np.testing.assert_allclose(out, expected / expected.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("rank", range(1, 8))
def test_elements_with_any_number_of_indices(rank: int) -> None:
    """Each number up to five has a closure of its own. A sum begins once, whichever of its loops begins anew."""
    shape = (2, 3, 2, 4, 3, 2, 2)[:rank]
    a = te.placeholder(shape, name="A")
    transposed = te.compute(shape[::-1], lambda *i: a[i[::-1]] * 2.0, name="transposed")
    axes = [te.reduce_axis(size, f"k{k}") for k, size in enumerate(shape)]
    total = te.compute((2,), lambda i: te.sum(a[tuple(axes)] + te.cast(i, "f32"), axes), name="total")
    data = np.random.default_rng(rank).integers(-9, 10, shape).astype(np.float32)
    got, sums = np.zeros(shape[::-1], np.float32), np.zeros(2, np.float32)
    interpret(te.create_prim_func([a, transposed]), [data, got])
    interpret(te.create_prim_func([a, total]), [data, sums])
    np.testing.assert_array_equal(got, 2 * data.transpose())
    np.testing.assert_array_equal(sums, [data.sum(), data.sum() + data.size])


def test_padding_never_loads_outside() -> None:
    x = te.placeholder((5,), name="X")
    y = te.compute((9,), lambda i: te.if_then_else(te.all_of([i >= 2, i < 7]), x[i - 2], -1.0), name="Y")
    data, out = rng_array(5), np.zeros(9, np.float32)
    interpret(te.create_prim_func([x, y]), [data, out])
    np.testing.assert_array_equal(out, np.pad(data, 2, constant_values=-1))


def test_flat_function_with_every_loop_kind() -> None:
    func = parse_func(
        """func @f(A: f32[n], B: f32[n]) where n in 1.. {
          for o in 0..(n + 3) // 4 parallel {
            alloc T: f32[4] in local {
              for i in 0..4 vectorized { T[i] = select(o * 4 + i < n, A[min(o * 4 + i, n - 1)], 0.0) }
              for j in 0..4 unrolled { if o * 4 + j < n { let x = T[j] * 2.0  B[o * 4 + j] = x } else { T[j] = 0.0 } }
            }
          }
        }"""
    )
    data = rng_array(10)
    out = np.zeros(10, np.float32)
    interpret(func, [data, out])
    np.testing.assert_array_equal(out, data * 2)


def test_backwards_shows_loops_that_are_not_parallel() -> None:
    func = parse_func("func @f(A: f32[4]) { for i in 0..3 parallel { A[i + 1] = A[i] } }")
    forwards, backwards = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32)
    interpret(func, [forwards])
    interpret(func, [backwards], backwards=True)
    assert (forwards.tolist(), backwards.tolist()) == ([0, 0, 0, 0], [0, 0, 1, 2])


def test_zero_dimensional_and_empty() -> None:
    func = parse_func("func @f(A: f32[], B: f32[n]) { A[] = A[] + 1.0 for i in 0..n { B[i] = A[] } }")
    a, b = np.array(2.0, np.float32), np.zeros(0, np.float32)
    interpret(func, [a, b])
    assert a == 3


@pytest.mark.parametrize("rank", range(6))
def test_elements_of_any_rank(rank: int) -> None:
    """In row-major order; an index that leaves its dimension is named, though its place may be inside the memory."""
    shape = (2, 3, 2, 4, 2)[:rank]
    names = [f"i{k}" for k in range(rank)]
    loops = "".join(f"for {i} in 0..{n} {{ " for i, n in zip(names, shape, strict=True))

    def copied(places: list[str]) -> PrimFunc:
        body = f"{loops}B[{', '.join(names)}] = A[{', '.join(places)}] {'}' * rank}"
        return parse_func(f"func @f(A: f32{list(shape)}, B: f32{list(shape)}) {{ {body} }}")

    a, b = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape), np.zeros(shape, np.float32)
    interpret(copied(names), [a, b])
    np.testing.assert_array_equal(a, b)
    for k in range(rank):
        with pytest.raises(InterpretError, match="outside"):
            interpret(copied([*names[:k], f"{names[k]} + 1", *names[k + 1 :]]), [a, b])


def test_in_place_arguments_share_memory() -> None:
    func = parse_func("func @f(A: f32[4], B: f32[4]) { for i in 0..4 { B[i] = A[3 - i] } }")
    a = np.arange(4, dtype=np.float32)
    interpret(func, [a, a])
    np.testing.assert_array_equal(a, [3, 2, 2, 3])
    base = np.zeros(5, np.float32)
    with pytest.raises(CallError, match="overlap"):
        interpret(func, [base[:4], base[1:]])


# Mistakes


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i in 0..n { B[i] = A[i + 1] }", r"buffer 'A' \[4\]: index \[4\] outside"),
        ("for i in 0..n { B[i - 1] = 0.0 }", r"buffer 'B' \[4\]: index \[-1\] outside"),
        ("alloc T: f32[2, 2]  T[0, 2] = 0.0", r"buffer 'T' \[2, 2\]: index \[0, 2\] outside"),
        ("alloc T: f32[2, 2, 2, 2, 2]  T[0, 0, 0, 0, 2] = 0.0", r"index \[0, 0, 0, 0, 2\] outside"),
        ("for i in 0..n { alloc T: f32[i]  T[i] = 0.0 }", r"buffer 'T' \[0\]: index \[0\] outside"),
        ("for i in 0..8 { block b (v = spatial(n): i) { B[v] = 0.0 } }", "block 'b': v = 4 is outside 0..4"),
        ("B[0] = f32(z)", "the variable 'z' is not defined"),
        ("call dot(B[0 +: 2])", "intrinsic 'dot': no reference is given"),
    ],
)
def test_mistakes_are_named(body: str, message: str) -> None:
    body = body.replace("])", "];)") if "call" in body else body
    func = parse_func(f"func @f(A: f32[n], B: f32[n]) {{ {body} }}")
    with pytest.raises(InterpretError, match=message):
        interpret(func, [np.zeros(4, np.float32), np.zeros(4, np.float32)])


def test_unwritten_memory_shows() -> None:
    func = parse_func("func @f(A: f32[1], B: i32[1]) { buffer T: f32[1] buffer U: i32[1] A[0] = T[0] B[0] = U[0] }")
    a, b = np.zeros(1, np.float32), np.zeros(1, np.int32)
    interpret(func, [a, b])
    assert np.isnan(a[0])
    assert b[0] == np.array([0xA5A5A5A5], np.uint32).view(np.int32)[0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([np.zeros((2, 4), np.float32)], "wrong number|no array given"),
        ([np.zeros((2, 4), np.float64), np.zeros(8, np.float32)], "parameter 'A': wrong element type: expected f32"),
        ([np.zeros(8, np.float32), np.zeros(8, np.float32)], "parameter 'A': wrong rank: expected 2, got 1"),
        (
            [np.zeros((2, 4), np.float32), np.zeros(9, np.float32)],
            r"parameter 'B': wrong shape: expected \[8\], got \[9\]",
        ),
        (
            [np.zeros((3, 4), np.float32), np.zeros(12, np.float32)],
            "symbol 'n': not divisible: expected a multiple of 2",
        ),
        (
            [np.zeros((66, 4), np.float32), np.zeros(264, np.float32)],
            r"symbol 'n': out of range: expected 1..64, got 66",
        ),
    ],
)
def test_arguments_are_checked(arrays: list[np.ndarray], message: str) -> None:
    func = parse_func("func @f(A: f32[n, 4], B: f32[n * 4]) where n in 1..64 % 2 { }")
    with pytest.raises(CallError, match=message):
        interpret(func, arrays)


def test_symbols_are_solved_or_passed() -> None:
    func = parse_func("func @f(A: f32[n * 4], B: f32[m + 1], C: f32[k // 2]) { C[0] = f32(n * 100 + m * 10 + k) }")
    arrays = [np.zeros(8, np.float32), np.zeros(4, np.float32), np.zeros(2, np.float32)]
    interpret(func, arrays, symbols={"k": 5})
    assert arrays[2][0] == 235
    with pytest.raises(InterpretError, match="'k' is not defined"):
        interpret(func, arrays)


def test_workspace_may_be_left_out() -> None:
    func = parse_func("func @f(A: f32[2], W: f32[2]) @workspaces(count=1) { W[0] = A[0] A[1] = W[0] }")
    a = np.array([3, 0], np.float32)
    interpret(func, [a])
    assert a[1] == 3


def test_intrinsics_call_their_reference() -> None:
    func = parse_func(
        "func @f(A: f32[4, 4], B: f32[4, 4], C: f32[4, 4]) {"
        " for i in 0..2 { call dot2(C[i * 2 +: 2, 0 +: 4]; A[i * 2 +: 2, 0 +: 4], B[0 +: 4, 0 +: 4]) } }"
    )

    def dot2(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        c += a @ b

    a, b, c = rng_array(4, 4), rng_array(4, 4, seed=1), np.zeros((4, 4), np.float32)
    interpret(func, [a, b, c], intrinsics={"dot2": dot2})
    np.testing.assert_allclose(c, a @ b, rtol=1e-6)
    wild = parse_func("func @f(A: f32[4]) { call g(A[2 +: 3];) }")
    with pytest.raises(InterpretError, match=r"index \[4\] outside"):
        interpret(wild, [np.zeros(4, np.float32)], intrinsics={"g": lambda a: None})


# Arithmetic


def run_op(name: str, kind: DType, *args: np.ndarray) -> np.ndarray:
    call = f"{OPS[name].name}({', '.join(f'{x}[i]' for x in 'ABC'[: len(args)])})"
    operators = {"add": "A[i] + B[i]", "sub": "A[i] - B[i]", "mul": "A[i] * B[i]", "div": "A[i] / B[i]", "neg": "-A[i]"}
    operators |= {"floordiv": "A[i] // B[i]", "mod": "A[i] % B[i]"}
    params = ", ".join(f"{x}: {kind}[n]" for x in "ABC"[: len(args)])
    func = parse_func(f"func @f({params}, R: {kind}[n]) {{ for i in 0..n {{ R[i] = {operators.get(name, call)} }} }}")
    out = np.zeros(len(args[0]), kind.numpy)
    interpret(func, [*args, out])
    return out


SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, 1e-3, 1e4, np.inf, -np.inf, np.nan, 0.1]
PAIRS = [(x, y) for x in SPECIAL for y in SPECIAL]


@pytest.mark.parametrize("kind", [f32, f64, f16, bf16], ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "min", "max", "neg", "abs", "sqrt", "floor", "round"])
def test_float_operators_are_numpys(name: str, kind: DType) -> None:
    a, b = (np.array(side, np.float64).astype(kind.numpy) for side in zip(*PAIRS, strict=True))
    args = (a, b)[: OPS[name].arity]
    with np.errstate(all="ignore"):
        expected = OPS[name].numpy(*args)
    np.testing.assert_array_equal(run_op(name, kind, *args).astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("name", [n for n, o in OPS.items() if o.rule == "same" and o.kinds == ("float",)])
def test_transcendental_functions(name: str) -> None:
    x = np.array([0.25, 0.5, 0.9, 1.0, 1.5], np.float32)
    args = (x, x[::-1].copy(), x)[: OPS[name].arity]
    with np.errstate(all="ignore"):
        expected = OPS[name].numpy(*(a.astype(np.float64) for a in args))
    np.testing.assert_allclose(run_op(name, f32, *args), expected.astype(np.float32), rtol=2e-7)
    for kind in (f16, bf16, f64):
        narrow = tuple(a.astype(kind.numpy) for a in args)
        with np.errstate(all="ignore"):
            expected = OPS[name].numpy(*(a.astype(np.float64) for a in narrow))
        tolerance = {16: 8e-3, 64: 1e-15}[kind.bits]
        np.testing.assert_allclose(
            run_op(name, kind, *narrow).astype(np.float64), expected, rtol=tolerance, equal_nan=True
        )


INTS = [0, 1, -1, 2, -2, 7, -8, 100, -100, 127, -128]


@pytest.mark.parametrize("kind", [i8, i32, i64, u8, u64, i4], ids=str)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "min", "max", "bitand", "bitor", "bitxor"]
)
def test_integer_operators(name: str, kind: DType) -> None:
    whole = sorted({max(int(kind.min), min(int(kind.max), x)) for x in [*INTS, int(kind.min), int(kind.max)]})
    pairs = [(x, y) for x in whole for y in whole]
    span, lo = 1 << kind.bits, int(kind.min)

    def exact(x: int, y: int) -> int:
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0
        table = {
            "add": x + y, "sub": x - y, "mul": x * y, "floordiv": x // y if y else 0, "mod": x % y if y else 0,
            "truncdiv": quotient, "truncmod": x - quotient * y if y else 0, "min": min(x, y), "max": max(x, y),
            "bitand": x & y, "bitor": x | y, "bitxor": x ^ y,
        }  # fmt: skip
        return (table[name] - lo) % span + lo

    f = function(name, kind)
    assert [f(x, y) for x, y in pairs] == [exact(x, y) for x, y in pairs]
    if kind.bits >= 8:
        a, b = (np.array(side, kind.numpy) for side in zip(*pairs, strict=True))
        assert run_op(name, kind, a, b).tolist() == [exact(x, y) for x, y in pairs]


def test_shifts_beyond_the_width() -> None:
    shl, shr = function("shl", i8), function("shr", i8)
    assert [shl(1, 7), shl(1, 8), shl(3, -1), shr(-5, 1), shr(-5, 9), shr(5, 9)] == [-128, 0, 0, -3, -1, 0]


def test_casts() -> None:
    for source in (f32, f64, f16, bf16):
        to = source.numpy.type
        values = [to(x) for x in (1.9, -1.9, math.nan, math.inf, -math.inf, 300.0)]
        assert [caster(source, i8)(x) for x in values] == [1, -1, 0, 127, -128, 127]
        assert [caster(source, u8)(x) for x in values] == [1, 0, 0, 255, 0, 255]
    assert caster(i32, i8)(300) == 44
    assert caster(i64, u8)(-1) == 255
    assert [caster(f32, BY_NAME["bool"])(np.float32(x)) for x in (0.0, -0.0, 0.5, math.nan)] == [
        False,
        False,
        True,
        True,
    ]
    # One rounding from 64 bits, not two through double.
    big = (1 << 60) + (1 << 36) + 1
    assert caster(i64, f32)(big) == np.int64(big).astype(np.float32)
    assert caster(f64, bf16)(np.float64(1 + 2**-8 + 2**-40)) == ml_dtypes.bfloat16(1 + 2**-7)
    with np.errstate(over="ignore"):
        assert caster(i64, f16)(70000) == math.inf


def test_fma_rounds_once() -> None:
    x, y = np.float32(1 + 2**-12), np.float32(-(1 + 2**-11))
    assert function("fma", f32)(x, x, y) == np.float32(2**-24)
    assert x * x + y == 0
    a = np.float64(1 + 2**-30)
    assert function("fma", f64)(a, a, np.float64(-(1 + 2**-29))) == 2**-60
    # Close to halfway between two floats: adding in double first would round to even and lose the last bit.
    assert function("fma", f32)(np.float32(1), np.float32(1 + 2**-23), np.float32(2**-24 + 2**-47)) == np.float32(
        1 + 2**-22
    )
