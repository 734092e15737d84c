"""The algorithm that a product of JAX names says how exact it must be at least."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, needs_compiler, products
from tilewright.compiler import graph_passes
from tilewright.frontend.read import import_model
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.targets import x86
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options

jax = pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")

AMX = x86.processor("graniterapids", (*x86.V4_DOTS, "amx-tile", "amx-int8", "amx-bf16"))
MODULE = """module @m {{
  func.func public @main(%a: tensor<64x256xf32>, %b: tensor<256x256xf32>) -> tensor<64x256xf32> {{
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]{} :
      (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
    return %0 : tensor<64x256xf32>
  }}
}}"""


def named(kind: str, count: int) -> str:
    return (
        f", algorithm = <lhs_precision_type = {kind}, rhs_precision_type = {kind}, accumulation_type = f32, "
        "lhs_component_count = 1, rhs_component_count = 1, "
        f"num_primitive_operations = {count}, allow_imprecise_accumulation = false>"
    )


@pytest.mark.parametrize(
    ("said", "exactness"),
    [
        ("", ""),
        (", precision = [DEFAULT, DEFAULT]", ""),
        (", precision = [HIGH, DEFAULT]", "x3"),
        (", precision = [HIGH, HIGHEST]", "x6"),
        (named("bf16", 1), ""),
        (named("bf16", 3), "x3"),
        (named("bf16", 6), "x6"),
        (named("bf16", 9), "f32"),
        (named("tf32", 1), "x3"),
        (named("tf32", 3), "x6"),
        (named("f16", 1), "x3"),
        (named("f32", 1), "f32"),
    ],
)
def test_what_a_module_names(said: str, exactness: str) -> None:
    (node,) = [n for n in import_model(MODULE.format(said)).graph.nodes if n.op == "matmul"]
    assert node.of(MatmulAttrs).exactness == exactness


def layer(preset: str) -> Any:
    """A product by a preset of JAX's, or of a named precision."""
    known = getattr(jax.lax.DotAlgorithmPreset, preset, preset)

    def function(w: Any, x: Any) -> Any:
        return jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), precision=known)

    return jax.jit(function)


PRESETS = [
    ("DEFAULT", "terms = 3", "terms = 6"),
    ("BF16_BF16_F32", "terms = 3", "terms = 6"),
    ("BF16_BF16_F32_X3", "terms = 3", "terms = 6"),
    ("BF16_BF16_F32_X6", "terms = 6", "terms = 6"),
    ("BF16_BF16_F32_X9", "matmul_packed", "matmul_packed"),
    ("TF32_TF32_F32", "terms = 3", "terms = 6"),
    ("TF32_TF32_F32_X3", "terms = 6", "terms = 6"),
    ("F16_F16_F32", "terms = 3", "terms = 6"),
    ("F32_F32_F32", "matmul_packed", "matmul_packed"),
    ("highest", "terms = 6", "terms = 6"),
]


@pytest.mark.parametrize(("preset", "auto", "exact"), PRESETS)
def test_what_is_chosen(preset: str, auto: str, exact: str) -> None:
    """Never less exact than asked for, and never than the options say."""
    w, x = np.zeros((512, 512), np.float32), np.zeros((128, 512), np.float32)
    read = import_model(layer(preset), example=(w, x), params=0)
    for fast, chosen in (("auto", auto), ("exact", exact)):
        graph = read.graph
        for name, function in graph_passes(AMX, Options(fast=fast)):
            graph = function(graph)
            if name == "assign layouts":
                break
        assert chosen in str(graph)


@pytest.mark.parametrize(("preset", "auto", "exact"), PRESETS)
def test_products_of_two_arguments(preset: str, auto: str, exact: str) -> None:
    """The choice for factors that are both computed, a matrix for each part of a batch."""
    known = getattr(jax.lax.DotAlgorithmPreset, preset, preset)

    def product(a: Any, b: Any) -> Any:
        return jax.lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))), precision=known)

    a, b = np.zeros((2, 1024, 1024), np.float32), np.zeros((2, 1024, 1024), np.float32)
    read = import_model(jax.jit(product), example=(a, b))
    for fast, chosen in (("auto", auto), ("exact", exact)):
        graph = read.graph
        for name, function in graph_passes(AMX, Options(fast=fast)):
            graph = function(graph)
            if name == "assign layouts":
                break
        assert (chosen in str(graph)) if "terms" in chosen else ("matmul_x" not in str(graph))


def compiled(preset: str, arrays: tuple[np.ndarray, np.ndarray], target: Target) -> tw.Model:
    """The product by as many pieces as it names, whatever the estimate for this machine says."""
    with deciding() as record:
        model = tw.compile(layer(preset), arrays, params=0, target=target)
    label = f"split terms={preset[-1]},least=16"
    keys = {d.key.name: label for d in record.decisions if label in d.space.labels}
    if not keys:
        return model
    with forcing(keys):
        return tw.compile(layer(preset), arrays, params=0, target=target)


@needs_compiler
@pytest.mark.parametrize("preset", ["BF16_BF16_F32_X3", "BF16_BF16_F32_X6"])
def test_the_algorithm_is_named(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the schedule, the profile and the list of steps."""
    w, x = np.ones((256, 256), np.float32), np.ones((64, 256), np.float32)
    model = compiled(preset, (w, x), amx(monkeypatch))
    name = f"matmul_x{preset[-1]}"
    assert name in model.show("schedule") and name in str(model.profile(x))
    assert any(name in step.label for step in model.manifest.run_steps)


@needs_compiler
@pytest.mark.parametrize(
    ("preset", "most"), [("BF16_BF16_F32_X3", 1e-5), ("BF16_BF16_F32_X6", 1e-6), ("F32_F32_F32", 2e-6)]
)
def test_functions_of_jax(preset: str, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((256, 128), (64, 256)))
    model = compiled(preset, (w, x), amx(monkeypatch))
    before, exact = products(), x.astype(np.float64) @ w
    got = np.asarray(model(x))
    assert np.abs(got - exact).max() <= most * np.abs(exact).max()
    assert products() - before == {"F32_F32_F32": 0}.get(preset, 4 * 8 * 8 * int(preset[-1]))


def window(precision: str | None, stride: int = 1) -> Any:
    """A convolution of a named precision."""

    def function(w: Any, x: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", precision=precision)

    return jax.jit(function)


@pytest.mark.parametrize(
    ("precision", "exactness", "fast", "allowed"),
    [
        (None, "", "auto", "split_matrices terms=3"),
        ("default", "", "auto", "split_matrices terms=3"),
        ("high", "x3", "auto", "split_matrices terms=3"),
        ("highest", "x6", "auto", "split_matrices terms=6"),
        ("high", "x3", "exact", "split_matrices terms=6"),
        ("highest", "x6", "f2", "split_matrices terms=6"),
    ],
)
def test_convolutions(precision: str | None, exactness: str, fast: str, allowed: str) -> None:
    """HIGHEST allows six terms and no transform but the smallest where the options name that one; HIGH none of those
    whose errors are larger than that of F(4,3)."""
    w, x = np.zeros((128, 128, 3, 3), np.float32), np.zeros((1, 128, 28, 28), np.float32)
    graph = import_model(window(precision), example=(w, x), params=0).graph
    (node,) = [n for n in graph.nodes if n.op == "conv"]
    assert node.of(ConvAttrs).exactness == exactness
    with deciding() as record:
        for name, function in graph_passes(AMX, Options(fast=fast)):
            graph = function(graph)
            if name == "assign layouts":
                break
    (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
    terms = {s.knob("terms") for s in decision.space if s.kind == "split_matrices"}
    assert min(terms) == int(allowed[-1])
    tiles = {s.knob("tile") for s in decision.space if s.kind == "winograd"}
    most = {"auto": 6, "exact": 0, "f2": 2}[fast]
    limit = {"": 6, "x3": 4, "x6": 0}[exactness]
    assert max(tiles, default=0) <= (most if fast == "f2" else min(most, limit))
    assert bool(tiles) == (fast == "f2" or min(most, limit) > 0)


def test_convolutions_of_one_pixel_and_of_lines() -> None:
    """Strassen's method is not for HIGH, and a line's convolution keeps what it names."""
    w, x = np.zeros((512, 512, 1), np.float32), np.zeros((1, 512, 784), np.float32)

    def function(w: Any, x: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1,), "SAME", precision="highest")

    (node,) = [n for n in import_model(jax.jit(function), example=(w, x), params=0).graph.nodes if n.op == "conv"]
    assert node.of(ConvAttrs).exactness == "x6"


@pytest.mark.parametrize("preset", [p.name for p in jax.lax.DotAlgorithmPreset])
def test_every_preset_compiles(preset: str) -> None:
    """No less exact than its name: JAX itself rounds factors to f16 for two of them, and has none in 8 bits for f32."""
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 24), (16, 64)))
    try:
        model = tw.compile(layer(preset), example=(w, x), params=0)
    except tw.Error:
        assert "F8" in preset
        return
    exact = x.astype(np.float64) @ w
    error = np.abs(np.asarray(model(x), np.float64) - exact).max() / np.abs(exact).max()
    assert error <= (2e-2 if preset == "BF16_BF16_BF16" else 2e-3 if preset.startswith("F16") else 1e-6)
