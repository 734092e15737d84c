"""Kernels that differ in numbers alone are one kernel, which reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.runtime.model import Model

RNG = np.random.default_rng(23)


def compiled(text: str, weights: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Model]:
    graph = parse_graph(text)
    return graph, tw.compile((graph, weights or {}), **options)


def kernels(model: Model) -> list[str]:
    """The kernels that `run` calls, in order."""
    return [step.kernel for step in model.manifest.run_steps]


def check(graph: Any, model: Model, *arrays: Any, weights: dict[str, Any] | None = None) -> None:
    """A model against the interpreter."""
    got = model(*arrays)
    want = run_graph(graph, {v.name: a for v, a in zip(graph.inputs, arrays, strict=True)}, weights)
    for y, v in zip(got if isinstance(got, tuple) else (got,), graph.outputs, strict=True):
        np.testing.assert_array_equal(y, want[v.name])


def moved(op: str, dtype: str, *numbers: float) -> str:
    """A graph in which each number meets its own input, one kernel each."""
    inputs = ", ".join(f"%x{k}: {dtype}[n, 37]" for k in range(len(numbers)))
    body = "".join(
        f"%c{k} = constant() {{value = array {dtype}[] ({c})}} : {dtype}[]\n"
        f"%y{k} = {op}(%x{k}, %c{k}) : {dtype}[n, 37]\n"
        for k, c in enumerate(numbers)
    )
    outputs = ", ".join(f"%y{k}" for k in range(len(numbers)))
    return f"graph @g({inputs}) where n in 0.. {{\n{body}return {outputs}\n}}"


@pytest.mark.daily(4)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "max", "min"])
@pytest.mark.parametrize(("dtype", "numbers"), [("f32", (1.5, -0.25, 1.5, float("-inf"))), ("i32", (3, -7, 3, 11))])
def test_numbers_of_alike_kernels_are_read(op: str, dtype: str, numbers: tuple[float, ...]) -> None:
    graph, model = compiled(moved(op, dtype, *numbers))
    assert len(set(kernels(model))) == 1 and len(kernels(model)) == len(numbers)
    for n in (0, 1, 5):
        arrays = [RNG.integers(-50, 50, (n, 37)).astype(np.float32 if dtype == "f32" else np.int32) for _ in numbers]
        check(graph, model, *arrays)


def test_a_number_in_all_of_them_stays_in_the_code() -> None:
    _, model = compiled(moved("add", "f32", 2.0, 2.0))
    assert not any(name.startswith("numbers") for name in (p.name for p in model.manifest.packed))


def test_exponents_and_divisors_stay_in_the_code() -> None:
    """Exponents and divisors make other code, and better one."""
    for op, dtype, numbers in (("pow", "f32", (2.0, 3.0)), ("floordiv", "i32", (3, 8))):
        graph, model = compiled(moved(op, dtype, *numbers))
        assert len(set(kernels(model))) == 2
        check(graph, model, *(np.full((2, 37), 5, "f4" if dtype == "f32" else "i4") for _ in numbers))


def test_two_numbers_of_a_kernel_that_are_equal_in_another() -> None:
    body = "".join(
        f"""
        %a{k} = constant() {{value = array f32[] ({a})}} : f32[]
        %b{k} = constant() {{value = array f32[] ({b})}} : f32[]
        %s{k} = add(%x{k}, %a{k}) : f32[5]
        %y{k} = mul(%s{k}, %b{k}) : f32[5]"""
        for k, (a, b) in enumerate([(1.0, 1.0), (2.0, 3.0), (3.0, 1.0)])
    )
    graph, model = compiled(f"graph @g(%x0: f32[5], %x1: f32[5], %x2: f32[5]) {{{body}\n return %y0, %y1, %y2 }}")
    assert len(set(kernels(model))) == 1
    check(graph, model, *(RNG.standard_normal(5).astype(np.float32) for _ in range(3)))


FINITE = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 254.5, 255.5, 1e9, -1e9, 3e38, 127.49, -128.5, 65535.6]
AWKWARD = np.array([*FINITE, np.inf, -np.inf, np.nan], np.float32)
ZERO_POINTS = {"u8": (0, 121, 255), "i8": (-128, 0, 7), "u16": (0, 40000, 65535), "i16": (-32768, 3, 9)}


@pytest.mark.daily(3)
@pytest.mark.parametrize("dtype", ZERO_POINTS)
@pytest.mark.parametrize("batch", ["18", "n"])
def test_zero_points_after_rounding(dtype: str, batch: str) -> None:
    """Zero points are read as the integers that they are, so that one instruction rounds and converts still."""
    numbers = ZERO_POINTS[dtype]
    body = "".join(
        f"""
        %c{k} = constant() {{value = array f32[] ({float(c)})}} : f32[]
        %r{k} = round(%x{k}) : f32[{batch}]
        %s{k} = add(%r{k}, %c{k}) : f32[{batch}]
        %y{k} = cast(%s{k}) {{dtype = {dtype}}} : {dtype}[{batch}]"""
        for k, c in enumerate(numbers)
    )
    inputs = ", ".join(f"%x{k}: f32[{batch}]" for k in range(len(numbers)))
    where = " where n in 0.." if batch == "n" else ""
    graph, model = compiled(f"graph @g({inputs}){where} {{{body}\n return %y0, %y1, %y2 }}")
    assert len(set(kernels(model))) == 1
    assert "llvm.rint" not in (text := model.show("llvm")) and "roundeven" not in text and "lrint" in text
    check(graph, model, *(AWKWARD for _ in numbers))


def test_numbers_that_are_no_integers_stay_after_rounding() -> None:
    body = "".join(
        f"""
        %c{k} = constant() {{value = array f32[] ({c})}} : f32[]
        %r{k} = round(%x{k}) : f32[18]
        %s{k} = add(%r{k}, %c{k}) : f32[18]
        %y{k} = cast(%s{k}) {{dtype = u8}} : u8[18]"""
        for k, c in enumerate((0.5, 3.0))
    )
    graph, model = compiled(f"graph @g(%x0: f32[18], %x1: f32[18]) {{{body}\n return %y0, %y1 }}")
    assert len(set(kernels(model))) == 2
    check(graph, model, AWKWARD, AWKWARD)


PREPARED = """
graph @g(%x: f32[n, 8]) params(%w0: f32[8, 8], %w1: f32[8, 8]) where n in 1.. {
  %a = constant() {value = array f32[] (2.0)} : f32[]
  %b = constant() {value = array f32[] (3.0)} : f32[]
  %v0 = add(%w0, %a) : f32[8, 8]
  %v1 = add(%w1, %b) : f32[8, 8]
  %m0 = mul(%x, %a) : f32[n, 8]
  %y0 = matmul(%m0, %v0) : f32[n, 8]
  %m1 = mul(%y0, %b) : f32[n, 8]
  %y1 = matmul(%m1, %v1) : f32[n, 8]
  return %y1
}"""


def test_numbers_of_weights_too_and_new_weights(tmp_path: Any) -> None:
    first, second = ({f"w{k}": RNG.integers(-3, 4, (8, 8)).astype(np.float32) for k in range(2)} for _ in range(2))
    graph, model = compiled(PREPARED, first)
    x = RNG.integers(-3, 4, (5, 8)).astype(np.float32)
    model.save(tmp_path / "model.tw")
    for each in (model, tw.load(tmp_path / "model.tw")):
        check(graph, each, x, weights=first)
        each.update(second)
        check(graph, each, x, weights=second)
    assert len({step.kernel for step in model.manifest.prepare_steps}) < len(model.manifest.prepare_steps)
