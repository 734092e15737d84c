"""Products over the pixels of maps in NCHW whose elements have 16 bits: loops against double precision."""

from __future__ import annotations

import numpy as np
import pytest

from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.dtype import DType, bf16, f16, f32
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.plans import plan
from tilewright.plans.convolution.pixels import PLAN
from tilewright.plans.framework.analysis import analyse
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import Group
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

SHAPE = (2, 32, 7, 9)


def widened(kind: DType, shape: tuple[int, ...] = SHAPE) -> PrimFunc:
    """A convolution of one pixel, in two groups, that reads f32 or widens what it reads."""
    b = GraphBuilder("model")
    x, w = b.input("x", TensorType(kind, tuple(map(const, shape)))), b.input("w", tensor(2, 2, shape[1] // 2, 8))
    read = x if kind is f32 else ops.emit1(b, "cast", x, dtype=f32)
    graph = b.finish((ops.emit1(b, "lowered.conv_pointwise_groups", read, w, channels=24),))
    return lower_group(Group(graph.nodes, graph.inputs, graph.outputs), "kernel").func


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["znver4", "haswell", "generic-aarch64"])
@pytest.mark.parametrize("kind", [f16, bf16], ids=str)
def test_floats_of_16_bits_are_widened_where_a_run_is_copied(kind: DType, name: str) -> None:
    """Once, not for each panel that reads them; a line that is prefetched holds twice as many."""
    target = Target.parse(name)
    settings = {k: PLAN.candidates(analyse(widened(k)), target) for k in (f32, kind)}
    assert {c.knob("copied") for c in settings[f32]} == {0, 1} and {c.knob("copied") for c in settings[kind]} == {1}
    planned = plan(widened(kind), target)
    assert planned.plan == "pixels"
    func, rng = lower_loops(planned.func, target), np.random.default_rng(0)
    x, w = rng.standard_normal(SHAPE).astype(kind.numpy), rng.standard_normal((2, 2, 16, 8)).astype(np.float32)
    got = np.zeros((2, 24, 7, 9), np.float32)
    interpret(func, [x, w, got])
    filters = w.astype(np.float64).swapaxes(2, 3).reshape(2, 16, 16)[:, :12]
    want = np.einsum("ngchw,gkc->ngkhw", x.astype(np.float64).reshape(2, 2, 16, 7, 9), filters).reshape(got.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_what_is_prefetched_is_counted_in_bytes_of_the_source() -> None:
    texts = [str(plan(widened(kind, (1, 128, 28, 28)), Target.parse("znver4")).func) for kind in (f32, f16)]
    (wide,), (narrow,) = ({int(part.split(",")[0]) for part in text.split("nbytes=")[1:]} for text in texts)
    assert wide == 2 * narrow
