"""precision="fp16": products of f16 in registers of matrices (TDPFP16PS, emulated), or of weights that are widened
where the machine has none."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, needs_compiler, products
from tests.plans.matmul.test_split import AMX, linear, passed, weights
from tilewright import ops
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import f16
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.plans import plan
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

ROWS, DEPTH, COLUMNS = 40, 70, 50


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float64)


def exact(x: np.ndarray, parameters: dict[str, np.ndarray]) -> np.ndarray:
    """The product of rounded factors, in double precision, with its bias and ReLU."""
    return np.maximum(rounded(x) @ rounded(parameters["w"]).T + parameters["b"], 0)


def test_the_code() -> None:
    graph = passed(linear(128, 768, 768), AMX, "auto", precision="fp16")
    (group,) = [g for g in fuse(graph) if any(n.op == "lowered.matmul_tiles" for n in g.nodes)]
    func = lower_loops(plan(lower_group(group, "kernel").func, AMX).func, AMX)
    text = assembly(emit_llvm(func, AMX), AMX)
    assert text.count("\ttdpfp16ps\t") == 4 and "tdpbf16ps" not in text


@pytest.mark.parametrize("cpu", ["x86-64-v4", "sapphirerapids", "cortex-a72"])
def test_machines_without_it_widen_weights(cpu: str) -> None:
    graph = passed(linear(128, 768, 768), Target.parse(cpu), "auto", precision="fp16")
    (node,) = [n for n in graph.nodes if n.op.startswith("lowered.matmul")]
    assert node.op == "lowered.matmul_packed" and node.operands(2)[1].dtype is f16


@pytest.mark.daily(3)
@needs_compiler
@pytest.mark.parametrize("rows", [ROWS, None, 64])
def test_programs(rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sums differ from the exact product of rounded factors, subnormal ones too; infinities go through."""
    rng, parameters = np.random.default_rng(0), weights(COLUMNS, DEPTH)
    parameters["w"][3] *= np.float32(2.0**-24)  # subnormal in f16
    model = tw.compile((linear(rows, DEPTH, COLUMNS), parameters), target=amx(monkeypatch), precision="fp16")
    x = rng.standard_normal((rows or ROWS, DEPTH)).astype(np.float32)
    before, want = products(), exact(x, parameters)
    got = np.asarray(model(x))
    if products() == before:  # the estimate for this machine took vectors, whose rows are not rounded
        assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()
        return
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
    x[3, 5] = np.inf
    with np.errstate(all="ignore"):
        want = exact(x, parameters)
    np.testing.assert_array_equal(np.isinf(np.asarray(model(x))), np.isinf(want))


def narrow_model() -> tuple[tw.Graph, dict[str, np.ndarray]]:
    builder = GraphBuilder("narrow")
    x = builder.input("x", TensorType(f16, (const(ROWS), const(DEPTH))))
    w = builder.param("w", TensorType(f16, (const(DEPTH), const(COLUMNS))))
    return builder.finish((ops.emit1(builder, "matmul", x, w),)), {
        "w": np.random.default_rng(1).standard_normal((DEPTH, COLUMNS)).astype(np.float16)
    }


@needs_compiler
@pytest.mark.parametrize(("precision", "least", "most"), [("fp16", 0.0, 6e-4), ("bf16", 6e-4, 1e-2)])
def test_models_of_f16(precision: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """f16 multiplies them as they are, bf16 rounds them first; the result is rounded once."""
    graph, parameters = narrow_model()
    model = tw.compile((graph, parameters), target=amx(monkeypatch), precision=precision)
    x = np.random.default_rng(0).standard_normal((ROWS, DEPTH)).astype(np.float16)
    want = x.astype(np.float64) @ parameters["w"].astype(np.float64)
    got = np.asarray(model(x)).astype(np.float64)
    assert least <= np.abs(got - want).max() / np.abs(want).max() <= most
