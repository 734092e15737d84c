"""precision="fp16": convolutions of f16 in registers of matrices (TDPFP16PS, emulated), where the machine has them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.llvm.amx_run import amx, needs_compiler, products
from tests.plans.convolution.test_split_convolution import CASES, arrays, convolution, exact
from tests.plans.matmul.test_split import AMX, passed
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import f16
from tilewright.plans import plan
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group


def test_the_code() -> None:
    graph = passed(convolution("deep"), AMX, "auto", precision="fp16")
    (group,) = [g for g in fuse(graph) if any(n.op == "lowered.conv_tiles" for n in g.nodes)]
    text = assembly(emit_llvm(lower_loops(plan(lower_group(group, "kernel").func, AMX).func, AMX), AMX), AMX)
    assert text.count("\ttdpfp16ps\t") == 4 and "tdpbf16ps" not in text


@pytest.mark.parametrize("cpu", ["x86-64-v4", "sapphirerapids", "cortex-a72"])
def test_machines_without_it_multiply_f32(cpu: str) -> None:
    graph = passed(convolution("deep"), Target.parse(cpu), "auto", precision="fp16")
    assert "lowered.conv_tiles" not in str(graph)
    assert not any(v.dtype is f16 for n in graph.nodes for v in n.outputs)


@pytest.mark.daily(2)
@needs_compiler
@pytest.mark.costly(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_programs(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sums differ from the exact convolution of rounded factors; new weights are rounded when they come."""
    (x, parameters), target = arrays(name), amx(monkeypatch)
    with deciding() as record:
        graph = passed(convolution(name), AMX, "auto", precision="fp16")
    (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
    labels = [label for label in decision.space.labels if label.startswith("matrices")]
    assert labels and not any(label.startswith("split") for label in decision.space.labels)
    for label in labels:
        with forcing({decision.key.name: label}):
            graph = passed(convolution(name), AMX, "auto", precision="fp16")
        model = tw.compile((graph, parameters), target=target, threads=threads)
        for seed in (0, 1):
            x, parameters = arrays(name, seed)
            parameters["w"][0] *= np.float32(2.0**-18)  # partly subnormal in f16
            model.update(parameters)
            rounded = {k: v.astype(np.float16) if k == "w" else v for k, v in parameters.items()}
            before, want = products(), exact(name, x.astype(np.float16), rounded)
            got = np.asarray(model(x))
            assert products() > before
            assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
