"""Every kernel of the policy suite, of layers of transformers and of ResNet-50 through NVIDIA's assembler, for sm_80
and sm_90a: registers, spills, stack and shared memory, and which products became instructions for matrices. `make gpu`.

    python -m tests.codegen.ptx.run --ptxas build/gpu-env [--models m64,nat]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import dynamic_models, policy_suite
from tests.codegen.ptx.narrow import narrowed
from tilewright.compiler import compile_program
from tilewright.support.classes import dataclass
from tilewright.targets.nvidia import A100, H100A

POLICIES = ("m64", "m256", "nat", "nl", "imp", "hok1", "hok3", "txl", "dz", "az")
LAYERS = 12
"""Layers of BERT-base and of GPT-2."""
ARCHITECTURES = {"sm_80": A100, "sm_90a": H100A}
_FACTS = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers(?:.*?(\d+) bytes smem)?[^\n]*",
    re.S,
)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A kernel as ptxas made it: bytes of stack and spills, registers of a thread, bytes of shared memory."""

    kernel: str
    stack: int
    spills: int
    registers: int
    shared: int


class Toolkit:
    """ptxas and nvdisasm of an environment that has NVIDIA's wheels."""

    def __init__(self, environment: Path) -> None:
        (self.bin,) = environment.glob("lib/python*/site-packages/nvidia/cu13/bin")

    def assemble(self, ptx: str, architecture: str) -> tuple[list[Assembled], bytes]:
        """Each kernel's figures, and the cubin. Raises RuntimeError with what ptxas says."""
        with tempfile.TemporaryDirectory() as folder:
            source, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
            source.write_text(ptx)
            done = subprocess.run(
                [self.bin / "ptxas", "-v", f"-arch={architecture}", source, "-o", cubin],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(done.stderr)
            parts = re.split(r"(?=ptxas info +: Compiling entry)", done.stderr)
            matches = [m for m in map(_FACTS.search, parts) if m]
            facts = [Assembled(m[1], int(m[2]), int(m[3]) + int(m[4]), int(m[5]), int(m[6] or 0)) for m in matches]
            return facts, cubin.read_bytes()

    def sass(self, cubin: bytes) -> str:
        """The instructions."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(cubin)
            return subprocess.run(
                [self.bin / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True
            ).stdout


def kernels(text: str) -> Iterator[str]:
    """The modules of a program's PTX."""
    for part in re.split(r"(?=^// .*\n//\n// Generated)", text, flags=re.M):
        if ".entry" in part:
            yield part


def seconds_of(model: Any, target: str) -> tuple[Any, float]:
    """A program that nothing of is kept from before, and how many seconds of the processor it took: one process makes
    it, so that other work on the machine counts little."""
    start = time.process_time()
    return compile_program(model, target=target), time.process_time() - start


def check(name: str, model: Any, toolkit: Toolkit, target: str, architecture: str, on_cpu: float) -> bool:
    """A line about a model; whether all of it is as it should be."""
    program, on_gpu = seconds_of(model, target)
    facts, matrix, bad = [], Counter[str](), []
    for ptx in kernels(program.texts["asm"]()):  # type: ignore[operator]
        of_module, cubin = toolkit.assemble(ptx, architecture)
        facts += of_module
        for word, instruction in (("mma.sync", r"\b[HI]MMA"), ("wgmma.mma_async", r"\b[HI]GMMA")):
            if word in ptx:
                matrix[word] += 1
                if not re.search(instruction, toolkit.sass(cubin)):
                    bad.append(f"{of_module[0].kernel}: no instruction for matrices")
    gpu = ARCHITECTURES[architecture]
    bad += [str(f) for f in facts if f.stack or f.spills or f.shared > gpu.shared or f.registers > gpu.thread_registers]
    print(
        f"| {name} | {architecture} | {len(facts)} | {matrix['mma.sync']} + {matrix['wgmma.mma_async']} | "
        f"{max(f.registers for f in facts)} | "
        f"{max(f.shared for f in facts)} | {sum(f.spills for f in facts)} | {sum(f.stack for f in facts)} | "
        f"{on_gpu:.1f} / {on_cpu:.1f} = {on_gpu / on_cpu:.2f} |",
        flush=True,
    )
    for line in bad:
        print("  ", line)
    return not bad


def resnet50() -> Any:
    """ResNet-50 as a file, f32."""
    from benchmarks.jax_models import resnet50_onnx  # which imports JAX

    return resnet50_onnx()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ptxas", type=Path, default=Path("build/gpu-env"), help="environment with NVIDIA's wheels")
    parser.add_argument("--models", default="", help="some of them, with commas between")
    options = parser.parse_args()
    makers: dict[str, Callable[[], Any]] = {n: getattr(policy_suite, n) for n in POLICIES}
    makers |= {"bert2": dynamic_models.bert, "prefill2": dynamic_models.prefill, "decode2": dynamic_models.decode}
    makers |= {
        "gpt2-prefill": partial(dynamic_models.prefill, LAYERS),
        "gpt2-decode": partial(dynamic_models.decode, LAYERS),
    }
    makers["resnet50"] = resnet50
    makers["bert12-bf16"] = lambda: narrowed(dynamic_models.bert(LAYERS), "bf16")
    makers["resnet50-f16"] = lambda: narrowed(resnet50(), "f16")
    chosen = options.models.split(",") if options.models else list(makers)
    if unknown := [name for name in chosen if name not in makers]:
        parser.error(f"no model is called {', '.join(unknown)}: there are {', '.join(makers)}")
    toolkit = Toolkit(options.ptxas)
    os.environ["TILEWRIGHT_CACHE"] = "0"  # each program is compiled whole
    os.environ["TILEWRIGHT_PROCESSES"] = "1"
    print("| model | for | kernels | with mma + wgmma | registers | shared bytes | spills | stack | s, GPU / CPU |")
    print("|---|---|---|---|---|---|---|---|---|")
    fine = True
    for name in chosen:
        model = makers[name]()
        on_cpu = seconds_of(model, "host")[1]
        for target, architecture in (("nvidia-sm_90a", "sm_90a"), ("nvidia-sm_80", "sm_80")):
            fine &= check(name, model, toolkit, target, architecture, on_cpu)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
