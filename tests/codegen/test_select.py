"""Selects over shared expressions: text and time grow with what is there, not with the paths through it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.llvm.test_llvm import buffer, check, n, values
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.codegen.llvm.state import State
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Expr, Var, call, const, select
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.targets.target import Target


def ladder(steps: int, kind: str) -> PrimFunc:
    """Each step uses the one before three times; twice it may be the only place that reads memory."""
    i = Var("i")
    a, b, out = (buffer(name, f32, n) for name in ("a", "b", "out"))
    value: Expr = a[i]
    for _ in range(steps):
        value = select(value > 0.25, value * 0.5 + a[i], select(i > 0, b[i] - value, value + 1.0))
    return PrimFunc("ladder", (a, b, out), For(i, n, Store(out, (i,), value), kind))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_values(kind: str) -> None:
    check(ladder(5, kind), [values(f32, 19), values(f32, 19, 1), np.zeros(19, "f")], n=19)


@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_work_grows_with_the_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = 0
    reads = State.reads

    def counted(self: State, e: Expr) -> bool:
        nonlocal questions
        questions += 1
        assert questions < 20_000, "every path through the expression is walked"
        return reads(self, e)

    monkeypatch.setattr(State, "reads", counted)
    emit_llvm(ladder(7, kind), Target.host())
    assert questions > 7


def padded_lines(lines: int) -> PrimFunc:
    """Lines of 16 elements, those past `n` padded: a condition that all lanes share."""
    i, j = Var("i"), Var("j")
    a, out = buffer("a", f32, n, 16), buffer("out", f32, lines, 16)
    body = Store(out, (i, j), select(i < n, a[i, j], 0.0))
    return PrimFunc("lines", (a, out), For(i, const(lines), For(j, const(16), body, "vectorized"), "unrolled"))


@pytest.mark.parametrize("count", [0, 3, 4])
def test_padding_that_all_lanes_share_is_read_under_a_mask(count: int) -> None:
    func = padded_lines(4)
    check(func, [values(f32, (count, 16)), np.ones((4, 16), "f")], n=count)
    masked = emit_llvm(func, Target.parse("znver4"))
    assert masked.count("call <16 x float> @llvm.masked.load") == 4
    assert masked.count("br i1") == 1  # one thread does it
    assert "masked.load" not in emit_llvm(func, Target.parse("generic-aarch64"))


@pytest.mark.parametrize("transposed", [False, True])
def test_what_both_branches_read_is_read_before_them(transposed: bool) -> None:
    """Also where one of them is a selection, whose own branches both read it."""
    i = Var("i")
    a, b, out = (buffer(name, f32, n) for name in ("a", "b", "out"))
    inner = select(b[i] > 0.5, a[i] * 3.0, a[i] * 2.0)
    value = select(a[0] > 0.0, a[i], inner) if transposed else select(i < 7, inner, a[i])
    func = PrimFunc("branches", (a, b, out), For(i, const(16), Store(out, (i,), value), "vectorized"))
    text = emit_llvm(func, Target.parse("znver4"))
    assert len(re.findall(r"load <\d+ x float>, ptr %a", text)) == 1
    check(func, [values(f32, 16), values(f32, 16, 1), np.zeros(16, "f")], n=16)


def test_a_branch_that_all_lanes_share_asks_no_lane() -> None:
    """Expensive work stands after a branch: on the condition itself where it is one for all, else on any lane's."""
    i = Var("i")
    a, out = buffer("a", f32, 16), buffer("out", f32, n, 16)
    x = a[i]
    for condition, shared in ((n > 4, True), (a[0] > 0.5, True), (x > 0.5, False)):
        value = select(condition, x * 2.0, call("pow", x, const(0.3, f32)))
        func = PrimFunc("f", (a, out), For(i, const(16), Store(out, (const(0), i), value), "vectorized"))
        text = emit_llvm(func, Target.parse("znver4"))
        assert " br i1 " in text and ("vector.reduce.or" not in text) == shared, condition
        for size in (4, 5):
            check(func, [abs(values(f32, 16)), np.zeros((size, 16), "f")], ulp=2, n=size)
