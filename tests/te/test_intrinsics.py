"""Users' own intrinsics: their meaning as a stage, their code as LLVM text, operands inside of larger arrays."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.te.conformance import close
from tilewright import te
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
    with pytest.raises(ScheduleError, match="must have constant extents"):
        te.intrinsic("test_symbolic", te.compute((n,), lambda i: b[i] * 2.0, name="c"), [b])
    described("test_broken", "define internal void @tw.intrin.test_broken(ptr %a) { nonsense }")
    x, y, z = scaled()
    s = te.create_schedule(z)
    s[z].tensorize(s[z].tile(*z.axis, 2, 4)[2], "test_broken")
    with pytest.raises(CompileError, match="LLVM refused"):
        tw.build(s, [x, y, z])
