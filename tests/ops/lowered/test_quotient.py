"""Quotients by divisors known beforehand, against division."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.compiler import compile_graph
from tilewright.ops import parse_graph
from tilewright.runtime.model import Model
from tilewright.targets.target import Target
from tilewright.transform.passes.divisions import divide_by_products

ODD = np.array(
    [0.0, -0.0, 1.0, -3.0, 1e-3, 7e30, -2e-30, np.inf, -np.inf, np.nan, 3.4e38, 1e-38, 5e-39, 2.0**-126, 255.0],
    np.float32,
)
NORMAL = 2.0**-126


def divided(x: np.ndarray, d: np.ndarray) -> Any:
    text = f"""
    graph @g(%x: f32[{x.shape[0]}, {x.shape[1]}]) params(%d: f32[{d.shape[0]}, 1]) {{
      %y = div(%x, %d) : f32[{x.shape[0]}, {x.shape[1]}]
      return %y
    }}"""
    graph = divide_by_products(parse_graph(text), Target.parse("x86-64-v4"))
    assert [n.op for n in graph.nodes] == ["lowered.reciprocal", "lowered.reciprocal_rest", "lowered.quotient"]
    return np.asarray(Model(compile_graph(graph, {"d": d}, Target.host(), records=None))(x))


@pytest.fixture(scope="module")
def fma() -> None:
    if not Target.host().isa.fma:
        pytest.skip("this machine rounds a product before it adds")


@pytest.mark.usefixtures("fma")
def test_random_quotients() -> None:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((64, 4096)) * np.exp2(rng.integers(-60, 60, (64, 1)))).astype(np.float32)
    d = (rng.standard_normal((64, 1)) * np.exp2(rng.integers(-60, 60, (64, 1)))).astype(np.float32)
    d[:6, 0] = 1.0, 2.0**-40, 1.0 + 2.0**-23, 2.0 - 2.0**-23, -3.0, -0.5
    np.testing.assert_array_equal(divided(x, d), x / d)


@pytest.mark.usefixtures("fma")
def test_ties_of_rounding() -> None:
    """Numbers that fall between two levels of a scale stay there."""
    rng = np.random.default_rng(6)
    d = rng.uniform(1e-4, 1.0, (256, 1)).astype(np.float32)
    x = (d * (np.arange(-300, 300) + 0.5).astype(np.float32)).astype(np.float32)
    np.testing.assert_array_equal(np.rint(divided(x, d)), np.rint(x / d))


@pytest.mark.usefixtures("fma")
def test_odd_numbers() -> None:
    x, d = (np.ascontiguousarray(a) for a in np.broadcast_arrays(ODD[None, :], ODD[:, None]))
    d = d[:, :1]
    with np.errstate(all="ignore"):
        want = x / np.where((np.abs(d) < NORMAL) & (d != 0), np.copysign(np.float32(NORMAL), d), d)
    got = divided(x, d)
    exact = ~(np.abs(want) < NORMAL) & ~(np.abs(d) > 2.0**100)
    np.testing.assert_array_equal(got[exact], want[exact])
    np.testing.assert_allclose(got[~exact], want[~exact], rtol=2.0**-20, atol=2.0**-149)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.parametrize(
    ("text", "target", "left"),
    [
        ("params(%d: f32[8, 1]) { %y = div(%x, %d)", "x86-64-v4", False),
        ("params(%d: f32[]) { %y = div(%x, %d)", "x86-64-v4", False),
        ("params(%d: f32[1, 8]) { %y = div(%x, %d)", "x86-64-v4", False),  # eight rows share each
        ("params(%d: f32[8, 8]) { %y = div(%x, %d)", "x86-64-v4", True),  # each divides one number
        ("params(%d: f32[]) { %y = div(%d, %x)", "x86-64-v4", True),  # by what changes
        ("params(%d: f32[]) { %y = mul(%x, %d)", "x86-64-v4", True),
        ("params(%d: f32[]) { %y = div(%x, %d)", "x86-64-v2", True),  # without multiply-adds
    ],
)
def test_what_is_left_alone(text: str, target: str, left: bool) -> None:
    graph = parse_graph(f"graph @g(%x: f32[8, 8]) {text} : f32[8, 8] return %y }}")
    assert (divide_by_products(graph, Target.parse(target)) is graph) == left


def test_divisors_of_a_batch_that_a_symbol_says() -> None:
    graph = parse_graph(
        "graph @g(%x: f32[n, 8]) params(%d: f32[8]) where n in 1.. { %y = div(%x, %d) : f32[n, 8] return %y }"
    )
    assert divide_by_products(graph, Target.parse("x86-64-v4")) is not graph


@pytest.mark.usefixtures("fma")
@pytest.mark.parametrize("divisor", [0.024205387, -3.0, 1e-3, 0.0, 5e-39])
def test_of_a_number_that_is_known_the_factors_are_numbers(divisor: float) -> None:
    text = """
    graph @g(%x: f32[64, 32]) params(%d: f32[]) {
      %y = div(%x, %d) : f32[64, 32]
      return %y
    }"""
    known = text.replace(" params(%d: f32[])", "").replace(
        "%y =", f"%d = constant() {{value = array f32[] ({np.float32(divisor)!s})}} : f32[]\n      %y ="
    )
    graph = divide_by_products(parse_graph(known), Target.parse("x86-64-v4"))
    assert [n.op for n in graph.nodes] == ["constant", "constant", "lowered.quotient"]
    target = Target.host()
    x = (np.random.default_rng(8).standard_normal((64, 32)) * 100).astype(np.float32)
    ours = Model(compile_graph(parse_graph(known), {}, target, records=None))
    of_weights = Model(compile_graph(parse_graph(text), {"d": np.float32(divisor)}, target, records=None))
    np.testing.assert_array_equal(np.asarray(ours(x)), np.asarray(of_weights(x)))
    assert len(ours.profile(x, repeat=1).kernels) == 1  # any machine: divided or multiplied, it is one kernel
