"""Processors whose names do not fit their features: hypervisors choose the numbers that LLVM makes names of."""

from __future__ import annotations

import pytest

from tests.plans.matmul.test_split import linear
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.compiler import graph_passes
from tilewright.plans import plan
from tilewright.targets import x86
from tilewright.targets.target import Target, known
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.options import Options
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

ICE = (*x86.V4, "avx512vbmi", "avx512vnni")
SAPPHIRE = (*x86.V4_DOTS, "avxvnni", "avx512fp16", "amx-tile", "amx-bf16", "amx-int8")


@pytest.mark.parametrize(
    ("called", "features", "name"),
    [
        ("rocketlake", SAPPHIRE, "sapphirerapids"),
        ("rocketlake", (*SAPPHIRE, "amx-fp16"), "graniterapids"),
        ("rocketlake", (*x86.V4_DOTS, "avx512fp16"), "sapphirerapids"),  # AMX is hidden
        ("rocketlake", ICE, "rocketlake"),
        ("skylake-avx512", ICE, "icelake-server"),
        ("skylake-avx512", x86.V4, "skylake-avx512"),
        ("skylake-avx512", (*x86.V4, "avx512vnni"), "cascadelake"),
        ("cascadelake", (*ICE, "avx512bf16"), "cooperlake"),
        ("haswell", x86.V4, "skylake-avx512"),
        ("haswell", x86.V3_DOTS, "alderlake"),
        ("haswell", x86.V3, "haswell"),
        ("sapphirerapids", x86.V3, "sapphirerapids"),  # features may be hidden
        ("emeraldrapids", SAPPHIRE, "emeraldrapids"),
        ("sapphirerapids", (*SAPPHIRE, "amx-fp16"), "graniterapids"),
        ("znver3", (*x86.V4_DOTS, "sse4a"), "znver4"),
        ("znver4", (*x86.V4_DOTS, "avxvnni", "sse4a"), "znver5"),
        ("znver4", (*x86.V4_DOTS, "sse4a"), "znver4"),
        ("x86-64", SAPPHIRE, "sapphirerapids"),
        ("generic", (*SAPPHIRE, "amx-fp16"), "graniterapids"),
        ("x86-64", ICE, "x86-64"),
    ],
)
def test_names_that_features_contradict(called: str, features: tuple[str, ...], name: str) -> None:
    assert x86.name_by_features(called, features) == name
    created, real = x86.processor(called, features), x86.processor(name, features)
    assert (created.cpu, created.costs, created.ceilings, created.caches) == (
        name,
        real.costs,
        real.ceilings,
        real.caches,
    )


def test_a_granite_rapids_called_rocket_lake_has_its_constants() -> None:
    created = x86.processor("rocketlake", SAPPHIRE)
    assert created.costs == x86.GOLDEN_COVE_COSTS and created.caches.l2 == 2 << 20
    assert any(dot.rows == 16 for dot in created.isa.dots)


@pytest.mark.parametrize("called", ["rocketlake", "skylake-avx512", "haswell", "x86-64", "generic", "icelake-server"])
@pytest.mark.parametrize(
    ("name", "features"), [("sapphirerapids", SAPPHIRE), ("graniterapids", (*SAPPHIRE, "amx-fp16"))]
)
def test_a_masked_name_changes_no_code(called: str, name: str, features: tuple[str, ...]) -> None:
    """Equal targets make equal decisions and objects (law 8); one layer is compiled as well."""
    masked, forced = x86.processor(called, features), x86.processor(name, features)
    assert masked == forced and masked.fingerprint == forced.fingerprint


def test_a_masked_machine_makes_equal_objects() -> None:
    graph = linear(128, 768, 768)
    codes = []
    for called in ("graniterapids", "rocketlake", "haswell"):
        target = x86.processor(called, (*SAPPHIRE, "amx-fp16"))
        planned = graph
        for _, function in graph_passes(target, Options()):
            planned = function(planned)
        (group,) = [g for g in fuse(planned) if g.label.startswith("matmul_x3")]
        kernel = plan(lower_group(group, "kernel").func, target).func
        codes.append((str(planned), assembly(emit_llvm(lower_loops(kernel, target), target), target)))
    assert codes[0] == codes[1] == codes[2] and "tdpbf16ps" in codes[0][1]


def test_targets_that_are_named_keep_their_names() -> None:
    for name in known():
        target = Target.parse(name)
        if target.triple.startswith("x86_64"):
            assert x86.name_by_features(target.cpu, target.features) == target.cpu == name
