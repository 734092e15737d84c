"""A machine that the package does not know is described in one file, this one: 256-bit vectors, 16 registers, no
multiply-add with one rounding. The suite compiles for it, its code runs here and agrees with the interpreter."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given

import tilewright as tw
from benchmarks import harness
from tests.codegen.llvm.llvm_run import run
from tests.generators import Program, assert_same, examples, programs
from tests.laws.test_models import graphs_of, kernels_of
from tests.laws.test_native import workspaces
from tests.models.cases import SUITE
from tests.models.cases import load as load_case
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.ir.dtype import f32, f64, i32, i64
from tilewright.native.link import missing_features
from tilewright.plans import plan
from tilewright.support.errors import TargetError
from tilewright.targets import registry, x86
from tilewright.targets.costs import Costs, Origin
from tilewright.targets.isa import Dot, Isa
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.registry import Family, register
from tilewright.targets.target import Target, known
from tilewright.transform.loops import lower_loops

SANDY_BRIDGE = Target(
    "x86_64-unknown-linux-gnu",
    "sandybridge",
    tuple(sorted((*x86.V2, "avx", "xsave"))),
    isa=Isa(vector_bits=256, registers=16, fma=False, masked_reads=True, streams_stores=True),
    caches=Caches(l1=32 << 10, l2=256 << 10, l3=8 << 20),
    ceilings=Ceilings(fma_per_cycle=1.0, l1_bandwidth=32.0, l2_bandwidth=24.0, l3_bandwidth=12.0, memory_bandwidth=5.0),
    costs=Costs().fitted(Origin("2011-01-09", "Sandy Bridge", "Intel's optimization manual"), fma_latency=8.0),
)


@pytest.fixture(scope="module", autouse=True)
def family() -> Iterator[Family]:
    yield register(Family("mine", "x86_64", {"sandybridge": SANDY_BRIDGE}))
    registry.unregister("mine")


def runs_here() -> bool:
    return SANDY_BRIDGE.triple.startswith("x86_64") and not missing_features(SANDY_BRIDGE.features)


here = pytest.mark.skipif(not runs_here(), reason="this processor has no AVX")


def test_it_is_located_by_name() -> None:
    assert Target.parse("sandybridge") is SANDY_BRIDGE and "sandybridge" in known()
    assert SANDY_BRIDGE.lanes(4) == 8


def test_names_are_passed_once() -> None:
    dot = x86.DOTS[0]
    other = Dot(dot.name, dot.a, dot.b, 8, 2, (), 1.0, dot.llvm)
    for family, problem in (
        (Family("mine", "mips", {}), "another family 'mine'"),
        (Family("other", "mips", {"znver4": SANDY_BRIDGE}), "another target 'znver4'"),
        (Family("other", "mips", {}, (other,)), "another dot instruction 'dot_16x2_bf16'"),
    ):
        with pytest.raises(TargetError, match=problem):
            register(family)
    own = {"x86", "arm", "riscv", "wasm", "cortex", "nvidia", "vta"}
    assert {f.name for f in registry.families()} == {*own, "mine"}


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("name", [*SUITE[:5], "az6"])
def test_the_suites_kernels_are_code_for_it(name: str) -> None:
    """Vectors of eight, in registers that it has; no instruction that came later."""
    wide = 0
    for func in kernels_of(list(graphs_of(name, SANDY_BRIDGE))[-2]).values():
        text = emit_llvm(lower_loops(plan(func, SANDY_BRIDGE).func, SANDY_BRIDGE), SANDY_BRIDGE)
        created = assembly(text, SANDY_BRIDGE)
        wide += "%ymm" in created
        assert not re.search(r"vfn?m(add|sub)|%zmm|[xy]mm(1[6-9]|2\d|3[01])\b|vpbroadcast|vgather", created)
    assert wide


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@here
@pytest.mark.parametrize("name", SUITE)
def test_the_suite_is_right(name: str) -> None:
    pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")
    case = load_case(name)
    model = tw.compile(case.proto, target=SANDY_BRIDGE, threads=1)
    assert model.manifest.target.cpu == "sandybridge"
    for batch in (1, 5):
        inputs = case.inputs(batch, seed=batch)
        scales = {k: float(np.abs(v).max()) for k, v in case.expected(case.inputs(33, seed=33)).items()}
        assert harness.relative_error(model.run(inputs), case.expected(inputs), scales) < 1e-4


@here
@examples(40)
@given(programs([f32, f32, f32, i32, i64, f64]))
def test_code_agrees_with_the_interpreter(program: Program) -> None:
    expected = program.fresh()
    interpret(program.func, expected)
    flat = lower_loops(plan(program.func, SANDY_BRIDGE).func, SANDY_BRIDGE)
    actual = program.fresh()
    symbols = {v.name: program.arrays[0].shape[0] for v in program.func.symbols}
    run(flat, *actual, *workspaces(flat, symbols), target=SANDY_BRIDGE, **symbols)
    assert_same(actual[-1], expected[-1], str(flat))
