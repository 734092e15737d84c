"""Transposed convolutions as convolutions of their phases, by pieces of bf16: against double precision and against the
transposed convolution as it is, by the interpreter and by programs whose AMX instructions are emulated."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, needs_compiler, products
from tests.plans.matmul.test_split import AMX, key_of, passed
from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.targets.target import Target
from tilewright.transform.phases import phases, ranges

CASES: dict[str, dict[str, Any]] = {
    "taps by phase": {"x": (1, 32, 5, 7), "filters": 16, "window": (2, 2), "strides": (2, 2)},
    "four taps": {"x": (2, 48, 5, 6), "filters": 24, "window": (4, 4), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    "three taps": {
        "x": (1, 16, 6, 5),
        "filters": 40,
        "window": (3, 3),
        "strides": (2, 2),
        "pads": (1, 1, 1, 1),
        "output_padding": (1, 1),
    },
    "odd strides": {"x": (1, 32, 4, 6), "filters": 17, "window": (5, 4), "strides": (3, 2), "pads": (2, 0, 1, 3)},
    "cropped": {"x": (1, 32, 6, 6), "filters": 32, "window": (2, 2), "strides": (2, 2), "pads": (1, 1, 3, 3)},
}


def transposed(name: str) -> Graph:
    case = CASES[name]
    shape, filters, builder = case["x"], case["filters"], GraphBuilder("transposed")
    x = builder.input("x", TensorType(f32, tuple(map(const, shape))))
    w = builder.param("w", TensorType(f32, tuple(map(const, (shape[1], filters, *case["window"])))))
    attrs = {"dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1, "output_padding": (0, 0)}
    attrs |= {k: v for k, v in case.items() if k in ("strides", "pads", "output_padding")}
    y = ops.emit1(builder, "conv_transpose", x, w, **attrs)
    return builder.finish((ops.emit1(builder, "relu", y),))


def arrays(name: str, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    case, rng = CASES[name], np.random.default_rng(seed)
    x, w = (
        rng.standard_normal(size).astype(np.float32)
        for size in (case["x"], (case["x"][1], case["filters"], *case["window"]))
    )
    return x, {"w": w}


def exact(name: str, x: np.ndarray, parameters: dict[str, np.ndarray]) -> np.ndarray:
    """Each element of the map adds its window to the result, in double precision; ReLU."""
    case, w = CASES[name], parameters["w"]
    (sh, sw), (kh, kw), (h, v) = case["strides"], case["window"], x.shape[2:]
    top, left, bottom, right = case.get("pads", (0, 0, 0, 0))
    more = case.get("output_padding", (0, 0))
    full = np.zeros((len(x), case["filters"], (h - 1) * sh + kh + more[0], (v - 1) * sw + kw + more[1]))
    for i, j in itertools.product(range(kh), range(kw)):
        tap = np.einsum("nchw,ck->nkhw", x.astype(np.float64), w[:, :, i, j].astype(np.float64))
        full[:, :, i : i + (h - 1) * sh + 1 : sh, j : j + (v - 1) * sw + 1 : sw] += tap
    return np.maximum(full[:, :, top : full.shape[2] - bottom, left : full.shape[3] - right], 0)


def chosen(name: str, label: str) -> Graph:
    with forcing({key_of(transposed(name), AMX): label}):
        return passed(transposed(name), AMX, "auto")


def labels_of(name: str) -> list[str]:
    """The ways by pieces that a transposed convolution has."""
    with deciding() as record:
        passed(transposed(name), AMX, "auto")
    (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
    return [label for label in decision.space.labels if label.startswith("split_")]


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (7, 4)])
def test_each_tap_belongs_to_one_phase(window: int, stride: int) -> None:
    taps = [
        phase + stride * j
        for part in ranges(window, stride)
        for phase in range(part.first, part.first + part.count)
        for j in range(part.taps)
    ]
    assert sorted(taps) == list(range(window))


def test_where_there_are_none() -> None:
    """A phase without taps, dilations and groups have no convolutions."""
    builder = GraphBuilder("transposed")
    x = builder.input("x", TensorType(f32, tuple(map(const, (1, 32, 4, 4)))))
    for window, groups, dilation in ((1, 1, 1), (3, 2, 1), (3, 1, 2)):
        w = builder.param(f"w{window}{groups}{dilation}", TensorType(f32, tuple(map(const, (32, 16, window, window)))))
        attrs = {"strides": (2, 2), "dilations": (dilation,) * 2, "pads": (0, 0, 0, 0), "output_padding": (0, 0)}
        ops.emit1(builder, "conv_transpose", x, w, **attrs, groups=groups)
        assert phases(builder.nodes[-1], 16) == []


def test_it_competes() -> None:
    """By the estimate, where the target has registers of matrices; "exact" takes six terms alone."""
    for fast, terms in (("auto", {3, 6}), ("exact", {6})):
        with deciding() as record:
            passed(transposed("four taps"), AMX, fast)
        (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
        assert {s.knob("terms") for s in decision.space if s.kind == "split_matrices"} == terms
        assert "direct" in decision.space.kinds
    with deciding() as record:
        passed(transposed("four taps"), Target.parse("x86-64-v4"), "auto")
    assert not [d for d in record.decisions if d.key.kind == "algorithm"]


def test_bf16_has_them_too() -> None:
    graph, label = transposed("four taps"), "matrices flat=1"
    with deciding() as record:
        passed(graph, AMX, "auto", precision="bf16")
    (key,) = [d.key.name for d in record.decisions if d.key.kind == "algorithm"]
    with forcing({key: label}):
        lowered = passed(graph, AMX, "auto", precision="bf16")
    assert [n.op for n in lowered.nodes].count("lowered.conv_tiles") == 1
    assert not [n for n in lowered.nodes if n.op == "conv_transpose"]


@pytest.mark.daily(2)
@needs_compiler
@pytest.mark.costly(6)
@pytest.mark.parametrize("label", [f"split_matrices terms={t},flat={flat}" for t in (3, 6) for flat in (0, 1)])
@pytest.mark.parametrize("name", CASES)
def test_programs(name: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """New weights, infinities and NaN as ever."""
    _, parameters = arrays(name)
    target = amx(monkeypatch)
    for threads in (1, 2):
        model = tw.compile((chosen(name, label), parameters), target=target, threads=threads)
        ordinary = tw.compile((chosen(name, "direct"), parameters), target=target)
        for seed in (0, 1):
            x, parameters = arrays(name, seed)
            model.update(parameters)
            before, want = products(), exact(name, x, parameters)
            got = np.asarray(model(x))
            assert products() > before and got.shape == want.shape
            assert np.abs(got - want).max() <= (2e-5 if "terms=3" in label else 1e-6) * np.abs(want).max()
        hard = x.copy()
        hard[0, 3, 2, 2], hard[-1, 5, 3, 4] = np.inf, np.nan
        ordinary.update(parameters)
        before = products()
        np.testing.assert_allclose(np.asarray(model(hard)), np.asarray(ordinary(hard)), rtol=1e-4, atol=1e-4)
        assert products() == before
