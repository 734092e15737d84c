"""Users' own intrinsics: their meaning as a stage, their code as LLVM text, operands inside of larger arrays."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.c.c_run import needs_compiler, run_c
from tests.te.conformance import close
from tilewright import te
from tilewright.builder import BuiltFunction
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.support.errors import CompileError, ExpressionError, ScheduleError


def described(name: str, text: str | None, kind: str = "float32") -> None:
    """Two rows of four, each times a vector."""
    a, b = te.placeholder((2, 4), kind, name="a"), te.placeholder((4,), kind, name="b")
    c = te.compute((2, 4), lambda i, j: a[i, j] * b[j], name="c")
    te.intrinsic(name, c, [a, b], llvm=text)


SCALE = """
define internal void @tw.intrin.NAME(ptr %a, i64 %as, ptr %b, ptr %c, i64 %cs) alwaysinline {
  %b0 = load <4 x float>, ptr %b, align 4
  %a1p = getelementptr float, ptr %a, i64 %as
  %c1p = getelementptr float, ptr %c, i64 %cs
  %a0 = load <4 x float>, ptr %a, align 4
  %a1 = load <4 x float>, ptr %a1p, align 4
  %r0 = fmul <4 x float> %a0, %b0
  %r1 = fmul <4 x float> %a1, %b0
  store <4 x float> %r0, ptr %c, align 4
  store <4 x float> %r1, ptr %c1p, align 4
  ret void
}
"""


def scaled() -> tuple[tw.te.Tensor, ...]:
    x, y = te.placeholder((6, 12), name="X"), te.placeholder((12,), name="Y")
    return x, y, te.compute((6, 12), lambda i, j: x[i, j] * y[j], name="Z")


@pytest.mark.parametrize("text", [SCALE, None], ids=["llvm", "loops"])
def test_rows_inside_of_a_larger_array(text: str | None) -> None:
    name = "test_scale_llvm" if text else "test_scale_loops"
    described(name, text and text.replace("NAME", name))
    x, y, z = scaled()
    s = te.create_schedule(z)
    _, _, i, _ = s[z].tile(*z.axis, 2, 4)
    s[z].tensorize(i, name)
    f = tw.build(s, [x, y, z])
    assert (f"call void @tw.intrin.{name}" in f.source("llvm")) == (text is not None)
    a, b = np.random.default_rng(0).standard_normal((6, 12)), np.random.default_rng(1).standard_normal(12)
    arrays = [a.astype(np.float32), b.astype(np.float32), np.empty((6, 12), np.float32)]
    oracle = [v.copy() for v in arrays]
    f(*arrays)
    interpret(te.lower(s, [x, y, z]), oracle)
    close(arrays[2], oracle[2])
    close(arrays[2], arrays[0] * arrays[1])


def test_a_sum_adds_to_what_is_there() -> None:
    a, b = te.placeholder((2, 4), name="a"), te.placeholder((4,), name="b")
    k = te.reduce_axis((0, 4), name="k")
    te.intrinsic("test_dot_2x4", te.compute((2,), lambda i: te.sum(a[i, k] * b[k], axis=k), name="c"), [a, b])
    x, y = te.placeholder((6, 12), name="X"), te.placeholder((12,), name="Y")
    r = te.reduce_axis((0, 12), name="r")
    z = te.compute((6,), lambda i: te.sum(x[i, r] * y[r], axis=r), name="Z")
    s = te.create_schedule(z)
    _, r_0, i_1, _ = s[z].tile(z.axis[0], r, 2, 4)
    s[z].decompose_reduction(r_0)
    s[z].tensorize(i_1, "test_dot_2x4")
    p, q = np.random.default_rng(0).standard_normal((6, 12)), np.random.default_rng(1).standard_normal(12)
    out = np.empty(6, np.float32)
    tw.build(s, [x, y, z])(p.astype(np.float32), q.astype(np.float32), out)
    np.testing.assert_allclose(out, p @ q, atol=1e-5)


def test_what_is_no_intrinsic_is_refused() -> None:
    described("test_twice", None)
    described("test_twice", None)  # the same again
    with pytest.raises(ScheduleError, match="there is another intrinsic 'test_twice'"):
        described("test_twice", None, "float64")
    with pytest.raises(ExpressionError, match="the text defines no such function"):
        described("test_unnamed", "define void @f() { ret void }")
    a = te.placeholder((4,), name="a")
    two = te.compute((4,), lambda i: te.compute((4,), lambda j: a[j] + 1.0, name="b")[i] * 2.0, name="c")
    with pytest.raises(ExpressionError, match="must be one stage"):
        te.intrinsic("test_two", two, [a])
    with pytest.raises(ExpressionError, match="the output is no stage"):
        te.intrinsic("test_none", a, [])
    n = te.var("n")
    b = te.placeholder((n,), name="b")
    with pytest.raises(ScheduleError, match="must have extents"):
        te.intrinsic("test_symbolic", te.compute((n * 2,), lambda i: b[i // 2] * 2.0, name="c"), [b])
    described("test_broken", "define internal void @tw.intrin.test_broken(ptr %a) { nonsense }")
    x, y, z = scaled()
    s = te.create_schedule(z)
    s[z].tensorize(s[z].tile(*z.axis, 2, 4)[2], "test_broken")
    with pytest.raises(CompileError, match="LLVM refused"):
        tw.build(s, [x, y, z])


C_SCALE = """static void tw_intrin_NAME(const float *a, int64_t a_row, const float *b, float *c, int64_t c_row) {
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) c[i * c_row + j] = a[i * a_row + j] * b[j];
}"""


@needs_compiler
@pytest.mark.parametrize("columns", [12, 4])
def test_c_calls_the_text_with_strides(columns: int) -> None:
    name = "test_scale_c"
    a, b = te.placeholder((2, 4), name="a"), te.placeholder((4,), name="b")
    c = te.compute((2, 4), lambda i, j: a[i, j] * b[j], name="c")
    te.intrinsic(name, c, [a, b], c=C_SCALE.replace("NAME", name))
    x, y = te.placeholder((6, columns), name="X"), te.placeholder((columns,), name="Y")
    z = te.compute((6, columns), lambda i, j: x[i, j] * y[j], name="Z")
    s = te.create_schedule(z)
    s[z].tensorize(s[z].tile(*z.axis, 2, 4)[2], name)
    f = tw.build(s, [x, y, z])
    assert f.source("c").count(f"tw_intrin_{name}(") == 2  # its definition and one call
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in ((6, columns), columns)]
    result = np.empty((6, columns), np.float32)
    run_c(f.flat, [*arrays, result])
    close(result, arrays[0] * arrays[1])


def test_c_text_without_the_function_is_refused() -> None:
    a = te.placeholder((4,), name="a")
    with pytest.raises(ExpressionError, match="the C text defines no such function"):
        te.intrinsic("test_no_c", te.compute((4,), lambda i: a[i] * 2.0, name="c"), [a], c="void f(void) {}")


def in_scope(scope: str, n: int, prefetch: bool = False) -> BuiltFunction:
    """Rows of n f32 that go through a memory of the scope."""
    x = te.placeholder((6, n), name="X")
    z = te.compute((6, n), lambda i, j: x[i, j] + 1.0, name="Z")
    s = te.create_schedule(z)
    copy = s[z].cache_read(x, scope)
    copy.compute_at(s[z], z.axis[0])
    if prefetch:
        copy.double_buffer()
    return tw.build(s, [x, z])


def test_a_memory_holds_what_fits() -> None:
    scope = te.scope("test_sram", 64)
    assert te.scope("test_sram", 64) == scope  # the same again
    a = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)
    out = np.empty_like(a)
    in_scope(scope, 16)(a, out)
    close(out, a + 1)
    half = in_scope(scope, 8, prefetch=True)
    assert "f32[2, 1, 8] in test_sram" in half.source("loops")
    half(a[:, :8].copy(), result := np.empty((6, 8), np.float32))
    close(result, a[:, :8] + 1)
    with pytest.raises(ScheduleError, match=r"what lives in 'test_sram' at once does not fit.*68 bytes"):
        in_scope(scope, 17)
    with pytest.raises(ScheduleError, match="128 bytes"):
        in_scope(scope, 16, prefetch=True)


def test_a_memory_at_the_root_is_not_the_callers() -> None:
    scope = te.scope("test_root_sram", 64)
    x = te.placeholder((16,), name="X")
    y = te.compute((16,), lambda i: x[i] * 2.0, name="Y")
    z = te.compute((16,), lambda i: y[15 - i] + 1.0, name="Z")
    s = te.create_schedule(z)
    s[y].set_scope(scope)
    f = tw.build(s, [x, z])
    assert f.flat.params == f.func.params
    a, out = np.arange(16, dtype=np.float32), np.empty(16, np.float32)
    f(a, out)
    close(out, a[::-1] * 2 + 1)


def test_what_is_no_memory_is_refused() -> None:
    te.scope("test_other_sram", 64)
    for name, capacity, message in (
        ("test_other_sram", 65, "is another memory"),
        ("local", 64, "is another memory"),
        ("two words", 64, "no memory"),
        ("test_empty", 0, "no memory"),
        ("test_true", True, "no memory"),
    ):
        with pytest.raises(ExpressionError, match=message):
            te.scope(name, capacity)
    with pytest.raises(ScheduleError, match="test_unknown_sram"):
        in_scope("test_unknown_sram", 8)
    x = te.placeholder((te.var("n"),), name="X")
    y = te.compute(x.shape, lambda i: x[i] * 2.0, name="Y")
    z = te.compute(x.shape, lambda i: y[i] + y[0], name="Z")
    s = te.create_schedule(z)
    s[y].set_scope("test_other_sram")
    with pytest.raises(ScheduleError, match="has no constant size"):
        tw.build(s, [x, z])
