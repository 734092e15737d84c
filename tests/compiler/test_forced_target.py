"""TILEWRIGHT_TARGET: code for another instruction set, run where the machine has it, refused in words elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.transform.graph.graphs import tensor
from tilewright import ops, te
from tilewright.compiler import compile_graph
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.support import flags
from tilewright.support.errors import ArtifactError
from tilewright.targets import host as hosts
from tilewright.targets.host import architecture
from tilewright.targets.registry import Family, register, unregister
from tilewright.targets.target import Target

NATIVE = Target.on_host("host")
IS_X86 = architecture(NATIVE) == "x86_64"
FOREIGN = "neoverse-n1" if IS_X86 else "x86-64-v3"
LEVELS = [
    name
    for name in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "generic-aarch64")
    if architecture(Target.parse(name)) == architecture(NATIVE)
    and set(Target.parse(name).features) <= set(NATIVE.features)
]


def layer() -> tuple[Graph, dict[str, np.ndarray]]:
    b = GraphBuilder("layer")
    y = ops.emit1(b, "matmul", b.input("x", tensor(5, 64)), b.param("w", tensor(64, 48)))
    w = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    return b.finish((ops.emit1(b, "tanh", y),)), {"w": w}


@pytest.mark.parametrize("name", LEVELS)
def test_code_has_the_named_instructions_and_runs_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.TARGET.name, name)
    graph, weights = layer()
    model = tw.compile((graph, weights))
    assert (model.manifest.target.cpu, model.manifest.target.features) == (
        Target.parse(name).cpu,
        Target.parse(name).features,
    )
    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    want = np.tanh(x.astype(np.float64) @ weights["w"])
    np.testing.assert_allclose(np.asarray(model(x)), want, rtol=0, atol=2e-6)
    if IS_X86:
        widest = max(re.findall(r"%([xyz])mm", model.show("asm")))
        assert widest == {128: "x", 256: "y", 512: "z"}[Target.parse(name).vector_bits]


@pytest.mark.parametrize("name", LEVELS)
def test_kernels_that_are_built_for_the_host_follow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.TARGET.name, name)
    a = te.placeholder((64,), name="A")
    c = te.compute((64,), lambda i: a[i] + a[i], name="C")
    built = tw.build(te.create_schedule(c), [a, c])
    assert built.target == Target.host() == Target.parse("host") == Target.on_host(name)
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    built(x, y)
    np.testing.assert_array_equal(y, x + x)


@pytest.mark.parametrize("name", LEVELS)
def test_the_instruction_set_is_the_named_one_and_the_rest_this_machine(name: str) -> None:
    named, here = Target.parse(name), Target.on_host(name)
    for field in ("cpu", "features", "vector_bits", "registers"):
        assert getattr(here, field) == getattr(named, field)
    for field in ("l1", "l2", "l3", "cores", "streams", "barrier", "frequency", "memory_total"):
        assert getattr(here, field) == getattr(NATIVE, field)
    assert here.memory_bandwidth <= here.l3_bandwidth <= here.l2_bandwidth <= here.l1_bandwidth <= NATIVE.l1_bandwidth
    assert set(here.features).isdisjoint(here.missing)


def test_what_was_measured_with_wide_vectors_does_not_hold_for_narrow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zen 4 starts one multiply-add of 512 bits in a cycle, two of 256."""
    zen4 = Target.parse("znver4").adjusted(l2=1 << 20, l2_bandwidth=30.0, fma_per_cycle=1.0, l1_bandwidth=60.0)
    monkeypatch.setattr(hosts, "host", lambda: zen4)
    v3 = hosts.narrowed(Target.parse("x86-64-v3"))
    assert (v3.fma_per_cycle, v3.l1_bandwidth, v3.l2_bandwidth, v3.l2) == (2.0, 60.0, 30.0, 1 << 20)
    v4 = hosts.narrowed(Target.parse("x86-64-v4"))
    assert (v4.fma_per_cycle, v4.l1_bandwidth) == (1.0, 60.0)


def test_another_architecture_is_compiled_but_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Target.on_host(FOREIGN) == Target.parse(FOREIGN)
    monkeypatch.setenv(flags.TARGET.name, FOREIGN)
    graph, weights = layer()
    assert compile_graph(graph, weights, Target.host()).manifest.target.triple == Target.parse(FOREIGN).triple
    with pytest.raises(ArtifactError, match=r"the code is for another machine.*got " + Target.parse(FOREIGN).triple):
        tw.compile((graph, weights))
    a = te.placeholder((64,), name="A")
    c = te.compute((64,), lambda i: a[i] + a[i], name="C")
    with pytest.raises(ArtifactError, match="the code is for another machine"):
        tw.build(te.create_schedule(c), [a, c])


def test_instructions_that_this_machine_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = "xop" if IS_X86 else "sve2p1"
    assert lacking not in NATIVE.features
    like = Target.parse(LEVELS[-1])
    more = replace(like, features=tuple(sorted((*like.features, lacking))))
    register(Family("lacking", architecture(NATIVE), {"more": more}))
    try:
        monkeypatch.setenv(flags.TARGET.name, "more")
        assert Target.host() is more
        with pytest.raises(ArtifactError, match=f"this CPU lacks features: {lacking}"):
            tw.compile(layer())
    finally:
        unregister("lacking")
