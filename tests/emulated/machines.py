"""The machines: a target each, how a program becomes what an emulator runs, and the emulator."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.bundle import web
from tilewright.bundle.write import with_float16_conversions
from tilewright.codegen.llvm.emit import compile_llvm
from tilewright.native.wasm import link
from tilewright.targets.abi import is_web
from tilewright.targets.target import Target

HERE = Path(__file__).parent
SUPPORT = """
define void @tw_barrier(ptr %barrier, i64 %threads) nounwind {
  ret void
}
define internal i64 @tw_poll(ptr %control, i64 %spent) nounwind {
  %limit = load i64, ptr %control
  %left = sub i64 %limit, %spent
  %ends = icmp sle i64 %left, 0
  br i1 %ends, label %end, label %more
end:
  %status = getelementptr i8, ptr %control, i64 8
  store i64 4, ptr %status
  ret i64 0
more:
  ret i64 %left
}
define void @tw_control(ptr %control, i64 %limit) nounwind {
  store i64 %limit, ptr %control
  %status = getelementptr i8, ptr %control, i64 8
  store i64 0, ptr %status
  %poll = getelementptr i8, ptr %control, i64 16
  store ptr @tw_poll, ptr %poll
  ret void
}
"""
"""LLVM IR of the functions that entries need of a runtime, for a call by one thread (`runtime/limits.py` has the
control words)."""
ENTRIES = ("tw_run", "tw_prepare", "tw_shapes", "tw_control")


@dataclass(frozen=True, slots=True)
class Machine:
    """A target's name, the C compiler that links for it, and the command that runs a linked program."""

    target: str
    compiler: str | None
    emulator: tuple[str, ...]

    @property
    def missing(self) -> str | None:
        """The tool that is not installed."""
        tools = (self.compiler, self.emulator[0])
        return next((tool for tool in tools if tool is not None and shutil.which(tool) is None), None)

    def command(self, objects: Mapping[str, bytes], folder: Path) -> list[str]:
        """Link a program's objects in a folder; the command that serves its calls."""
        target = Target.parse(self.target)
        support = compile_llvm(f'target triple = "{target.triple}"\n{SUPPORT}', target, opt=1)
        link = _module if is_web(target.triple) else _program
        return [
            *self.emulator,
            *link(self, with_float16_conversions({**objects, "emulated support": support}, target), folder, target),
        ]


def _program(machine: Machine, objects: Mapping[str, bytes], folder: Path, target: Target) -> list[str]:
    """A static program of Linux."""
    assert machine.compiler is not None
    paths = []
    for k, image in enumerate(objects.values()):
        paths.append(f"{k}.o")
        (folder / paths[-1]).write_bytes(image)
    line = [machine.compiler, "-O1", "-w", "-static", str(HERE / "runner.c"), *paths, "-lm", "-o", "program"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{machine.target}: {done.stderr[-2000:]}")
    return [str(folder / "program")]


def _module(machine: Machine, objects: Mapping[str, bytes], folder: Path, target: Target) -> list[str]:
    """A module of WebAssembly, and what serves its calls."""
    own = compile_llvm(web.support(target.triple), target, opt=1)
    linked = link({**objects, "support": own}, ENTRIES, {})
    (folder / "program.wasm").write_bytes(linked.module)
    if machine.emulator[0] == "node":
        math = ", ".join(f"{name}: {web.MATH[name]}" for name in linked.needs)
        (folder / "runner.mjs").write_text((HERE / "runner.mjs").read_text().replace("env: MATH", f"env: {{ {math} }}"))
        return [str(folder / "runner.mjs"), str(folder / "program.wasm")]
    return [str(folder / "program.wasm"), json.dumps(linked.needs)]


_ARM, _RISCV = "aarch64-linux-gnu-gcc", "riscv64-linux-gnu-gcc"


def _qemu(kind: str, cpu: str) -> tuple[str, ...]:
    return (f"qemu-{kind}-static", "-cpu", cpu)


MACHINES: dict[str, Machine] = {
    "neoverse-n1": Machine("neoverse-n1", _ARM, _qemu("aarch64", "neoverse-n1")),
    "cortex-a72": Machine("cortex-a72", _ARM, _qemu("aarch64", "cortex-a72")),
    "neoverse-v1": Machine("neoverse-v1", _ARM, _qemu("aarch64", "max")),
    "neoverse-v1-sve": Machine("neoverse-v1-sve", _ARM, _qemu("aarch64", "max,sve256=on,sve-default-vector-length=32")),
    "rv64gcv": Machine("rv64gcv", _RISCV, _qemu("riscv64", "rv64,v=true,vlen=128,vext_spec=v1.0")),
    "rv64gcv-256": Machine("rv64gcv-256", _RISCV, _qemu("riscv64", "rv64,v=true,vlen=256,vext_spec=v1.0")),
    "node": Machine("wasm32-simd128", None, ("node",)),
    "node-relaxed": Machine("wasm32-relaxed-simd", None, ("node", "--experimental-wasm-relaxed-simd")),
    "wasmtime": Machine("wasm32-simd128", None, (sys.executable, str(HERE / "runner_wasmtime.py"))),
}

__all__ = ["MACHINES", "Machine"]
