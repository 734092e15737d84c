"""Code and RAM on microcontrollers beside emx-onnx-cgen's C at -O3: `python -m benchmarks.bench_mcu --emx PYTHON`.

emx-onnx-cgen has an environment of its own, whose Python is given as `--emx`; its C is built by arm-none-eabi-gcc. Code
is what an object has in flash beside weights. A bundle's call needs activations, and constants, which are copies of
weights in RAM. emx-onnx-cgen's C reads weights as they are; its buffers are on the stack, as large as `-fstack-usage`
says.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import onnx
from onnx import numpy_helper

import tilewright as tw
from benchmarks.bundle_models import MODELS, BundleModel
from benchmarks.models import ROOT
from tilewright.bundle.write import described

RESULTS = ROOT / "benchmarks" / "results" / "mcu.md"
BOARDS = {"cortex-m4": ["-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16"], "cortex-m7": ["-mcpu=cortex-m7", "-mfpu=fpv5-d16"]}
FLAGS = ["-mthumb", "-mfloat-abi=hard", "-std=c11", "-O3", "-w", "-fstack-usage", "-c", "model.c", "-o", "model.o"]


def sections(path: Path) -> tuple[int, int]:
    """Bytes of an object's code with its constants, and of its variables."""
    done = subprocess.run(["arm-none-eabi-size", str(path)], capture_output=True, text=True, check=True)
    text, data, bss = map(int, done.stdout.splitlines()[1].split()[:3])
    return text, data + bss


def ours(model: BundleModel, proto: onnx.ModelProto, board: str, folder: Path) -> tuple[int, int, int]:
    """Bytes of code, of constants, of activations."""
    program = tw.compile_program(proto, dims=dict(model.dims), target=board, **dict(model.options))
    program.bundle(folder, rows=model.rows)
    binding = described(program, rows=model.rows)
    code, variables = sections(folder / f"{binding.name}.o")
    return code, binding.constant_bytes, binding.activations.nbytes + variables


def theirs(python: str, model: BundleModel, proto: onnx.ModelProto, board: str, folder: Path) -> tuple[int, int]:
    """Bytes of code and buffers together without weights, and of the largest frame. Raises CalledProcessError where it
    cannot."""
    onnx.save(proto, folder / "model.onnx")
    known = {d: n for d, n in model.dims.items() if isinstance(n, int)} | dict(model.sizes)
    pinned = [x for d, n in known.items() for x in ("--input-dim", f"{d}={n}")]
    line = [python, "-m", "emx_onnx_cgen", "compile", *pinned, "--restrict-arrays", "model.onnx", "model.c"]
    subprocess.run(line, cwd=folder, check=True, capture_output=True, timeout=300)
    subprocess.run(["arm-none-eabi-gcc", *BOARDS[board], *FLAGS], cwd=folder, check=True, capture_output=True)
    code, variables = sections(folder / "model.o")
    weights = sum(numpy_helper.to_array(i).nbytes for i in proto.graph.initializer)
    frames = re.findall(r"\s(\d+)\s", (folder / "model.su").read_text())
    # Small weights are constants of the C file, large ones variables that a file is read into.
    return code + variables - weights, max(map(int, frames), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_mcu", description=__doc__)
    parser.add_argument("--emx", required=True, help="the Python of emx-onnx-cgen's environment")
    parser.add_argument("--models", nargs="+", default=["m64", "nat", "scan", "integers"], choices=list(MODELS))
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args()
    lines = [
        "| board | model | code | activations | constants | emx-onnx-cgen's code and buffers | its largest frame |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    print("\n".join(lines))
    for board in BOARDS:
        for name in options.models:
            model, proto = MODELS[name], MODELS[name].build()
            with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
                code, packed, ram = ours(model, proto, board, Path(a))
                try:
                    peer = "{} | {}".format(*theirs(options.emx, model, proto, board, Path(b)))
                except subprocess.CalledProcessError as error:
                    peer = f"does not take it ({error.cmd[0]}) |"
            lines.append(f"| {board} | {name} | {code} | {ram} | {packed} | {peer} |")
            print(lines[-1], flush=True)
    if options.write:
        RESULTS.write_text(HEAD + "\n".join(lines) + "\n")
    return 0


HEAD = """# Microcontrollers

`python -m benchmarks.bench_mcu --emx PYTHON --write`: bytes of bundles beside emx-onnx-cgen 1.4.0's C,
built by arm-none-eabi-gcc 12 at -O3, all without raw weights and without libm, which both call. Constants are copies of
weights in RAM, or what is computed of them; both read the others as they are, in flash. integers is a perceptron in
8 bits between QuantizeLinear and DequantizeLinear, the others are in f32. 30 November 2026.

"""

if __name__ == "__main__":
    raise SystemExit(main())
