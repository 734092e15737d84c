"""WebAssembly in Node beside our own code for 128-bit vectors: `python -m benchmarks.bench_web_native`.

One thread each, in turns: a process of Node that calls a bundle's module, and this one, which calls the same model
compiled for `x86-64-v2`. Processor time a call; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx

import tilewright as tw
from benchmarks.bench_web import RELAXED
from benchmarks.bundle_models import MODELS, inputs_of
from benchmarks.onnx_builder import Builder
from tilewright.bundle.write import described

NATIVE = "x86-64-v2"
TARGETS = ("wasm32-simd128", "wasm32-relaxed-simd")
TURN = 0.1
"""Seconds of a turn, at least one call."""
SERVED = """
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { load } from './raced.js';

const inputs = {};
for (const name of process.argv.slice(2)) {
  const bytes = readFileSync(`${name}.bin`);
  inputs[name] = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
}
const model = await load();
model.run(inputs);
for await (const line of createInterface({ input: process.stdin })) {
  const calls = Number(line), { user, system } = process.cpuUsage();
  for (let k = 0; k < calls; ++k) model.call(inputs);
  const after = process.cpuUsage();
  console.log((after.user - user + after.system - system) / 1e6 / calls);
}
"""


def product(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    b = Builder("product", seed=1)
    b.output(b.linear(b.input("x", [rows, depth]), "fc", depth, columns), "y", [rows, columns])
    return b.build()


PRODUCTS = {"product-64": (64, 256, 256), "product-512": (512, 512, 512)}


def case(name: str) -> tuple[onnx.ModelProto, dict[str, int], dict[str, np.ndarray]]:
    """A model of f32, its dimensions and inputs of a call."""
    if name in PRODUCTS:
        rows, depth, columns = PRODUCTS[name]
        x = np.random.default_rng(0).standard_normal((rows, depth)).astype(np.float32)
        return product(rows, depth, columns), {}, {"x": x}
    model = MODELS[name]
    proto = model.build()
    return proto, {d: n for d, n in model.dims.items() if isinstance(n, int)}, dict(inputs_of(model, proto))


def race(name: str, target: str, rounds: int) -> tuple[float, list[float]]:
    """Milliseconds of a call of the module, and its speed by that of native code in each round."""
    proto, dims, inputs = case(name)
    native = tw.compile(proto, dims=dims, target=NATIVE, threads=1)
    out = native.run(inputs)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        program = tw.compile_program(proto, dims=dims, target=target)
        program.bundle(folder, name="raced")
        for array in (arrays := described(program).inputs):
            np.ascontiguousarray(inputs[array.name]).tofile(folder / f"{array.identifier}.bin")
        (folder / "package.json").write_text('{"type": "module"}')
        (folder / "served.mjs").write_text(SERVED)
        line = ["node", *RELAXED, "served.mjs", *(a.identifier for a in arrays)]
        with subprocess.Popen(line, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
            assert node.stdin is not None and node.stdout is not None

            def web(calls: int) -> float:
                assert node.stdin is not None and node.stdout is not None
                print(calls, file=node.stdin, flush=True)
                return float(node.stdout.readline())

            def ours(calls: int) -> float:
                begin = time.process_time()
                for _ in range(calls):
                    native.run(inputs, out=out)
                return (time.process_time() - begin) / calls

            for turn in (web, ours):  # engines compile again what is called often
                turn(max(3, int(10 * TURN / turn(2))))
            counts = [max(1, int(TURN / turn(2))) for turn in (web, ours)]
            times = [(web(counts[0]), ours(counts[1])) for _ in range(rounds)]
            node.stdin.close()
    return 1e3 * statistics.median(w for w, _ in times), [n / w for w, n in times]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_web_native", description=__doc__)
    parser.add_argument("--models", nargs="+", default=[*PRODUCTS, "az6"], choices=[*PRODUCTS, *MODELS])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if shutil.which("node") is None:
        print("bench-web-native: left out, there is no Node")
        return 0
    print("| model | target | ms a call | speed of the module / native, median | least of the rounds |")
    print("|---|---|---|---|---|")
    for name in options.models:
        for target in options.targets:
            ms, ratios = race(name, target, options.rounds)
            print(f"| {name} | {target} | {ms:.2f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
