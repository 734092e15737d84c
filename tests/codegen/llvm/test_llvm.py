"""Generated machine code against the interpreter, on hand-written flat functions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.codegen.llvm.llvm_run import call, call_in_threads, native, run
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, compile_llvm, emit_llvm
from tilewright.codegen.llvm.values import widths
from tilewright.ir.dtype import ALL, DType, bf16, boolean, f16, f32, f64, i4, i8, i16, i32, i64, u8
from tilewright.ir.expr import Buffer, Const, Expr, Op, Var, cast, const, equal, lookup, maximum, minimum, select
from tilewright.ir.loops import Allocate, For, If, Let, PrimFunc, Stmt, Store, seq
from tilewright.ir.rewrite import variables
from tilewright.ir.scalar_ops import OPS
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target

n, m = Var("n", lo=0), Var("m", lo=0)
HOST = Target.host()
V3 = Target.parse("x86-64-v3")
SIZES = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100)


def buffer(name: str, dtype: DType, *shape: Expr | int, **kw: object) -> Buffer:
    return Buffer(name, dtype, tuple(x if isinstance(x, Expr) else const(x) for x in shape), **kw)  # type: ignore[arg-type]


def loop(var: str, extent: Expr | int, body: Stmt, kind: str = "serial") -> For:
    return For(Var(var), extent if isinstance(extent, Expr) else const(extent), body, kind)  # type: ignore[arg-type]


def values(dtype: DType, shape: tuple[int, ...] | int, seed: int = 0) -> np.ndarray:
    """Random values with the special ones among them."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    if dtype is boolean:
        return rng.integers(0, 2, size).astype(bool).reshape(shape)
    if dtype.is_int:
        lo, hi = int(dtype.min), int(dtype.max)
        data = rng.integers(lo, hi, size, dtype=np.int64 if hi < 2**63 else np.uint64, endpoint=True)
        special = [lo, hi, 0, 1, hi - 1, 2, 3]
        for k, x in enumerate(special[: max(0, size - 3)]):
            data[(k * 5 + seed) % size] = x
        return data.astype(dtype.numpy).reshape(shape)
    data = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)
    for k, x in enumerate([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-39, 65520.0, 1.0][: max(0, size - 3)]):
        data[(k * 5 + seed) % size] = x
    with np.errstate(all="ignore"):
        return data.astype(dtype.numpy).reshape(shape)


def assert_same(got: np.ndarray, want: np.ndarray, ulp: int = 0) -> None:
    with np.errstate(all="ignore"):
        if got.dtype.kind in "biu" or "int" in got.dtype.name:
            np.testing.assert_array_equal(got.astype(np.int64), want.astype(np.int64))
            return
        a, b = got.astype(np.float64), want.astype(np.float64)
        if not ulp:
            np.testing.assert_array_equal(a, b)
            return
        eps = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[got.dtype.name]
        np.testing.assert_allclose(a, b, rtol=ulp * eps, atol=1e-300 if ulp < 100 else 1e-6)


def check(
    func: PrimFunc, arrays: list[np.ndarray], ulp: int = 0, target: Target = HOST, threads: int = 1, **symbols: int
) -> None:
    """Native code gives what the interpreter gives."""
    want = [a.copy() for a in arrays]
    got = [a.copy() for a in arrays]
    interpret(func, want, symbols=symbols)
    run(func, *got, target=target, threads=threads, **symbols)
    for g, w in zip(got, want, strict=True):
        assert_same(g, w, ulp)


def pointwise(name: str, dtypes: list[DType], result: DType, value: object, kind: str) -> PrimFunc:
    i = Var("i")
    inputs = [buffer(f"in{k}", t, n) for k, t in enumerate(dtypes)]
    out = buffer("out", result, n)
    e = value(*[b[i] for b in inputs])  # type: ignore[operator]
    return PrimFunc(name, (*inputs, out), For(i, n, Store(out, (i,), e), kind))  # type: ignore[arg-type]


LIBRARY = (
    "exp exp2 expm1 log log2 log1p sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh pow atan2 "
    "exp_nonpositive erf gelu gelu_tanh sigmoid rsqrt fmod"
).split()


OTHERS = [
    pytest.param(
        Target.parse(name),
        id=name,
        marks=pytest.mark.skipif(
            not set(Target.parse(name).features) <= set(HOST.features), reason=f"this machine cannot run {name}"
        ),
    )
    for name in ("x86-64", "x86-64-v3")
]
"""Machines with fewer instructions than most hosts."""


@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("target", OTHERS)
@pytest.mark.parametrize("dtype", [f32, f64, i32, u8], ids=str)
def test_every_operator_of_older_machines(dtype: DType, target: Target, kind: str) -> None:
    operators_agree(dtype, kind, target)


@pytest.mark.costly(2)
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_every_operator(dtype: DType, kind: str) -> None:
    operators_agree(dtype, kind, HOST)


def operators_agree(dtype: DType, kind: str, target: Target) -> None:
    """All operators of a type in one kernel, over specials and random values."""
    size = 83
    i = Var("i")
    bounds = const(size)
    arguments = [buffer(f"in{k}", dtype, size) for k in range(3)]
    x = [b[i] for b in arguments]
    outputs, body, loose = [], [], []
    for name, info in OPS.items():
        if dtype.kind not in info.kinds or info.rule in ("select", "lookup", "cast"):
            continue
        e = Op(name, tuple(x[: info.arity]))
        out = buffer(f"out_{name}", e.dtype, size)
        outputs.append(out)
        body.append(Store(out, (i,), e))
        loose.append(name in LIBRARY)
    func = PrimFunc("ops", (*arguments, *outputs), For(i, bounds, seq(body), kind))  # type: ignore[arg-type]
    arrays = [values(dtype, size, k) for k in range(3)] + [np.zeros(size, b.dtype.numpy) for b in outputs]
    want = [a.copy() for a in arrays]
    interpret(func, want)
    run(func, *arrays, target=target)
    for b, g, w, inexact in zip(outputs, arrays[3:], want[3:], loose, strict=True):
        try:
            assert_same(g, w, 4 if inexact else 0)
        except AssertionError as error:
            raise AssertionError(f"{b.name}: {error}") from None


@pytest.mark.parametrize("size", [2, 5, 8, 16, 31, 64])
@pytest.mark.parametrize("wide", [False, True])
def test_tables_of_sixteen(size: int, wide: bool) -> None:
    """AVX-512 looks them up in a register, at the low bits of any number; `wide`: beside f64, in narrower vectors."""
    i = Var("i")
    x, out, other = buffer("x", i32, size), buffer("out", f32, size), buffer("other", f64, size)
    entries = [const(float(k * k - 20), f32) for k in range(16)]
    body = [Store(out, (i,), lookup(cast(x[i] & 15, i64), entries))]
    if wide:
        body.append(Store(other, (i,), cast(x[i], f64) * 0.5))
    func = PrimFunc("f", (x, out, other), For(i, const(size), seq(body), "vectorized"))
    numbers = np.random.default_rng(0).integers(-(2**31), 2**31, size).astype(np.int32)
    check(func, [numbers, np.zeros(size, np.float32), np.zeros(size)])


@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("source", ALL, ids=str)
def test_every_cast(source: DType, kind: str) -> None:
    size = 83
    i = Var("i")
    inputs = buffer("given", source, size)
    outputs = [buffer(f"to_{t}", t, size) for t in ALL]
    body = seq(Store(b, (i,), cast(inputs[i], b.dtype)) for b in outputs)
    func = PrimFunc("casts", (inputs, *outputs), For(i, const(size), body, kind))  # type: ignore[arg-type]
    arrays = [values(source, size), *(np.zeros(size, b.dtype.numpy) for b in outputs)]
    check(func, arrays)


@pytest.mark.parametrize("to", [i8, u8, i4, i16], ids=str)
def test_floats_become_narrow_integers_in_vectors(to: DType) -> None:
    """Saturation and zeros for NaN are no work lane by lane."""
    i = Var("i")
    a, b = buffer("a", f32, 64), buffer("b", to, 64)
    func = PrimFunc("f", (a, b), For(i, const(64), Store(b, (i,), cast(a[i], to)), "vectorized"))
    for name in ("x86-64-v3", "znver4"):
        text = assembly(emit_llvm(func, Target.parse(name)), Target.parse(name))
        assert "cvttps2dq" in text and "cvttss2si" not in text


def test_bitcasts() -> None:
    for a, b in [(f32, i32), (f64, i64), (bf16, f16), (i8, u8)]:
        func = pointwise("bits", [a], b, lambda x, to=b: Op("bitcast", (x,), to), "vectorized")
        data = values(a, 40)
        out = np.zeros(40, b.numpy)
        run(func, data, out, n=40)
        assert out.tobytes() == data.tobytes()


@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("size", SIZES)
def test_symbolic_extent(size: int, kind: str) -> None:
    func = pointwise("axpy", [f32, f32], f32, lambda x, y: x * 2.0 + y, kind)
    check(func, [values(f32, size), values(f32, size, 1), np.zeros(size, "f")], n=size)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("dtype", [f32, f64, i8, bf16], ids=str)
def test_constant_extent(size: int, dtype: DType) -> None:
    i = Var("i")
    a, b = buffer("a", dtype, size), buffer("b", dtype, size)
    func = PrimFunc("f", (a, b), For(i, const(size), Store(b, (i,), maximum(a[i], const(1, dtype))), "vectorized"))
    check(func, [values(dtype, size), np.zeros(size, dtype.numpy)])


@pytest.mark.parametrize(
    "index",
    [
        lambda v: v * 2,
        lambda v: v * 3 + 1,
        lambda v: v * 7,
        lambda v: 39 - v,
        lambda v: v // 4,
        lambda v: v % 4,
        lambda v: (v % 5) * 3 + v // 5,
        lambda v: v * v % 64,
        lambda v: minimum(v, 9),
        lambda v: const(5),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_lane_patterns(index: object, masked: bool) -> None:
    """Loads with every relation between lane and address; stores too, where lanes do not meet."""
    v, u = Var("v"), Var("u")
    a, b, c = buffer("a", f32, 40 * 7), buffer("b", f32, 40), buffer("c", f32, 40 * 7)
    at = index(v)  # type: ignore[operator]
    body: Stmt = Store(b, (v,), a[at] + 1.0)
    other: Stmt = Store(c, (index(u),), b[u])  # type: ignore[operator]
    if masked:
        body, other = If(v * 3 < n, body), If(u + 2 < n, other)
    both = seq([For(v, const(40), body, "vectorized"), For(u, const(40), other, "vectorized")])
    func = PrimFunc("f", (a, b, c, buffer("limit", i8, n)), both)
    check(func, [values(f32, 280), np.zeros(40, "f"), np.zeros(280, "f"), np.zeros(33, "b")], n=33)


def test_gather_with_symbolic_stride_and_data() -> None:
    v, i = Var("v"), Var("i")
    table, at, out = buffer("table", f32, n, m), buffer("at", i64, 20), buffer("out", f32, 20, m)
    body = For(i, m, For(v, const(20), Store(out, (v, i), table[at[v], i] * table[v % 3, i]), "vectorized"))
    func = PrimFunc("gather", (table, at, out), body)
    rows = np.random.default_rng(0).integers(0, 9, 20)
    check(func, [values(f32, (9, 5)), rows, np.zeros((20, 5), "f")], n=9, m=5)


@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_select_is_lazy(kind: str) -> None:
    """Padding: what lies outside is never read (the array ends at the end of a page)."""
    i = Var("i")
    a, b = buffer("a", f32, n), buffer("b", f32, n + 6)
    inside = Op("and", (i >= 3, i < n + 3))
    func = PrimFunc("pad", (a, b), For(i, n + 6, Store(b, (i,), select(inside, a[i - 3], 0.5)), kind))  # type: ignore[arg-type]
    for size in (1, 5, 16, 40):
        check(func, [values(f32, size), np.zeros(size + 6, "f")], n=size)


def test_select_on_data_and_index() -> None:
    v, r = Var("v"), Var("r")
    a, b, c = buffer("a", f32, 8, 20), buffer("b", f32, 20), buffer("c", f32, 8, 20)
    row = select(r < 3, b[v], a[r - 3, v])
    value = select(row > 0, a[r, v] * b[r], select(equal(v % 2, 0), b[v], row))
    func = PrimFunc("f", (a, b, c), loop("r", 8, loop("v", 20, Store(c, (r, v), value), "vectorized")))
    check(func, [values(f32, (8, 20)), values(f32, 20, 1), np.zeros((8, 20), "f")])


def test_uniform_load_under_mask() -> None:
    """A load that is the same for all lanes happens only if a lane is on."""
    v, r = Var("v"), Var("r")
    a, b = buffer("a", f32, 3), buffer("b", f32, 4, 16)
    guarded = select(v + r * 16 < 40, a[r], -1.0)
    func = PrimFunc("f", (a, b), loop("r", 4, loop("v", 16, Store(b, (r, v), guarded), "vectorized")))
    check(func, [values(f32, 3), np.zeros((4, 16), "f")])


@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [f32, f64, i32, u8, i64], ids=str)
def test_vectorized_reduction(op: str, dtype: DType) -> None:
    v, r = Var("v"), Var("r")
    a, b = buffer("a", dtype, 4, 27), buffer("b", dtype, 4)
    more = a[r, v] + const(1, dtype)
    data = np.random.default_rng(0).integers(-3, 4, (4, 27)).astype(dtype.numpy)
    texts = []
    for value in (Op(op, (b[r], more)), Op(op, (more, b[r]))):
        func = PrimFunc("f", (a, b), loop("r", 4, loop("v", 27, Store(b, (r,), value), "vectorized")))
        texts.append(emit_llvm(func, V3))
        check(func, [data, np.ones(4, dtype.numpy)])
        if dtype.is_float:
            undefined = data.copy()
            undefined[1, 5] = np.nan
            check(func, [undefined, np.ones(4, dtype.numpy)])
    assert texts[0] == texts[1], "whichever side the buffer stands on"


@pytest.mark.parametrize(
    ("divisor", "ordinary"),
    [
        (const(3), True),
        (n + 1, True),
        (1 + n, True),
        (n + m, False),  # both may be 0
        (n, False),
        (maximum(n, 1), True),
        (maximum(2, n), True),
        (maximum(n, m), False),
        ((n + 1) * (m + 2), True),
        ((n + 1) * m, False),
        (Var("p", lo=1), True),
        (Var("q"), False),
        (n - 1, False),
    ],
    ids=str,
)
def test_what_is_plainly_positive_divides_without_signs(divisor: Expr, ordinary: bool) -> None:
    """The remainder of a loop's number is natural then, and needs one instruction; else there are those for signs."""
    i = Var("i")
    a = buffer("a", i64, 40)
    symbols = [v for v in (n, m, Var("p", lo=1), Var("q")) if v in variables(divisor)]
    sizes = [buffer(f"size_{v.name}", i8, v) for v in symbols]
    func = PrimFunc("f", (a, *sizes), For(i, const(40), Store(a, (i,), (i % divisor + 2) // 2), "serial"))
    text = emit_llvm(func, V3)
    assert (" sdiv " not in text and " srem " not in text and " select " not in text) == ordinary, text
    if not any(v.name == "q" for v in symbols):
        arguments = {v.name: 5 for v in symbols}
        check(func, [np.zeros(40, np.int64), *(np.zeros(5, np.int8) for _ in symbols)], **arguments)


def test_masked_and_logical_reductions() -> None:
    v = Var("v")
    a, b, c = buffer("a", f32, 40), buffer("b", f32, 1), buffer("c", boolean, 1)
    zero = (const(0),)
    body = seq(
        [
            If(v < n, Store(b, zero, Op("max", (a[v], b[0])))),
            Store(c, zero, Op("and", (c[0], a[v] < 100.0))),
        ]
    )
    func = PrimFunc("f", (a, b, c, buffer("limit", i8, n)), For(v, const(40), body, "vectorized"))
    data = np.arange(40, dtype="f")
    for _ in range(2):
        check(func, [data, np.zeros(1, "f"), np.ones(1, bool), np.zeros(17, "b")], n=17)
        data[30] = 100


def test_lanes_that_depend_on_each_other_run_in_order() -> None:
    v, w, x, y = Var("v"), Var("w"), Var("x"), Var("y")
    a, s, out = buffer("a", f32, 33), buffer("s", f32, 1), buffer("out", f32, 33)
    zero = (const(0),)
    prefix = seq([Store(s, zero, s[0] + a[v]), Store(out, (v,), s[0])])
    shift = Store(a, (w + 1,), a[w] * 0.5)
    last = Store(s, zero, a[x])
    histogram = Store(out, (y // 2,), out[y // 2] + 1.0)
    for var, extent, body in [(v, 33, prefix), (w, 32, shift), (x, 33, last), (y, 33, histogram)]:
        func = PrimFunc("f", (a, s, out), For(var, const(extent), body, "vectorized"))
        check(func, [np.arange(33, dtype="f"), np.zeros(1, "f"), np.zeros(33, "f")])


def test_allocation_inside_lanes_is_private() -> None:
    v, k = Var("v"), Var("k")
    a, out, acc = buffer("a", f32, 5, 21), buffer("out", f32, 21), buffer("acc", f32, 2, scope="local")
    zero, one = (const(0),), (const(1),)
    body = Allocate(
        acc,
        seq(
            [
                Store(acc, zero, const(0.0)),
                Store(acc, one, const(1.0)),
                For(k, const(5), seq([Store(acc, zero, acc[0] + a[k, v]), Store(acc, one, acc[1] * a[k, v])])),
                Store(out, (v,), acc[0] + acc[1]),
            ]
        ),
    )
    func = PrimFunc("f", (a, out), For(v, const(21), body, "vectorized"))
    data = np.random.default_rng(0).integers(-2, 3, (5, 21)).astype("f")
    check(func, [data, np.zeros(21, "f")])


@pytest.mark.parametrize(("unrolled", "lanes"), [(8, 1), (1, 37), (3, 8), (5, 5)])
def test_a_buffer_has_one_place(unrolled: int, lanes: int) -> None:
    """However often its code is written; every lane has its own part of it."""
    i, v = Var("i"), Var("v")
    a, b, t = buffer("a", f32, 64), buffer("b", f32, 64), buffer("t", f32, 2)
    at, zero, one = i * lanes + v, (const(0),), (const(1),)
    body = seq([Store(t, zero, a[at]), Store(t, one, t[0] * 2.0), Store(b, (at,), t[0] + t[1])])
    inner = loop("v", lanes, Allocate(t, body), "vectorized" if lanes > 1 else "serial")
    func = PrimFunc("f", (a, b), loop("i", unrolled, inner, "unrolled"))
    (place,) = [line for line in emit_llvm(func, HOST).splitlines() if "alloca" in line]
    assert f"[{2 * lanes} x float]" in place
    check(func, [np.arange(64, dtype="f"), np.zeros(64, "f")])


def test_let_if_else_and_index_arithmetic() -> None:
    v, r, t = Var("v"), Var("r"), Var("t", f32)
    a, b = buffer("a", f32, 6, 18), buffer("b", f32, 6, 18)
    body = Let(
        t,
        a[r, v] * 2.0,
        If(
            equal((v + r) % 3, 0),
            Store(b, (r, v), t),
            If(t > 0, Store(b, (r, v), -t), Store(b, (r, v), cast(v * r, f32))),
        ),
    )
    func = PrimFunc("f", (a, b), loop("r", 6, For(v, const(18), body, "vectorized")))
    check(func, [values(f32, (6, 18)), np.zeros((6, 18), "f")])


@pytest.mark.parametrize("rows, columns", [(6, 64), (8, 48), (12, 32), (14, 32), (3, 13), (2, 7)])
def test_register_tile_stays_in_registers(rows: int, columns: int) -> None:
    # any machine: the text is read where vectors have 512 bits
    func = gemm_tile(rows, columns, 9)
    data = [np.random.default_rng(k).integers(-3, 4, s).astype("f") for k, s in enumerate([(9, rows), (9, columns)])]
    check(func, [*data, np.zeros((rows, columns), "f")])
    if HOST.vector_bits == 512:
        from tilewright.codegen.llvm.emit import assembly

        assert "(%rsp)" not in assembly(emit_llvm(func, HOST), HOST)


def gemm_tile(rows: int, columns: int, depth: int) -> PrimFunc:
    a, b = buffer("a", f32, depth, rows), buffer("b", f32, depth, columns)
    c, acc = buffer("c", f32, rows, columns), buffer("acc", f32, rows, columns, scope="local")
    i, j, k, i1, j1, i2, j2 = (Var(x) for x in "i j k i1 j1 i2 j2".split())
    body = Allocate(
        acc,
        seq(
            [
                loop("i", rows, loop("j", columns, Store(acc, (i, j), const(0.0)), "vectorized"), "unrolled"),
                loop(
                    "k",
                    depth,
                    loop(
                        "i1",
                        rows,
                        loop("j1", columns, Store(acc, (i1, j1), acc[i1, j1] + a[k, i1] * b[k, j1]), "vectorized"),
                        "unrolled",
                    ),
                ),
                loop("i2", rows, loop("j2", columns, Store(c, (i2, j2), acc[i2, j2]), "vectorized"), "unrolled"),
            ]
        ),
    )
    return PrimFunc("tile", (a, b, c), body)


def test_text_is_deterministic() -> None:
    # any machine: a text is compared with itself
    texts = {emit_llvm(gemm_tile(3, 24, 4), HOST) for _ in range(3)}
    assert len(texts) == 1


def test_objects_do_not_depend_on_what_a_thread_compiled_before() -> None:
    """LLVM's code generator is kept from kernel to kernel, for two targets in turns, and each thread has its own."""
    # any machine: objects are compared with each other
    texts = [
        (emit_llvm(pointwise("a", [dtype], dtype, lambda x: Op("sqrt", (x * x + 1.0,)), "vectorized"), target), target)
        for target in (HOST, Target.parse("x86-64-v3"), HOST)
        for dtype in (f32, f64)
    ]
    here = [compile_llvm(*text) for text in [*texts, *reversed(texts)]]
    for text, first, last in zip(texts, here[: len(texts)], reversed(here), strict=False):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(compile_llvm, *text).result() == first == last


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_parallel_loop_is_shared(threads: int) -> None:
    i, j = Var("i"), Var("j")
    a, b, c = buffer("a", f32, n, m), buffer("b", f32, n, m), buffer("c", f32, 1)
    body = seq(
        [
            Store(c, (const(0),), c[0] + 1.0),
            For(i, n, For(j, m, Store(b, (i, j), a[i, j] + 1.0), "vectorized"), "parallel"),
        ]
    )
    func = PrimFunc("f", (a, b, c), body)
    for size in (0, 1, 4, 7):
        data = values(f32, (size, 5))
        check(func, [data, np.zeros((size, 5), "f"), np.zeros(1, "f")], threads=threads, n=size, m=5)


def test_barriers_stand_between_dependent_loops() -> None:
    i, j, k = Var("i"), Var("j"), Var("k")
    a, b, c = buffer("a", f32, n), buffer("b", f32, n), buffer("c", f32, n)
    first = For(i, n, Store(b, (i,), a[i]), "parallel")
    dependent = For(j, n, Store(c, (j,), b[n - 1 - j]), "parallel")
    separate = For(k, n, Store(c, (k,), a[k]), "parallel")

    def count(body: Stmt) -> int:
        return emit_llvm(PrimFunc("f", (a, b, c), body), HOST).count("call void @tw_barrier")

    assert count(first) == 1
    assert count(seq([first, dependent])) == 2
    assert count(seq([first, separate])) == 1


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_other_vector_widths(name: str) -> None:
    target = Target.parse(name)
    if not set(target.features) <= set(HOST.features):
        pytest.skip(f"this machine cannot run {name}")
    check(gemm_tile(4, 19, 5), [np.ones((5, 4), "f"), np.ones((5, 19), "f"), np.zeros((4, 19), "f")], target=target)


def test_cross_emission() -> None:
    from tilewright.codegen.llvm.emit import assembly

    target = Target.parse("neoverse-n1")
    assert "fmla" in assembly(emit_llvm(gemm_tile(4, 8, 5), target), target)


def test_half_precision_rounds_each_operation() -> None:
    func = pointwise("f", [f16, f16], f16, lambda x, y: x * y + x, "vectorized")
    check(func, [values(f16, 50), values(f16, 50, 1), np.zeros(50, np.float16)], n=50)


def test_kernel_reused() -> None:
    func = pointwise("f", [i4], i4, lambda x: x + const(1, i4), "vectorized")
    kernel = native(func)
    for size in (0, 3, 30):
        data = values(i4, size)
        out = np.zeros(size, data.dtype)
        call(kernel, [data, out], [size])
        want = (data.astype(np.int32) + 1 + 8) % 16 - 8
        np.testing.assert_array_equal(out.astype(np.int32), want)


def test_constants_of_every_type() -> None:
    i = Var("i")
    outputs = [buffer(f"o_{t}", t, 3) for t in ALL]
    body = seq(Store(b, (i,), Const(True if b.dtype is boolean else 1, b.dtype)) for b in outputs)
    func = PrimFunc("f", tuple(outputs), For(i, const(3), body, "vectorized"))
    check(func, [np.zeros(3, b.dtype.numpy) for b in outputs])


def test_text_of_a_vector_loop(golden: Callable[..., None]) -> None:
    """The text of a loop: whole vectors, then one masked vector."""
    i = Var("i")
    a, b = buffer("a", f32, n, align=64), buffer("b", f32, n, align=64)
    func = PrimFunc("scale", (a, b), For(i, n, Store(b, (i,), a[i] * 2.0), "vectorized"))
    golden(emit_llvm(func, Target.parse("x86-64-v4")), "ll")


def test_text_of_a_register_tile(golden: Callable[..., None]) -> None:
    golden(emit_llvm(gemm_tile(2, 16, 8), Target.parse("x86-64-v4")), "ll")


def test_errors_name_the_thing() -> None:
    i = Var("i")
    a = buffer("a", f32, 4)
    big = buffer("big", f32, n, scope="local")
    with pytest.raises(CompileError, match=r"big.*constant size"):
        emit_llvm(PrimFunc("f", (a, buffer("b", f32, n)), Allocate(big, Store(a, (const(0),), big[0]))), HOST)
    with pytest.raises(CompileError, match="'elsewhere'"):
        emit_llvm(PrimFunc("f", (a,), Store(a, (const(0),), buffer("elsewhere", f32, 4)[0])), HOST)
    with pytest.raises(CompileError, match="loop 'i'"):
        emit_llvm(PrimFunc("f", (a,), For(i, const(4), Store(a, (i,), const(0.0)), "thread", "blockIdx.x")), HOST)
    with pytest.raises(CompileError, match="variable 'i'"):
        emit_llvm(PrimFunc("f", (a,), Store(a, (i,), const(0.0))), HOST)
    with pytest.raises(CompileError, match="LLVM refused"):
        compile_llvm("define void @f() { ret i32 0 }", HOST)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_meet_at_barriers(threads: int) -> None:
    """Dependent parallel loops inside a serial loop, single statements between them, run by real threads."""
    t, i, j, k = Var("t"), Var("i"), Var("j"), Var("k")
    a, b, c = buffer("a", i32, n), buffer("b", i32, n), buffer("c", i32, 1)
    zero = (const(0),)
    step = seq(
        [
            For(i, n, Store(b, (i,), a[(i + 1) % n] + c[0]), "parallel"),
            Store(c, zero, c[0] * 3 + b[n - 1]),
            For(j, n, Store(a, (j,), b[n - 1 - j] ^ c[0]), "parallel"),
        ]
    )
    tail = If(c[0] > 0, For(k, n, Store(b, (k,), a[k] + 1), "parallel"), Store(c, zero, const(7, i32)))
    func = PrimFunc("f", (a, b, c), seq([For(t, const(6), step), tail]))
    got = [np.arange(11, dtype=np.int32), np.zeros(11, np.int32), np.ones(1, np.int32)]
    want = [x.copy() for x in got]
    interpret(func, want, symbols={"n": 11})
    call_in_threads(func, got, [11], threads)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


def test_unrolling_has_a_limit() -> None:
    i, j, k = Var("i"), Var("j"), Var("k")
    a = buffer("a", f32, 16, 16, 16)
    nest: Stmt = Store(a, (i, j, k), cast(i * 256 + j * 16 + k, f32))
    for var in (k, j, i):
        nest = For(var, const(16), nest, "unrolled")
    func = PrimFunc("f", (a,), nest)
    assert emit_llvm(func, V3).count("store ") == 256
    data = np.zeros((16, 16, 16), "f")
    run(func, data)
    np.testing.assert_array_equal(data.ravel(), np.arange(16**3))


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 16, 29, 1000])
def test_lanes_divided_by_constants(divisor: int) -> None:
    """Quotients and remainders of fused indices, below zero too, as data and as addresses."""
    i, v = Var("i"), Var("v")
    a, q, r = buffer("a", i32, 1000), buffer("q", i64, 9, 19), buffer("r", i32, 9, 19)
    fused = i * 19 + v * 3 - 40
    body = seq(
        [
            Store(q, (i, v), fused // divisor * 1000 + fused % divisor),
            Store(r, (i, v), a[(i * 19 + v) // divisor] + a[(i * 19 + v) % divisor]),
        ]
    )
    func = PrimFunc("f", (a, q, r), loop("i", 9, For(v, const(19), body, "vectorized")))
    check(func, [values(i32, 1000), np.zeros((9, 19), np.int64), np.zeros((9, 19), np.int32)])
    text = emit_llvm(func, V3)
    assert "x i64> %" not in "".join(line for line in text.splitlines() if "div " in line or "rem " in line)


@pytest.mark.parametrize(("extent", "expected"), [(26, (16, 10)), (7, (7,)), (48, (16, 16, 16)), (1, (1,))])
def test_what_no_vector_fills_is_one_register(extent: int, expected: tuple[int, ...]) -> None:
    assert widths(extent, 16) == expected
