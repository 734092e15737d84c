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
}


def convolution(name: str) -> Graph:
    shape, filters, window, enclosing = split(CASES[name])
    builder = GraphBuilder("convolution")
    x = builder.input("x", TensorType(f32, tuple(map(const, shape))))
    w = builder.param("w", TensorType(f32, tuple(map(const, (filters, shape[1], *window)))))
    y = ops.emit1(builder, "conv", x, w, **enclosing, groups=1)
    y = ops.emit1(builder, "add", y, builder.param("b", TensorType(f32, tuple(map(const, (1, filters, 1, 1))))))
    return builder.finish((ops.emit1(builder, "relu", y),))


def arrays(name: str, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    (shape, filters, window, _), rng = split(CASES[name]), np.random.default_rng(seed)
    x, w, b = (
        rng.standard_normal(size).astype(np.float32)
        for size in (shape, (filters, shape[1], *window), (1, filters, 1, 1))
    )
    return x, {"w": w, "b": b}


def exact(name: str, x: np.ndarray, parameters: dict[str, np.ndarray]) -> np.ndarray:
    """The convolution with its bias and ReLU, in double precision."""
    case = CASES[name]
    _, _, window, enclosing = split(case)
    top, left, bottom, right = enclosing["pads"]
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    (sh, sw), (dh, dw) = enclosing["strides"], enclosing["dilations"]
    height = (padded.shape[2] - (window[0] - 1) * dh - 1) // sh + 1
    width = (padded.shape[3] - (window[1] - 1) * dw - 1) // sw + 1
    total = np.zeros((x.shape[0], parameters["w"].shape[0], height, width))
    for i in range(window[0]):
        for j in range(window[1]):
            part = padded[:, :, i * dh :, j * dw :][:, :, : (height - 1) * sh + 1 : sh, : (width - 1) * sw + 1 : sw]
            total += np.einsum("nchw,kc->nkhw", part, parameters["w"][:, :, i, j].astype(np.float64))
    return np.maximum(total + parameters["b"], 0)


def chosen(name: str, terms: int, *, flat: bool) -> Graph:
    graph = convolution(name)
    with forcing({key_of(graph, AMX): f"split_matrices terms={terms},flat={int(flat)}"}):
        return passed(graph, AMX, "auto")


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


@pytest.mark.parametrize("name", CASES)
def test_the_code(name: str) -> None:
    """All terms at each step of the depth, between loads of their pieces; the epilogue in the same kernel."""
    for terms in TERMS:
        graph = chosen(name, terms, flat=False)
        (group,) = [g for g in fuse(graph) if any(n.op == f"lowered.conv_x{terms}" for n in g.nodes)]
        assert group.label.startswith(f"conv_x{terms} + add + relu")
        func = lower_loops(plan(lower_group(group, "kernel").func, AMX).func, AMX)
        text = assembly(emit_llvm(func, AMX), AMX)
        count = text.count("\ttdpbf16ps\t")
        assert count and count % terms == 0 and text.count("\ttileloadd\t") < 2 * count


def test_it_competes() -> None:
    """With Winograd's transforms and direct convolutions, by the estimate; "exact" takes six terms alone."""
    case = {"x": (1, 512, 7, 7), "filters": 512, "window": (3, 3), "pads": (1, 1, 1, 1)}
    CASES["deep"] = case
    try:
        graph = convolution("deep")
    finally:
        del CASES["deep"]
    for fast, terms in (("auto", {3, 6}), ("exact", {6})):
        with deciding() as record:
            passed(graph, AMX, fast)
        (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
        assert {s.knob("terms") for s in decision.space if s.kind == "split_matrices"} == terms
        assert decision.selected.kind == "split_matrices" and "direct" in decision.space.kinds


@needs_compiler
@pytest.mark.costly(10)
@pytest.mark.parametrize("flat", [False, True], ids=["lines", "flat"])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("name", CASES)
def test_programs(name: str, terms: int, flat: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts of a machine with AMX, its instructions emulated: new weights, infinities and NaN as ever."""
    key = key_of(convolution(name), AMX)
    with deciding() as record:
        passed(convolution(name), AMX, "auto")
    labels = next(d.space.labels for d in record.decisions if d.key.name == key)
    if f"split_matrices terms={terms},flat={int(flat)}" not in labels:
        assert flat  # where lines fill registers
        return
    x, parameters = arrays(name)
    target = amx(monkeypatch)
    for threads in (1, 2):
        model = tw.compile((chosen(name, terms, flat=flat), parameters), target=target, threads=threads)
        for seed in (0, 1):
            x, parameters = arrays(name, seed)
            model.update(parameters)
            before, want = products(), exact(name, x, parameters)
            got = np.asarray(model(x))
            assert products() > before
            assert np.abs(got - want).max() <= {3: 2e-5, 6: 1e-6}[terms] * np.abs(want).max()
        hard = x.copy()
        hard[0, 3, 2, 2], hard[-1, 5, 4, 4] = np.inf, np.nan
        before = products()
        with np.errstate(all="ignore"):
            want = exact(name, hard, parameters)
        np.testing.assert_allclose(np.asarray(model(hard)), want, rtol=1e-4, atol=1e-4)
        assert products() == before
