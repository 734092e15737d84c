"""Convolutions of f32 by pieces of bf16: operators against NumPy and double precision, the choice, the code for AMX,
and programs whose AMX instructions are emulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, needs_compiler, products
from tests.ops.oracle import check, reference
from tests.plans.convolution.test_dot_convolution import expected, split
from tests.plans.matmul.test_split import AMX, key_of, passed
from tilewright import ops
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.lowered.split import TERMS, count_of
from tilewright.plans import plan
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

CASES: dict[str, dict[str, Any]] = {
    "padded": {"x": (1, 16, 6, 7), "filters": 19, "window": (3, 3), "pads": (1, 1, 1, 1)},
    "strided": {"x": (2, 48, 9, 8), "filters": 32, "window": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    "one pixel": {"x": (1, 64, 7, 9), "filters": 40, "window": (1, 1)},
    "one pixel, strided": {"x": (1, 32, 8, 8), "filters": 32, "window": (1, 1), "strides": (2, 2)},
    "pads wider than the window": {"x": (1, 16, 7, 7), "filters": 41, "window": (2, 1), "pads": (0, 1, 1, 1)},
    "dilated": {"x": (1, 32, 9, 9), "filters": 16, "window": (3, 3), "dilations": (2, 2), "pads": (2, 2, 2, 2)},
    "two groups": {"x": (1, 96, 6, 7), "filters": 96, "window": (3, 3), "pads": (1, 1, 1, 1), "groups": 2},
    "groups of a block": {"x": (2, 48, 5, 9), "filters": 48, "window": (3, 2), "strides": (2, 1), "groups": 3},
    "groups of one pixel": {"x": (1, 64, 5, 7), "filters": 128, "window": (1, 1), "groups": 4},
}
GATHERED: dict[str, dict[str, Any]] = {
    "stem": {"x": (1, 3, 21, 30), "filters": 40, "window": (7, 7), "strides": (2, 2), "pads": (3, 3, 3, 3)},
    "stem, three lines": {
        "x": (2, 3, 17, 18),
        "filters": 24,
        "window": (3, 3),
        "strides": (2, 2),
        "pads": (0, 0, 1, 1),
    },
    "one channel": {"x": (1, 1, 9, 12), "filters": 32, "window": (5, 3), "dilations": (1, 2), "pads": (2, 1, 2, 1)},
    "seven channels": {"x": (1, 7, 8, 11), "filters": 17, "window": (2, 4), "pads": (1, 0, 1, 3)},
}
EVERY = CASES | GATHERED
DEEP = {"x": (1, 512, 7, 7), "filters": 512, "window": (3, 3), "pads": (1, 1, 1, 1)}


def groups_of(name: str) -> int:
    return EVERY.get(name, DEEP).get("groups", 1)


def convolution(name: str) -> Graph:
    shape, filters, window, enclosing = split(EVERY.get(name, DEEP))
    builder = GraphBuilder("convolution")
    x = builder.input("x", TensorType(f32, tuple(map(const, shape))))
    groups = groups_of(name)
    w = builder.param("w", TensorType(f32, tuple(map(const, (filters, shape[1] // groups, *window)))))
    y = ops.emit1(builder, "conv", x, w, **enclosing, groups=groups)
    y = ops.emit1(builder, "add", y, builder.param("b", TensorType(f32, tuple(map(const, (1, filters, 1, 1))))))
    return builder.finish((ops.emit1(builder, "relu", y),))


def arrays(name: str, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    (shape, filters, window, _), rng = split(EVERY[name]), np.random.default_rng(seed)
    x, w, b = (
        rng.standard_normal(size).astype(np.float32)
        for size in (shape, (filters, shape[1] // groups_of(name), *window), (1, filters, 1, 1))
    )
    return x, {"w": w, "b": b}


def exact(name: str, x: np.ndarray, parameters: dict[str, np.ndarray]) -> np.ndarray:
    """The convolution with its bias and ReLU, in double precision."""
    _, _, window, enclosing = split(EVERY[name])
    top, left, bottom, right = enclosing["pads"]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    (sh, sw), (dh, dw) = enclosing["strides"], enclosing["dilations"]
    height = (padded.shape[2] - (window[0] - 1) * dh - 1) // sh + 1
    width = (padded.shape[3] - (window[1] - 1) * dw - 1) // sw + 1
    w, groups = parameters["w"].astype(np.float64), groups_of(name)
    each, own = w.shape[0] // groups, w.shape[1]
    total = np.zeros((x.shape[0], w.shape[0], height, width))
    for i in range(window[0]):
        for j in range(window[1]):
            part = padded[:, :, i * dh :, j * dw :][:, :, : (height - 1) * sh + 1 : sh, : (width - 1) * sw + 1 : sw]
            for g in range(groups):
                filters = slice(g * each, (g + 1) * each)
                total[:, filters] += np.einsum("nchw,kc->nkhw", part[:, g * own : (g + 1) * own], w[filters, :, i, j])
    return np.maximum(total + parameters["b"], 0)


def chosen(name: str, label: str) -> Graph:
    graph = convolution(name)
    with forcing({key_of(graph, AMX): label}):
        return passed(graph, AMX, "auto")


def labels_of(name: str) -> list[str]:
    """The ways by pieces that a convolution has."""
    graph = convolution(name)
    key = key_of(graph, AMX)
    with deciding() as record:
        passed(graph, AMX, "auto")
    (decision,) = [d for d in record.decisions if d.key.name == key]
    return [label for label in decision.space.labels if label.startswith("split_")]


@pytest.mark.parametrize("terms", TERMS)
def test_the_operator_is_what_its_reference_says(terms: int) -> None:
    rng = np.random.default_rng(terms)
    x, w = rng.standard_normal((1, 1, 3, 4, 4)).astype(np.float32), rng.standard_normal((5, 4, 3, 2)).astype(np.float32)
    count = count_of(terms)
    (pieces,) = reference("lowered.pieces", [w.reshape(5, 24)], {"count": count, "first": False})
    beside = pieces.reshape(5, count * 4, 3, 2)
    (panels,) = reference("lowered.pack_conv_dot", [beside], {"block": 4, "width": 4, "group": 2, "panels": 1})
    case = {"x": (1, 4, 3, 4), "filters": 5, "window": (3, 2), "pads": (1, 0, 1, 1)}
    enclosing = split(case)[-1]
    (y,) = check("lowered.conv_pieces", x, panels, channels=5, rows=2, terms=terms, **enclosing)
    real = np.moveaxis(y, -1, 2).reshape(1, 8, *y.shape[2:4])[:, :5]
    want = expected(case, np.moveaxis(x, -1, 2).reshape(1, 4, 3, 4).astype(np.float64), w.astype(np.float64), 0)
    assert np.abs(real - want).max() <= {3: 3e-5, 6: 2e-6}[terms] * np.abs(want).max()


@pytest.mark.daily(2)
@pytest.mark.parametrize(("terms", "groups"), [(3, 2), (6, 3)])
def test_the_operator_in_groups(terms: int, groups: int) -> None:
    rng, each, filters = np.random.default_rng(terms), 3, 8
    x = rng.standard_normal((2, groups, 4, 5, each)).astype(np.float32)
    w = rng.standard_normal((groups * filters, each + 1, 3, 2)).astype(np.float32)  # of an even depth: the last is zero
    w[:, each] = 0
    (pieces,) = reference("lowered.pieces", [w.reshape(len(w), -1)], {"count": count_of(terms), "first": False})
    beside = pieces.reshape(len(w), count_of(terms) * (each + 1), 3, 2)
    packing = {"block": each + 1, "width": 4, "group": 2, "panels": 1}
    (panels,) = reference("lowered.pack_conv_dot", [beside], packing)
    enclosing = {"strides": (1, 2), "dilations": (1, 1), "pads": (1, 0, 1, 1)}
    how = {"channels": len(w), "rows": 2, "terms": terms, "groups": groups}
    (y,) = check("lowered.conv_pieces", x, panels, **how, **enclosing)
    row_major = np.moveaxis(x, -1, 2).reshape(2, groups * each, 4, 5).astype(np.float64)
    got = np.moveaxis(y, -1, 2).reshape(2, len(w), *y.shape[2:4])
    for g in range(groups):
        case = {"x": (2, each, 4, 5), "filters": filters, "window": (3, 2), **enclosing}
        own = slice(g * filters, (g + 1) * filters)
        part = row_major[:, g * each : (g + 1) * each]
        want = expected(case, part, w[own, :each].astype(np.float64), 0)
        assert np.abs(got[:, own] - want).max() <= {3: 3e-5, 6: 2e-6}[terms] * np.abs(want).max()


@pytest.mark.daily(3)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("lines", [1, 2, 3])
def test_the_operator_of_gathered_lines(terms: int, lines: int) -> None:
    rng, channels, (kh, kw) = np.random.default_rng(lines), 3, (3, 2)
    x = rng.standard_normal((1, 1, 7, 6, channels)).astype(np.float32)
    w = rng.standard_normal((4, channels, kh, kw)).astype(np.float32)
    steps, columns = -(-kh // lines), 2
    deep = np.zeros((4, channels, steps * lines, columns), np.float32)
    deep[:, :, :kh, :kw] = w
    deep = deep.reshape(4, channels, steps, lines, columns).transpose(0, 3, 4, 1, 2)
    depth = lines * columns * channels
    rows = np.ascontiguousarray(deep).reshape(4, depth * steps)
    (pieces,) = reference("lowered.pieces", [rows], {"count": count_of(terms), "first": False})
    beside = pieces.reshape(4, count_of(terms) * depth, steps, 1)
    (panels,) = reference("lowered.pack_conv_dot", [beside], {"block": depth, "width": 4, "group": 2, "panels": 1})
    enclosing = {"strides": (1, 2), "dilations": (1, 1), "pads": (1, 1, 1, 0)}
    how = {"channels": 4, "rows": 2, "terms": terms, "flat": True, "gathered": (kh, kw, lines, columns)}
    (y,) = check("lowered.conv_pieces", x, panels, **how, **enclosing)
    case = {"x": (1, channels, 7, 6), "filters": 4, "window": (kh, kw), **enclosing}
    want = expected(case, np.moveaxis(x[:, 0], -1, 1).astype(np.float64), w.astype(np.float64), 0)
    got = np.moveaxis(y, -1, 2).reshape(1, 4, *y.shape[2:4])
    assert np.abs(got - want).max() <= {3: 3e-5, 6: 2e-6}[terms] * np.abs(want).max()


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", EVERY)
def test_the_code(name: str) -> None:
    """All terms at each step of the depth, between loads of their pieces; the epilogue in the same kernel."""
    for terms in TERMS:
        graph = chosen(name, next(label for label in labels_of(name) if f"terms={terms}" in label))
        (group,) = [g for g in fuse(graph) if any(n.op == f"lowered.conv_x{terms}" for n in g.nodes)]
        assert group.label.startswith(f"conv_x{terms} + add + relu")
        func = lower_loops(plan(lower_group(group, "kernel").func, AMX).func, AMX)
        text = assembly(emit_llvm(func, AMX), AMX)
        count = text.count("\ttdpbf16ps\t")
        assert count and count % terms == 0 and text.count("\ttileloadd\t") < 2 * count


def test_it_competes() -> None:
    """With Winograd's transforms and direct convolutions, by the estimate; "exact" takes six terms alone."""
    graph = convolution("deep")
    for fast, terms in (("auto", {3, 6}), ("exact", {6})):
        with deciding() as record:
            passed(graph, AMX, fast)
        (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
        assert {s.knob("terms") for s in decision.space if s.kind == "split_matrices"} == terms
        assert decision.selected.kind == "split_matrices" and "direct" in decision.space.kinds


@pytest.mark.daily(3)
@needs_compiler
@pytest.mark.costly(10)
@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("name", EVERY)
def test_programs(name: str, terms: int, way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts of a machine with AMX, its instructions emulated: new weights, infinities and NaN as ever. Pixels of
    lines, or all of them, or so many lines gathered."""
    labels = [label for label in labels_of(name) if f"terms={terms}" in label]
    if way >= len(labels):
        assert labels == [f"split_matrices terms={terms},flat=0"]  # where lines fill registers
        return
    x, parameters = arrays(name)
    target = amx(monkeypatch)
    for threads in (1, 2):
        model = tw.compile((chosen(name, labels[way]), parameters), target=target, threads=threads)
        for seed in (0, 1):
            x, parameters = arrays(name, seed)
            model.update(parameters)
            before, want = products(), exact(name, x, parameters)
            got = np.asarray(model(x))
            assert products() > before
            assert np.abs(got - want).max() <= {3: 2e-5, 6: 1e-6}[terms] * np.abs(want).max()
        hard = x.copy()
        hard[0, -1, 2, 2], hard[-1, 0, 4, 4] = np.inf, np.nan
        before = products()
        with np.errstate(all="ignore"):
            want = exact(name, hard, parameters)
        np.testing.assert_allclose(np.asarray(model(hard)), want, rtol=1e-4, atol=1e-4)
        assert products() == before
