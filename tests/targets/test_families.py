"""Families that do not run here: LLVM takes the suite's kernels for them; GPUs are records."""

from __future__ import annotations

from pathlib import Path

import llvmlite.binding as llvm
import pytest

import tilewright as tw
from benchmarks import policy_suite
from tests.laws.test_models import graphs_of, kernels_of
from tests.plans.matmul.test_dots import product
from tilewright.bundle.write import described
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.codegen.llvm.optimize import optimized_llvm
from tilewright.ir.dtype import DType, bf16, i8, u8
from tilewright.ir.loops import PrimFunc
from tilewright.plans import plan
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.support.errors import TargetError
from tilewright.targets import amd, arm, nvidia
from tilewright.targets.gpu import Gpu
from tilewright.targets.isa import offered
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group


def text_of(func: PrimFunc, target: Target) -> str:
    return emit_llvm(lower_loops(plan(func, target).func, target), target)


@pytest.mark.daily(2)
@pytest.mark.costly(2)
@pytest.mark.parametrize("model", ["m64", "nat"])
@pytest.mark.parametrize(
    "name,instruction",
    [
        ("rv64gcv", "vfmacc.vf"),
        ("wasm32-simd128", "f32x4.mul"),
        ("neoverse-v1", "fmla"),
        ("neoverse-v1-sve", "fmla\tz"),
        ("cortex-m4", "vmla.f32"),
    ],
)
def test_llvm_takes_the_suites_kernels(name: str, instruction: str, model: str) -> None:
    """Text that LLVM verifies, with vectors of the machine in it, and code in its words."""
    target = Target.parse(name)
    split = list(graphs_of(model, target))[-2:]
    texts = [text_of(func, target) for graph in split for func in kernels_of(graph).values()]
    for text in texts:
        assert f'target triple = "{target.triple}"' in text
        assert optimized_llvm(text, target)  # verifies it first
        assert "llvm.x86" not in text
    lanes = target.lanes(4)
    assert any((f"<{lanes} x float>" if lanes > 1 else "load float") in text for text in texts)
    assert any(instruction in assembly(text, target) for text in texts)


@pytest.mark.parametrize("a,b,group,instruction", [(bf16, bf16, 2, "bfdot"), (u8, i8, 4, "usdot")])
def test_a_targets_dot_product_is_a_line_of_its_description(a: DType, b: DType, group: int, instruction: str) -> None:
    target = Target.parse("neoverse-v1")
    without = target.adjusted(dots=())
    assert target.isa.dots == offered(arm.DOTS, target.features)
    assert find_dot(a, b, without) is None and target.fingerprint != without.fingerprint
    graph = product(28, 32, 96, a, b, 4, group)
    func = lower_group(next(g for g in fuse(graph) if g.nodes[-1].op == "lowered.matmul_dot"), "kernel").func
    loop = [line for line in assembly(text_of(func, target), target).splitlines() if f"\t{instruction}" in line]
    assert len(loop) >= 8 and instruction not in assembly(text_of(func, without), without)


@pytest.mark.parametrize("name,magic", [("android-arm64", b"\x7fELF"), ("macos-arm64", b"\xcf\xfa\xed\xfe")])
def test_objects_of_phones_and_macs(name: str, magic: bytes) -> None:
    program = tw.compile_program(policy_suite.m64(), dims={"batch": 1}, target=name)
    assert all(image.startswith(magic) for image in program.objects.values())


@pytest.mark.parametrize("gpu", [nvidia.H100, amd.MI300X], ids=lambda g: g.cpu)
def test_gpus_are_records_alone(gpu: Gpu) -> None:
    """LLVM knows their names, they are not compiled for."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    assert llvm.Target.from_triple(gpu.triple).create_target_machine(cpu=gpu.cpu).triple.startswith(gpu.triple)
    assert gpu.thread_registers * gpu.lanes <= gpu.registers and gpu.block_threads % gpu.lanes == 0
    assert all(unit.sums.itemsize == 4 for unit in gpu.matrix)
    with pytest.raises(TargetError, match="no such target"):
        Target.parse(gpu.cpu)


def test_a_microcontroller_reads_weights_where_they_are(tmp_path: Path) -> None:
    """No weight is copied, functions are libm's, and no kernel shares its work; loops over results are not unrolled."""
    program = tw.compile_program(policy_suite.m64(), dims={"batch": tw.dim(1, 8)}, target="cortex-m4")
    assert described(program).constant_bytes == 8  # the address of the weights
    assert all(packed.alias is not None for packed in program.manifest.packed)
    program.bundle(tmp_path)
    image = (tmp_path / "m64.o").read_bytes()
    assert b"tanhf" in image and len(image) < 16_000
    loops = program.texts["loops"]
    text = loops() if callable(loops) else loops
    assert "0..64 unrolled" not in text
