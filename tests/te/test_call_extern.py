"""Functions of C in elements: the C library's, and those that a build defines."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.c.c_run import compile_c, needs_compiler
from tests.te.conformance import close, evaluate, random
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.c_functions import LIBRARY
from tilewright.ir.parser import parse_func
from tilewright.native.link import compile_text
from tilewright.support.errors import CompileError, ExpressionError

SCALE = """
declare float @llvm.fabs.f32(float)
define float @scale(float %x, i32 %n, i8 signext %m) "target-cpu"="x86-64" {
  %k = sext i8 %m to i32
  %p = mul i32 %n, %k
  %f = sitofp i32 %p to float
  %a = call float @llvm.fabs.f32(float %x)
  %r = fmul float %a, %f
  ret float %r
}
"""


@ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float, ctypes.c_int32, ctypes.c_int8)
def scale_there(x: float, n: int, m: int) -> float:
    return abs(x) * (n * m)


SOURCES: dict[str, Any] = {
    "text": SCALE,
    "object": compile_text(SCALE.replace('"target-cpu"="x86-64"', "")),
    "ctypes": scale_there,
    "python": lambda x, n, m: abs(x) * (n * m),
}
N = te.var("n")
A = te.placeholder((N,), name="A")


def scaled() -> te.Tensor:
    """|A[i]| times i (i - 3), by a function of three types."""
    return te.compute(
        (N,), lambda i: te.call_extern("float32", "scale", A[i], te.cast(i, "int32"), te.cast(i - 3, "int8")), name="B"
    )


def vectors(t: te.Tensor) -> Callable[[Any], Any]:
    return lambda s: s[t].vectorize(s[t].split(t.axis[0], 8)[1])


@pytest.mark.parametrize("name", ["cbrtf", "erfc", "ilogb", "hypotf", "ldexp", "fma"])
def test_functions_of_math_h(name: str) -> None:
    """In vectors, by the interpreter, and as the process's own library computes them."""
    known = LIBRARY[name]
    columns = [abs(random((19,), t.numpy.name, k)) + (1 if t.is_float else 0) for k, t in enumerate(known.arguments)]
    inputs = [te.placeholder((19,), c.dtype.name, name=f"A{k}") for k, c in enumerate(columns)]
    c = te.compute((19,), lambda i: te.call_extern(known.result.numpy.name, name, *(t[i] for t in inputs)), name="C")
    (result,) = evaluate(c, list(zip(inputs, columns, strict=True)), schedule=vectors(c))
    kinds = {"f32": ctypes.c_float, "f64": ctypes.c_double, "i32": ctypes.c_int32}
    function = getattr(ctypes.CDLL(None), name)
    function.restype, function.argtypes = kinds[str(known.result)], [kinds[str(t)] for t in known.arguments]
    close(result, np.array([function(*(v.item() for v in row)) for row in zip(*columns, strict=True)], result.dtype))


@pytest.mark.parametrize("source", SOURCES)
def test_functions_that_are_defined(source: str) -> None:
    """By name or as the one that all come from; what is built is a text, and the interpreter calls the same."""
    b = scaled()
    s = te.create_schedule(b)
    vectors(b)(s)
    x, k = random((21,)), np.arange(21)
    built = tw.build(s, [A, b], extern={"scale": SOURCES[source]})
    result, oracle = np.empty_like(x), np.empty_like(x)
    built(x, result)
    interpret(built.func, [x, oracle])
    close(result, abs(x) * (k * (k - 3)))
    close(oracle, result)
    assert parse_func(str(built.func)) == built.func
    assert any("i_1 calls a function of C" in remark for remark in built.log.remarks)


def test_a_file_defines_all(tmp_path: Path) -> None:
    """A Path to LLVM text or to an object, without a name."""
    b = scaled()
    x, k, result = random((5,)), np.arange(5), np.empty(5, np.float32)
    (tmp_path / "scale.ll").write_text(SCALE)
    (tmp_path / "scale.o").write_bytes(SOURCES["object"])
    for name in ("scale.ll", "scale.o"):
        tw.build(te.create_schedule(b), [A, b], extern=tmp_path / name)(x, result)
        close(result, abs(x) * (k * (k - 3)))


def test_it_is_called_for_elements_that_are_computed() -> None:
    """Not for the branch that is not taken, nor past the end of a vector; what it raises, the call raises."""

    def root(x: float) -> float:
        seen.append(x)
        return math.sqrt(x)

    seen: list[float] = []
    b = te.compute((N,), lambda i: te.if_then_else(A[i] > 0, te.call_extern("float32", "root", A[i]), 0.0), name="B")
    s = te.create_schedule(b)
    vectors(b)(s)
    built = tw.build(s, [A, b], extern={"root": root})
    x, result = np.array([4, -1, 9, 0, 16], np.float32), np.empty(5, np.float32)
    built(x, result)
    assert result.tolist() == [2, 0, 3, 0, 4] and seen == [4, 9, 16]
    with pytest.raises(OverflowError, match="int too large"):
        tw.build(te.create_schedule(b), [A, b], extern={"root": lambda x: 1 << 10000})(x, result)
    built(x, result)  # nothing is left of it


def test_two_functions_of_one_name() -> None:
    """Each build calls its own."""
    b = te.compute((N,), lambda i: te.call_extern("int64", "pick", i), name="B")
    results = []
    for factor in (2, 3):
        out = np.empty(4, np.int64)
        built = tw.build(te.create_schedule(b), [b], extern={"pick": lambda i, factor=factor: i * factor})
        built(out)
        results.append(out.tolist())
    assert results == [[0, 2, 4, 6], [0, 3, 6, 9]]


@needs_compiler
def test_c_and_files(tmp_path: Path) -> None:
    """C declares the function; a library has its text inside, an object calls what it is linked with."""
    b = scaled()
    built = tw.build(te.create_schedule(b), [A, b], name="apply", extern={"scale": SCALE})
    text = built.source("c")
    assert "float scale(float, int32_t, int8_t);" in text
    own = "#include <stdint.h>\n#include <math.h>\n"
    own += "float scale(float x, int32_t n, int8_t m) { return fabsf(x) * (n * m); }\n"
    x, k = random((9,)), np.arange(9)
    library, *_ = built.export(tmp_path / "apply.so")
    for function in (compile_c(own + text).apply, ctypes.CDLL(str(library)).apply):
        result = np.empty_like(x)
        function(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(result.ctypes.data), ctypes.c_int64(9))
        close(result, abs(x) * (k * (k - 3)))
    for source, message in (("python", "files have no interpreter"), ("object", "library without a linker")):
        other = tw.build(te.create_schedule(b), [A, b], name="apply", extern={"scale": SOURCES[source]})
        with pytest.raises(CompileError, match=message):
            other.export(tmp_path / "other.so")


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (None, "'scale': an element calls it, and nothing defines it"),
    "another name": ({"scal": SCALE}, "no element calls it: expected scale"),
    "the library's": ({"sinf": SCALE}, "C library has a function of this name"),
    "another type": ({"scale": "define float @scale(float %x) { ret float %x }"}, r"expected define float @scale\("),
    "no text": ({"scale": "scale"}, "LLVM refused the text of C function 'scale'"),
    "no definition": ({"scale": "declare float @scale(float, i32, i8)"}, "does not define it"),
    "hidden": ({"scale": SCALE.replace("define", "define internal")}, "not for callers in C"),
    "another convention": ({"scale": SCALE.replace("define", "define fastcc")}, "not for callers in C"),
    "assembly": ({"scale": 'module asm "garbage"\n' + SCALE}, "instructions of a machine as text"),
    "unknown calls": ({"scale": SCALE.replace("llvm.fabs.f32", "nowhere")}, "does not link"),
    "no object": ({"scale": b"abc"}, "is no object that links"),
    "no file": ({"scale": Path("/nowhere.ll")}, "cannot read '/nowhere.ll'"),
    "another ctypes function": ({"scale": ctypes.CFUNCTYPE(None, ctypes.c_int)(print)}, "is another one"),
    "a number": ({"scale": 3}, "is defined by something else"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    source, message = REFUSED[case]
    b = scaled()
    with pytest.raises(CompileError, match=message):
        tw.build(te.create_schedule(b), [A, b], extern=source)


def test_objects_that_are_cut_or_damaged() -> None:
    """An error, whatever the bytes are."""
    b, whole = scaled(), SOURCES["object"]
    source = np.random.default_rng(0)
    for k in range(40):
        damaged = bytearray(whole[: source.integers(5, len(whole))] if k % 2 else whole)
        for at in source.integers(4, min(64, len(damaged)) if k % 4 else len(damaged), 4):
            damaged[at] = source.integers(256)
        with contextlib.suppress(CompileError):
            tw.build(te.create_schedule(b), [A, b], extern={"scale": bytes(damaged)})


def test_calls_that_are_refused() -> None:
    with pytest.raises(ExpressionError, match=r"C library's, of another type: expected f64\(f64\), got f32\(f32\)"):
        te.compute((N,), lambda i: te.call_extern("float32", "cbrt", A[i]))
    with pytest.raises(ExpressionError, match="C has no such type"):
        te.compute((N,), lambda i: te.call_extern("float32", "f", te.cast(A[i], "float16")))
    for name in ("1f", "a b", "x)", 3):
        with pytest.raises(ExpressionError, match="no name of a C function"):
            te.compute((N,), lambda i, name=name: te.call_extern("float32", name, A[i]))
    twice = te.compute((N,), lambda i: te.call_extern("int64", "f", i) + te.call_extern("int64", "f", i, i), name="B")
    with pytest.raises(CompileError, match="called with several types"):
        tw.build(te.create_schedule(twice), [twice], extern={"f": lambda *i: 0})
    b = scaled()
    s = te.create_schedule(b)
    s[b].parallel(b.axis[0])
    with pytest.raises(CompileError, match="a Python function is called by one thread"):
        tw.build(s, [A, b], threads=2, extern={"scale": SOURCES["python"]})
