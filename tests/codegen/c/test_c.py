"""Emitted C: reads as written by hand, compiles without a warning, computes what the interpreter does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.c.c_run import compile_c, has_openmp, needs_compiler, run_c
from tests.generators import Program, assert_same, examples, flattened, programs
from tilewright import te
from tilewright.codegen.c.emit import emit_c
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import ALL, DType, bf16, f16, f32, f64, i4, i8, i16, i32, i64, u4, u8, u16, u32, u64
from tilewright.ir.expr import Expr, select
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.scalar_ops import OPS
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target
from tilewright.transform.loops import readable_loops

ADD = "func @add(A: f32[n], B: f32[n], C: f32[n]) where n in 1.. { for i in 0..n { C[i] = A[i] + B[i] } }"
SPLIT = """func @add(A: f32[n], B: f32[n], C: f32[n]) where n in 1.. {
  for io in 0..(n + 31) // 32 parallel {
    for ii in 0..32 vectorized {
      if io * 32 + ii < n { C[io * 32 + ii] = A[io * 32 + ii] + B[io * 32 + ii] }
    }
  }
}"""
SOFTMAX = """func @softmax(X: f32[n, 16], Y: f32[n, 16]) where n in 1.. {
  for i in 0..n parallel {
    alloc E: f32[16] in local align 64
    alloc total: f32[1] in local
    total[0] = 0.0
    for j in 0..16 { E[j] = exp(X[i, j]) total[0] = total[0] + E[j] }
    for k in 0..16 { Y[i, k] = E[k] / total[0] }
  }
}"""
MIXED = """func @"odd name"(A: f16[4, n], I: i32[n], "for": u8[4], M: bool[n]) where n in 1..8 {
  for i in 0..4 {
    for j in 0..n {
      let s = A[i, j] * 0.5:f16
      if M[j] and not (i < 2 or I[j] < 0:i32) {
        A[i, j] = max(s, f16(I[j]))
      } else if i == 3 {
        A[i, j] = select(j % 2 == 0, s, -s)
      } else {
        I[j] = I[j] * 3:i32 + i32(i // 2) - i32(A[i, (j + i - 3) % n])
      }
      "for"[i] = "for"[i] + 200:u8
    }
  }
}"""
HEAP = """func @heap(A: f32[n], B: f32[n]) where n in 1.. {
  alloc T: f32[n]
  for i in 0..n { T[i] = A[n - 1 - i] }
  for j in 0..n { B[j] = T[j] }
}"""


@pytest.mark.parametrize("text", [ADD, SPLIT, SOFTMAX, MIXED, HEAP], ids=["add", "split", "softmax", "mixed", "heap"])
def test_text(text: str, golden: Callable[..., None]) -> None:
    golden(emit_c(parse_func(text)), "c")


@needs_compiler
@pytest.mark.parametrize("text", [ADD, SPLIT, SOFTMAX, MIXED, HEAP], ids=["add", "split", "softmax", "mixed", "heap"])
def test_runs_equal(text: str) -> None:
    func = parse_func(text)
    rng = np.random.default_rng(0)
    shapes = [tuple(6 if str(d) == "n" else int(str(d)) for d in b.shape) for b in func.params]
    arrays = [(rng.standard_normal(s) * 4).astype(b.dtype.numpy) for s, b in zip(shapes, func.params, strict=True)]
    expected = [a.copy() for a in arrays]
    interpret(func, expected)
    run_c(func, arrays, [6], "odd_name" if "odd" in func.name else "")
    for a, b in zip(arrays, expected, strict=True):
        if func.name == "softmax":
            np.testing.assert_allclose(a, b, rtol=1e-6)
        else:
            assert_same(a, b)


def shared_rows() -> PrimFunc:
    """Sums of rows, each through a row of memory of the thread's own: parallel over rows, lanes in the copy."""
    n, m = te.var("n"), te.var("m", multiple=16)
    a, k = te.placeholder((n, m), name="A"), te.reduce_axis((0, m), "k")
    t = te.compute((n, m), lambda i, j: a[i, j] * 2.0, name="T")
    b = te.compute((n,), lambda i: te.sum(t[i, k], axis=k), name="B")
    s = te.create_schedule(b)
    s[t].compute_at(s[b], b.axis[0])
    s[t].vectorize(s[t].split(s[t].loops[-1], 16)[1])
    s[b].vectorize(s[b].split(k, 16)[1])
    s[b].parallel(b.axis[0])
    return readable_loops(te.lower(s, [a, b], "rows"), Target.parse("x86-64-v3"))


def test_openmp_text(golden: Callable[..., None]) -> None:
    golden(emit_c(shared_rows(), openmp=True), "c")


def test_openmp_runs() -> None:
    """Threads of OpenMP have parts of a workspace of their own; a sum over lanes stays in order."""
    if not has_openmp():
        pytest.skip("the C compiler has no OpenMP")
    library = compile_c(emit_c(shared_rows(), openmp=True), "-fopenmp")
    x = np.random.default_rng(0).standard_normal((203, 32), np.float32)
    y, memory = np.empty(203, np.float32), np.empty((2, 32), np.float32)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, memory)]
    library.rows(*pointers, *map(ctypes.c_int64, (203, 32, 2)))
    wanted = np.zeros(203, np.float32)
    for k in range(32):
        wanted += x[:, k] * np.float32(2)
    np.testing.assert_array_equal(y, wanted)


def pointwise(kind: DType, out: DType, expr: str) -> PrimFunc:
    return parse_func(f"func @f(A: {kind}[n], B: {kind}[n], C: {out}[n]) {{ for i in 0..n {{ C[i] = {expr} }} }}")


def samples(kind: DType) -> np.ndarray:
    if kind.is_float:
        values = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, 0.1, 1e-3, 1e-6, 1e4, 65519.0, 1e20, np.inf, -np.inf, np.nan, 300.0]
        with np.errstate(all="ignore"):
            return np.array(values, np.float64).astype(kind.numpy)
    if kind.kind == "bool":
        return np.array([False, True])
    lo, hi = int(kind.min), int(kind.max)
    wide = np.uint64 if kind.kind == "uint" else np.int64
    return np.array(
        [x for x in {0, 1, 2, 3, 5, 7, 100, 127, -1, -2, -7, -8, lo, lo + 1, hi, hi - 1} if lo <= x <= hi], wide
    ).astype(kind.numpy)


SYMBOLS = {info.name: info.symbol for info in OPS.values() if info.symbol and info.arity == 2}


@pytest.mark.daily(4)
@needs_compiler
@pytest.mark.parametrize("kind", [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, i4, u4], ids=str)
def test_operators_of_a_type(kind: DType) -> None:
    """All exact operators in one function, on all pairs of special values."""
    names = [
        o.name
        for o in OPS.values()
        if o.rule in ("same", "bool")
        and kind.kind in o.kinds
        and (not kind.is_float or o.name in EXACT_FLOAT)
        and not (kind.bits < 8 and o.name in ("shl", "shr"))
    ]
    lines, params = [], []
    for name in names:
        info = OPS[name]
        args = ["A[i]", "B[i]", "A[i]"][: info.arity]
        text = f"{args[0]} {SYMBOLS[name]} {args[1]}" if name in SYMBOLS else f"{name}({', '.join(args)})"
        text = "-A[i]" if name == "neg" else text
        params.append(f"R_{name}: {kind if info.rule == 'same' else 'bool'}[n]")
        lines.append(f"R_{name}[i] = {text}")
    header = f"func @f(A: {kind}[n], B: {kind}[n], {', '.join(params)})"
    func = parse_func(f"{header} {{ for i in 0..n {{ {' '.join(lines)} }} }}")
    a, b = (x.ravel() for x in np.meshgrid(samples(kind), samples(kind)))
    compare(func, [a.copy(), b.copy()])


EXACT_FLOAT = (
    "add sub mul div min max neg abs eq ne lt le gt ge isnan isinf floor ceil trunc round sqrt fma fmod".split()
)


@pytest.mark.daily(4)
@needs_compiler
@pytest.mark.parametrize("source", ALL, ids=str)
def test_casts_from_a_type(source: DType) -> None:
    params = ", ".join(f"R_{t}: {t}[n]" for t in ALL)
    lines = " ".join(f"R_{t}[i] = {t}(A[i])" for t in ALL if t is not source)
    func = parse_func(f"func @f(A: {source}[n], {params}) {{ for i in 0..n {{ {lines} }} }}")
    compare(func, [samples(source)])


@needs_compiler
@pytest.mark.parametrize(("a", "b"), [(f32, i32), (f64, u64), (f16, i16), (bf16, u16), (f16, bf16), (u8, i8)], ids=str)
def test_bitcasts(a: DType, b: DType) -> None:
    func = parse_func(
        f"func @f(A: {a}[n], B: {b}[n], X: {b}[n], Y: {a}[n])"
        f" {{ for i in 0..n {{ X[i] = bitcast(A[i], {b}) Y[i] = bitcast(B[i], {a}) }} }}"
    )
    compare(func, [samples(a), samples(a).view(b.numpy)])


@needs_compiler
def test_transcendental_functions() -> None:
    names = [o.name for o in OPS.values() if o.rule == "same" and o.kinds == ("float",) and o.arity == 1]
    for kind, tolerance in ((f32, 3e-7), (f64, 1e-15), (f16, 2e-3)):
        params = ", ".join(f"R_{name}: {kind}[n]" for name in names)
        lines = " ".join(f"R_{name}[i] = {name}(A[i])" for name in names)
        func = parse_func(f"func @f(A: {kind}[n], {params}) {{ for i in 0..n {{ {lines} }} }}")
        compare(func, [np.array([0.3, -0.3, 0.7, 1.5, -2.0, 0.0], kind.numpy)], tolerance)


def compare(func: PrimFunc, inputs: list[np.ndarray], tolerance: float = 0) -> None:
    outputs = [np.zeros(len(inputs[0]), b.dtype.numpy) for b in func.params[len(inputs) :]]
    expected = [np.zeros_like(x) for x in outputs]
    interpret(func, [*inputs, *expected])
    run_c(func, [*inputs, *outputs], [len(inputs[0])])
    for b, x, y in zip(func.params[len(inputs) :], outputs, expected, strict=True):
        if tolerance:
            np.testing.assert_allclose(
                x.astype(np.float64), y.astype(np.float64), rtol=tolerance, atol=1e-30, err_msg=b.name
            )
        else:
            assert_same(x, y, b.name)


@needs_compiler
@examples(20)
@given(programs([f32, f32, i32, i64, f64, u8, i8]))
def test_random_programs(program: Program) -> None:
    """Law 4 for C, on the plainest lowering."""
    check(program)


@needs_compiler
@examples(10)
@given(st.sampled_from(ALL).flatmap(lambda t: programs([t, t, f32])))
def test_random_programs_of_a_type(program: Program) -> None:
    check(program)


def check(program: Program) -> None:
    expected, actual = program.fresh(), program.fresh()
    interpret(program.func, expected)
    flat = flattened(program.func)
    also = program.fresh()
    interpret(flat, also)
    assert_same(also[-1], expected[-1], "the flat program")
    symbols = [program.arrays[0].shape[0]] if flat.symbols else []
    run_c(flat, actual, symbols)
    assert_same(actual[-1], expected[-1], "the C program")


@needs_compiler
def test_long_repeated_parts_are_named() -> None:
    a = te.placeholder((8,), name="A")

    def body(i: Expr) -> Expr:
        x = a[i] * 0.25
        for _ in range(12):
            x = x * x - select(i < 4, x, x * x + 1.0)
        return x

    func = flattened(te.create_prim_func([a, te.compute((8,), body, name="C")], "f"))
    text = emit_c(func)
    assert "const bool t1 = i < 4;" in text
    assert len(text) < 4000
    compare(func, [np.linspace(-1, 1, 8, dtype=np.float32)])


def test_what_has_no_c_form_is_refused() -> None:
    blocks = parse_func("func @f(A: f32[4]) { block b (v = spatial(4): 0) { A[v] = 0.0 } }")
    with pytest.raises(CompileError, match="block 'b': blocks have no C form; lower the function first"):
        emit_c(blocks)
    with pytest.raises(CompileError, match="intrinsic 'dot': no intrinsic of this name is registered"):
        emit_c(parse_func("func @f(A: f32[4]) { call dot(A[0 +: 4];) }"))


@needs_compiler
def test_intrinsics_are_expanded() -> None:
    func = parse_func(
        "func @f(A: f32[8, 4], B: f32[4, 4], C: f32[8, 4]) { for i in 0..2"
        " { call dot_4x4x4_f32(C[i * 4 +: 4, 0 +: 4]; A[i * 4 +: 4, 0 +: 4], B[0 +: 4, 0 +: 4]) } }"
    )
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 4, s).astype(np.float32) for s in ((8, 4), (4, 4), (8, 4)))
    expected, actual = c.copy(), c.copy()
    interpret(func, [a, b, expected])
    np.testing.assert_array_equal(expected, c + a @ b)
    run_c(func, [a, b, actual])
    np.testing.assert_array_equal(actual, expected)


def test_numbers_from_memory_wrap_and_indices_do_not_overflow() -> None:
    """Whatever stands between a number and what is computed of it: signed overflow means nothing in C."""
    for body, line in (
        ("{ B[0] = I[0] * 4 }", "B[0] = (int64_t)((uint64_t)I[0] * UINT64_C(4));"),
        ("{ let x = I[0] B[0] = x * 4 }", "B[0] = (int64_t)((uint64_t)x * UINT64_C(4));"),
        ("{ let x = I[0] { let y = x + 1 B[0] = y * y } }", "B[0] = (int64_t)((uint64_t)y * (uint64_t)y);"),
        ("{ for i in 0..4 { let x = i * 3 B[i] = x * 4 } }", "B[i] = x * 4;"),
    ):
        assert line in emit_c(parse_func(f"func @f(I: i64[4], B: i64[4]) {body}"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("-2147483648:i32", "INT32_MIN"),
        ("-2147483647:i32", "-2147483647"),
        ("-9223372036854775808", "INT64_MIN"),
        ("-9223372036854775807", "-9223372036854775807"),
        ("4294967295:u32", "4294967295u"),
        ("18446744073709551615:u64", "UINT64_C(18446744073709551615)"),
        ("-128:i8", "-128"),
    ],
)
def test_integers_at_their_ends(number: str, text: str) -> None:
    """The least of a wide type is no literal in C: there a minus sign is an operator."""
    kind = number.partition(":")[2] or "i64"
    assert f"A[0] = {text};" in emit_c(parse_func(f"func @f(A: {kind}[1]) {{ A[0] = {number} }}"))


@needs_compiler
def test_names_that_c_knows() -> None:
    func = parse_func(
        "func @main(double: f32[int], expf: f32[int], y1: f32[int])"
        " { for for_ in 0..int { let free = exp(double[for_]) y1[for_] = free + expf[for_] } }"
    )
    assert compile_c(emit_c(func)).main_


@needs_compiler
def test_names_like_our_helpers() -> None:
    func = parse_func(
        "func @round_f16(min_f32: f32[mod_1], f32_to_i8: i8[mod_1], to_x: f16[mod_1])"
        " { for min_2 in 0..mod_1 { f32_to_i8[min_2] = i8(min(min_f32[min_2], f32(to_x[min_2 % 2]))) } }"
    )
    text = emit_c(func)
    assert "int64_t mod_1" in text
    assert compile_c(text).round_f16_


def test_tensor_expression_example() -> None:
    n = te.var("n")
    a, b = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    c = te.compute((n,), lambda i: a[i] + b[i], name="C")
    text = emit_c(flattened(te.create_prim_func([a, b, c], "add")))
    assert "for (int64_t i = 0; i < n; ++i) {\n        C[i] = A[i] + B[i];\n    }" in text
