"""Bundles for other machines, run in emulators and engines: `make targets` installs what they need.

Results are compared with the Python runtime on this machine: other vectors sum in another order, so that they are equal
within rounding only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from benchmarks.bundle_models import MODELS, inputs_of
from tests.bundle.built import Array, build, call
from tilewright.bundle.write import described
from tilewright.runtime.program import Program

asked = pytest.mark.skipif("TILEWRIGHT_TARGETS" not in os.environ, reason="make targets runs it: it needs emulators")
pytestmark = asked

ARM = ("aarch64-linux-gnu-gcc", ["qemu-aarch64-static", "-cpu"])
RISCV = ("riscv64-linux-gnu-gcc", ["qemu-riscv64-static", "-cpu"])
LINUX: dict[str, tuple[str, str, list[str]]] = {
    "neoverse-n1": ("neoverse-n1", ARM[0], [*ARM[1], "neoverse-n1"]),
    "cortex-a72": ("cortex-a72", ARM[0], [*ARM[1], "cortex-a72"]),
    "neoverse-v1": ("neoverse-v1", ARM[0], [*ARM[1], "max"]),
    "neoverse-v1-sve": ("neoverse-v1-sve", ARM[0], [*ARM[1], "max,sve256=on,sve-default-vector-length=32"]),
    "rv64gcv": ("rv64gcv", RISCV[0], [*RISCV[1], "rv64,v=true,vlen=128,vext_spec=v1.0"]),
    "rv64gcv-256": ("rv64gcv-256", RISCV[0], [*RISCV[1], "rv64,v=true,vlen=256,vext_spec=v1.0"]),
}
BOARDS = {
    "cortex-m4": ("mps2-an386", "0x21000000", ["-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16"]),
    "cortex-m7": ("mps2-an500", "0x60000000", ["-mcpu=cortex-m7", "-mfpu=fpv5-d16"]),
}


CASES = {
    name: MODELS[name]
    for name in ("m64", "m64-any", "nat", "nl", "az6", "bert", "scan", "loop", "detector", "integers")
}
SMALL = ("m64", "integers", "scan")


def compiled(name: str, target: str) -> tuple[Program, dict[str, Array], dict[str, Array]]:
    """The program for a target, inputs, and what this machine makes of them."""
    model = CASES[name]
    proto = model.build()
    options: dict[str, Any] = {"dims": dict(model.dims), **model.options}
    inputs = inputs_of(model, proto)
    wanted = tw.compile(proto, **options).run(dict(inputs))
    return tw.compile_program(proto, target=target, **options), inputs, wanted


def check(program: Program, match: list[Array], wanted: dict[str, Array]) -> None:
    for array, out in zip(described(program).outputs, match, strict=True):
        expected = wanted[array.name].ravel()
        np.testing.assert_allclose(out[: expected.size], expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("machine", LINUX)
def test_under_qemu(machine: str, name: str, tmp_path: Path) -> None:
    target, compiler, emulator = LINUX[machine]
    if shutil.which(compiler) is None or shutil.which(emulator[0]) is None:
        pytest.skip(f"there is no {compiler}, or no {emulator[0]}")
    program, inputs, wanted = compiled(name, target)
    program.bundle(tmp_path)
    binding = described(program)
    build(tmp_path, binding.name, compiler, ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-static"])
    check(program, call([*emulator, "./main"], tmp_path, binding, inputs, CASES[name].sizes), wanted)


@pytest.mark.parametrize("name", CASES)
def test_in_node(name: str, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no Node")
    program, inputs, wanted = compiled(name, "wasm32-simd128")
    program.bundle(tmp_path)
    check(program, call(["node", "example.mjs"], tmp_path, described(program), inputs, CASES[name].sizes), wanted)


@pytest.mark.parametrize("name", ["m64", "nat", "detector"])
def test_in_wasmtime(name: str, tmp_path: Path) -> None:
    wasmtime = pytest.importorskip("wasmtime")
    program, inputs, wanted = compiled(name, "wasm32-simd128")
    program.bundle(tmp_path)
    binding = described(program)
    store = wasmtime.Store()
    module = wasmtime.Module.from_file(store.engine, str(tmp_path / f"{binding.name}.wasm"))
    exports = wasmtime.Instance(store, module, []).exports(store)
    memory, end = exports["memory"], exports["heap"].value(store)
    counts = [binding.weight_bytes, binding.constant_bytes, binding.workspace_bytes, binding.activations.nbytes]
    counts += [a.nbytes for a in (*binding.inputs, *binding.outputs)] + [8 * len(binding.extents)] * bool(
        binding.extents
    )
    places = []
    for count in counts:
        places.append(end)
        end += -(-count // 64) * 64
    memory.grow(store, max(0, -(-(end - memory.data_len(store)) // 65536)))
    memory.write(store, (tmp_path / f"{binding.name}.weights").read_bytes(), places[0])
    assert exports[f"{binding.name}_prepare"](store, places[1], places[0], places[2]) == 0
    arrays = places[4:]
    for a, at in zip(binding.inputs, arrays, strict=False):
        memory.write(store, np.ascontiguousarray(inputs[a.name]).tobytes(), at)
    assert exports[f"{binding.name}_run"](store, places[1], places[3], *arrays) == 0
    outs = arrays[len(binding.inputs) :]
    check(
        program,
        [
            np.frombuffer(bytes(memory.read(store, at, at + a.nbytes)), a.dtype.numpy)
            for a, at in zip(binding.outputs, outs, strict=False)
        ],
        wanted,
    )


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("board", BOARDS)
def test_on_a_microcontroller(board: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("arm-none-eabi-gcc") is None or shutil.which("qemu-system-arm") is None:
        pytest.skip("there is no arm-none-eabi-gcc, or no qemu-system-arm")
    machine, memory, flags = BOARDS[board]
    program, inputs, wanted = compiled(name, board)
    program.bundle(tmp_path)
    binding = described(program)
    shutil.copytree(Path(__file__).parent / "mcu", tmp_path, dirs_exist_ok=True)
    script = tmp_path / "mps2.ld"
    script.write_text(script.read_text().replace("0x21000000", memory))
    flags = [*flags, "-mthumb", "-mfloat-abi=hard", "-std=c11", "-Wall", "-Wextra", "-Os", "--specs=rdimon.specs"]
    flags += ["-nostartfiles", "-Wl,--no-warn-execstack", "-T", "mps2.ld", "startup.c"]
    flags.append("-DARGUMENTS=" + "".join(f'"{n}",' for n in CASES[name].sizes.values()))
    build(tmp_path, binding.name, "arm-none-eabi-gcc", flags)
    emulator = f"qemu-system-arm -M {machine} -nographic -semihosting-config enable=on,target=native -kernel main"
    sizes = subprocess.run(["arm-none-eabi-size", f"{binding.name}.o"], cwd=tmp_path, capture_output=True, text=True)
    with capsys.disabled():
        code, ram = sizes.stdout.split()[6], binding.constant_bytes + binding.activations.nbytes
        print(f"\n{board} {name}: {code} bytes of code, {ram} of constants and activations")
    check(
        program,
        call(["sh", "-c", f"timeout 120 {emulator} </dev/null"], tmp_path, binding, inputs, CASES[name].sizes),
        wanted,
    )
