"""Stages that functions from outside compute: Python functions, functions of ctypes, LLVM text, C."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.c.c_run import compile_c, needs_compiler
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.parser import parse_func
from tilewright.schedule import parse_trace
from tilewright.schedule.external import External, register_external
from tilewright.support.errors import CallError, CompileError, ExpressionError, ScheduleError

SCALE = """
define void @tripled(ptr %x, ptr %y, i64 %n) {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %p = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %p
  %w = call float @llvm.fabs.f32(float %v)
  %t = fmul float %w, 3.0
  %q = getelementptr float, ptr %y, i64 %i
  store float %t, ptr %q
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
declare float @llvm.fabs.f32(float)
"""
FLOATS = ctypes.POINTER(ctypes.c_float)


@ctypes.CFUNCTYPE(None, FLOATS, FLOATS, ctypes.c_int64)
def tripled(x: Any, y: Any, n: int) -> None:
    for k in range(n):
        y[k] = abs(x[k]) * 3


def triple(x: Any, y: Any) -> None:
    y[...] = abs(x) * 3


KINDS: dict[str, Callable[[Any, te.Tensor], Any]] = {
    "python": lambda n, x: te.extern((n,), [x], triple, name="E"),
    "ctypes": lambda n, x: te.extern((n,), [x], tripled, sizes=[n], name="E"),
    "address": lambda n, x: te.extern(
        (n,), [x], "tripled_there", address=ctypes.cast(tripled, ctypes.c_void_p).value, sizes=[n], name="E"
    ),
    "llvm": lambda n, x: te.extern((n,), [x], "tripled", llvm=SCALE, sizes=[n], name="E"),
}


def among_stages(kind: str, n: Any) -> tuple[te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    """An external stage between two others."""
    x = te.placeholder((n,), name="x")
    b = te.compute((n,), lambda i: x[i] - 1.0, name="B")
    e = KINDS[kind](n, b)
    return x, b, e, te.compute((n,), lambda i: e[i] + x[i], name="C")


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 13])
@pytest.mark.parametrize("threads", [1, 2])
def test_among_other_stages(kind: str, size: int, threads: int) -> None:
    x, b, _, c = among_stages(kind, te.var("n"))
    s = te.create_schedule(c)
    s[b].parallel(b.axis[0])
    outer, inner = s[c].split(c.axis[0], factor=4)
    s[c].vectorize(inner)
    s[c].parallel(outer)
    f = tw.build(s, [x, c], threads=threads)
    a = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    out, oracle = np.empty_like(a), np.empty_like(a)
    f(a, out)
    np.testing.assert_allclose(out, abs(a - 1) * 3 + a, rtol=1e-6)
    interpret(f.func, [a, oracle])
    np.testing.assert_array_equal(out, oracle)
    checked = tw.build(s, [x, c], bounds="check")
    checked(a, oracle)
    np.testing.assert_array_equal(out, oracle)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_and_constant_sizes(kind: str) -> None:
    n = te.var("n", lo=0)
    x, _, _, c = among_stages(kind, n)
    f = tw.build(te.create_schedule(c), [x, c])
    f(np.empty(0, np.float32), np.empty(0, np.float32))
    interpret(f.func, [np.empty(0, np.float32), np.empty(0, np.float32)])
    for size in (0, 5):
        x, _, e, _ = among_stages(kind, size)
        out = np.zeros(size, np.float32)
        tw.build(te.create_schedule(e), [x, e])(np.full(size, 3, np.float32), out)
        assert (out == 6).all()


def test_several_outputs_and_types() -> None:
    n, m = te.var("n"), te.var("m")
    x, k = te.placeholder((n, m), "float16", name="x"), te.placeholder((m,), "int8", name="k")
    seen: list[Any] = []

    def both(x: Any, k: Any, order: Any, largest: Any) -> None:
        seen.append((x, order))
        order[...] = np.argsort(x, axis=1) + k
        largest[...] = x.max() > 1

    order, largest = te.extern([(n, m), ()], [x, k], both, dtype=["int64", "bool"], name="both")
    out = te.compute((n, m), lambda i, j: te.if_then_else(largest[()], order[i, j], te.const(-1, "int64")), name="out")
    s = te.create_schedule(out)
    f = tw.build(s, [x, k, out])
    a, b = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float16), np.arange(5).astype(np.int8)
    for values in (a, a * 0):
        result, oracle = np.zeros((2, 3, 5), np.int64)
        f(values, b, result)
        interpret(f.func, [values, b, oracle])
        np.testing.assert_array_equal(result, np.argsort(values, axis=1) + b if values.max() > 1 else -1)
        np.testing.assert_array_equal(result, oracle)
    input_types, retained = seen[0]
    assert (
        not input_types.flags.writeable and (input_types == a).all() and (retained == np.argsort(a, axis=1) + b).all()
    )


def test_what_python_raises_is_raised_by_the_call() -> None:
    n = te.var("n")
    x, table = te.placeholder((n,), name="x"), te.placeholder((4,), name="table")
    failing, second = [True], [0]

    def index(x: Any, i: Any) -> None:
        i[...] = 3
        if failing[0]:
            raise KeyError("no index")

    def after(i: Any, j: Any) -> None:
        second[0] += 1
        j[...] = i

    i = te.extern((n,), [x], index, dtype="int64", name="I")
    j = te.extern((n,), [i], after, dtype="int64", name="J")
    c = te.compute((n,), lambda k: table[j[k]], name="C")
    f = tw.build(te.create_schedule(c), [x, table, c], unchecked=True)
    a, t, out = np.zeros(9, np.float32), np.arange(4, dtype=np.float32), np.full(9, 7, np.float32)
    with pytest.raises(KeyError, match="no index"):
        f(a, t, out)
    assert second == [0] and (out == 0).all()
    with pytest.raises(KeyError, match="no index"):
        interpret(f.func, [a, t, out])
    failing[0] = False
    f(a, t, out)
    assert second == [1] and (out == 3).all()


def test_a_function_that_calls_what_calls_it() -> None:
    x = te.placeholder((3,), name="x")
    depth: list[int] = []

    def repeated(x: Any, y: Any) -> None:
        depth.append(1)
        if len(depth) < 4:
            f(np.ascontiguousarray(x + 1), y)
        else:
            y[...] = x

    y = te.extern((3,), [x], repeated, name="y")
    z = te.compute((3,), lambda i: y[i] * 2.0, name="z")
    f = tw.build(te.create_schedule(z), [x, z], threads=2)
    out = np.empty(3, np.float32)
    f(np.zeros(3, np.float32), out)
    np.testing.assert_array_equal(out, np.full(3, 3 * 16.0))


def test_it_stands_where_it_is() -> None:
    x, b, e, c = among_stages("llvm", 16)
    s = te.create_schedule(c)
    before = str(s)
    for step in (
        lambda: s[e].compute_at(s[c], c.axis[0]),
        lambda: s[e].reverse_compute_at(s[b], b.axis[0]),
        lambda: s[e].compute_inline(),
        lambda: s[e].reverse_compute_inline(),
        lambda: s[e].set_scope("local"),
        lambda: s[b].set_scope("local"),
        lambda: s[b].transform_layout(lambda i: (i // 4, i % 4)),
        lambda: s[e].cache_read(b, "local"),
        lambda: s[b].compute_inline(),
    ):
        with pytest.raises(ScheduleError, match="block 'E' is the call of 'tripled', which sees whole arrays"):
            step()
    with pytest.raises(ScheduleError):
        s[b].compute_at(s[e], "nothing")
    assert str(s) == before and s[e].loops == ()
    cached = s[e].cache_write("global")
    s[cached].vectorize(s[cached].loops[0])
    a, out = np.arange(16, dtype=np.float32), np.empty(16, np.float32)
    tw.build(s, [x, c])(a, out)
    np.testing.assert_array_equal(out, abs(a - 1) * 3 + a)
    trace = parse_trace(str(s.schedule.trace))
    assert trace.replay(te.create_schedule(c).func).func == s.func
    assert parse_func(str(s.func)) == s.func


def test_in_place_is_refused() -> None:
    x = te.placeholder((4,), name="x")
    e = te.extern((4,), [x], triple, name="E")
    with pytest.raises(ScheduleError, match="may be overwritten"):
        tw.build(te.create_schedule(e), [x, e], in_place={e: x})


def test_it_is_no_part_of_a_recurrence() -> None:
    x, state = te.placeholder((5, 3), name="x"), te.placeholder((5, 3), name="state")
    first = te.compute((1, 3), lambda t, i: x[0, i])
    outside = te.extern((5, 3), [state], triple)
    after = te.compute((5, 3), lambda t, i: outside[t, i] + x[t, i])
    with pytest.raises(ExpressionError, match="'extern' is computed whole, not in steps"):
        te.scan(first, after, state)
    inputs = te.extern((5, 3), [x], triple, name="given")
    after = te.compute((5, 3), lambda t, i: state[t - 1, i] + inputs[t, i])
    sums = te.scan(first, after, state)
    a, out = np.ones((5, 3), np.float32), np.empty((5, 3), np.float32)
    tw.build(te.create_schedule(sums), [x, sums])(a, out)
    np.testing.assert_array_equal(out, 1 + 3.0 * np.arange(5)[:, None] * np.ones((1, 3)))


@needs_compiler
def test_c_declares_the_function() -> None:
    x, _, _, c = among_stages("llvm", te.var("n"))
    text = tw.build(te.create_schedule(c), [x, c], "c", name="whole").source("c")
    assert "void tripled(const float *, float *, int64_t);" in text
    body = "\nvoid tripled(const float *x, float *y, int64_t n) { while (n--) y[n] = (x[n] < 0 ? -x[n] : x[n]) * 3; }\n"
    a = np.linspace(-2, 2, 7, dtype=np.float32)
    out, *scratch = np.zeros((3, 7), np.float32)
    library = compile_c(text + body)
    library.whole(*(p.ctypes.data_as(FLOATS) for p in (a, out, *scratch)), ctypes.c_int64(7))
    np.testing.assert_allclose(out, abs(a - 1) * 3 + a, rtol=1e-6)
    x, _, _, c = among_stages("python", 4)
    text = tw.build(te.create_schedule(c), [x, c], "c").source("c")
    assert "void tw_external_triple(const float *, float *, int64_t, int64_t); // a Python function" in text


def test_export(tmp_path: Path) -> None:
    x, _, _, c = among_stages("llvm", 8)
    tw.build(te.create_schedule(c), [x, c], name="whole").export(tmp_path / "whole.so")
    library = ctypes.CDLL(str(tmp_path / "whole.so"))
    a = np.linspace(-2, 2, 8, dtype=np.float32)
    out = np.zeros(8, np.float32)
    library.whole_workspace.restype = ctypes.c_int64
    room = np.zeros(library.whole_workspace() + 64, np.uint8)
    place = room.ctypes.data + -room.ctypes.data % 64
    library.whole(a.ctypes.data_as(FLOATS), out.ctypes.data_as(FLOATS), ctypes.c_void_p(place))
    np.testing.assert_allclose(out, abs(a - 1) * 3 + a, rtol=1e-6)
    x, _, _, c = among_stages("ctypes", 8)
    f = tw.build(te.create_schedule(c), [x, c], name="whole")
    with pytest.raises(
        CompileError, match=r"'function': a library without a linker cannot call it\nhint: export the \".o\""
    ):
        f.export(tmp_path / "other.so")
    f.export(tmp_path / "other.o")
    assert b"function" in (tmp_path / "other.o").read_bytes() and not (tmp_path / "other.so").exists()
    x, _, _, c = among_stages("python", 8)
    with pytest.raises(CompileError, match="'triple': a Python function cannot be exported"):
        tw.build(te.create_schedule(c), [x, c], name="whole").export(tmp_path / "third.o")
    assert not (tmp_path / "third.o").exists()


def test_one_name_for_two_functions() -> None:
    x = te.placeholder((2,), name="x")
    results = []
    for factor in (1.0, 10.0):

        def same(x: Any, y: Any, factor: float = factor) -> None:
            y[...] = x * factor

        results.append(te.extern((2,), [x], same))
    total = te.compute((2,), lambda i: results[0][i] + results[1][i], name="total")
    out = np.empty(2, np.float32)
    tw.build(te.create_schedule(total), [x, total])(np.ones(2, np.float32), out)
    assert (out == 11).all()
    text = SCALE.replace("3.0", "4.0")
    both = [te.extern((2,), [x], "tripled", llvm=t, sizes=[2], name="E") for t in (SCALE, text)]
    total = te.compute((2,), lambda i: both[0][i] + both[1][i], name="total")
    with pytest.raises(CompileError, match="two texts define the function 'tripled'"):
        tw.build(te.create_schedule(total), [x, total])


X = te.placeholder((4,), name="x")
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no function": (lambda: te.extern((4,), [X], 3), "no function: expected .* got int"),  # type: ignore[arg-type]
    "no tensors": (lambda: te.extern((4,), X, triple), "the inputs are tensors"),  # type: ignore[arg-type]
    "types": (lambda: te.extern([(4,), (4,)], [X], triple, dtype=["float32"]), "a type for each output: expected 2"),
    "size": (lambda: te.extern((4,), [X], tripled, sizes=[te.var("m")]), "m is no extent"),
    "sizes of python": (lambda: te.extern((4,), [X], triple, sizes=[4]), "sizes= are for C functions"),
    "text of python": (lambda: te.extern((4,), [X], triple, llvm=SCALE), "llvm= and address= are for functions by"),
    "name": (lambda: te.extern((4,), [X], "a b"), "no name of a C function: got 'a b'"),
    "both": (lambda: te.extern((4,), [X], "f", llvm=SCALE, address=4), "not both"),
    "no definition": (lambda: te.extern((4,), [X], "f", llvm=SCALE), "the text defines no such function"),
    "address": (lambda: te.extern((4,), [X], "f", address=-1), "no address: expected a positive number, got -1"),
    "null": (lambda: te.extern((4,), [X], ctypes.CFUNCTYPE(None)()), "the function of ctypes is NULL"),
    "shape": (lambda: te.extern((4.5,), [X], triple), "not an extent"),
}


@pytest.mark.parametrize("what", WRONG)
def test_refusals(what: str) -> None:
    make, message = WRONG[what]
    with pytest.raises(ExpressionError, match=message) as caught:
        make()
    assert Path(__file__).name in str(caught.value) or what == "shape"


def test_what_is_not_there() -> None:
    y = te.extern((4,), [X], "tw_no_such_function", name="y")
    with pytest.raises(CompileError, match="'tw_no_such_function': this process has no such function"):
        tw.build(te.create_schedule(y), [X, y])
    y = te.extern((4,), [X], "tripled", llvm="define void @tripled(ptr %x) { oops }", name="y")
    with pytest.raises(CompileError, match="LLVM refused LLVM text 0 of an external function"):
        tw.build(te.create_schedule(y), [X, y])
    y = te.extern((4,), [X], triple, name="y")
    f = tw.build(te.create_schedule(y), [X, y])
    with pytest.raises(CallError):
        f(np.zeros(3, np.float32), np.zeros(4, np.float32))
    func = parse_func(str(f.func).replace("triple", "nobody_knows"))
    with pytest.raises(CompileError, match="no intrinsic of this name"):
        tw.build(func)
    short = register_external(External("short", "short", ((5, 0),), address=1))
    with pytest.raises(CompileError, match="'short': is called with other arrays"):
        tw.build(parse_func(str(f.func).replace("triple", short.name)))
