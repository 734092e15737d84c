"""Bundles of WebAssembly against onnxruntime-web in Node, one thread each: `python -m benchmarks.bench_web --write`.

onnxruntime-web (npm) is installed into `build/peers/web`. One process of Node a model calls both in turns, after two
seconds of each in which the engine compiles again what is called often. Times are the process's processor time; a ratio
is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx

import tilewright as tw
from benchmarks.bundle_models import MODELS, inputs_of
from benchmarks.models import ROOT
from tilewright.bundle.write import described

PEERS = ROOT / "build" / "peers" / "web"
VERSION = "1.30.0"
RESULTS = ROOT / "benchmarks" / "results" / "web.md"
RELAXED = ("--experimental-wasm-relaxed-simd",)
"""The option by which Node 20 enables relaxed SIMD instructions; later versions enable them by default."""
RACED = ("nat", "imp", "az6", "mobilenetv2")
RACE = """
import { readFileSync } from 'node:fs';
import * as ort from 'onnxruntime-web/wasm';
import { load } from './OURS/NAME.js';

ort.env.wasm.numThreads = 1;
const spec = JSON.parse(readFileSync('spec.json'));
const kinds = { float32: Float32Array, uint8: Uint8Array, int64: BigInt64Array };
const inputs = {}, feeds = {};
for (const { name, identifier, dtype, shape } of spec.inputs) {
  const bytes = readFileSync(`${identifier}.bin`);
  const data = new kinds[dtype](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  inputs[identifier] = data;
  feeds[name] = new ort.Tensor(dtype, data, shape);
}
const model = await load();
const session = await ort.InferenceSession.create(readFileSync('model.onnx'), { executionProviders: ['wasm'] });
const theirs = await session.run(feeds), ours = model.run(inputs);
let off = 0;
for (const { name, identifier } of spec.outputs) {
  const wanted = theirs[name].data, most = Math.max(...Array.from(wanted, Math.abs), 1e-9);
  wanted.forEach((value, k) => { off = Math.max(off, Math.abs(value - ours[identifier][k]) / most); });
}
function spent() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
async function turn(call, calls) {
  const start = spent();
  for (let k = 0; k < calls; ++k) await call();
  return (spent() - start) / calls;
}
const run = () => model.call(inputs), peer = () => session.run(feeds);
for (const end = spent() + 2000; spent() < end; ) await turn(run, 1);
for (const end = spent() + 2000; spent() < end; ) await turn(peer, 1);
const calls = Math.max(1, Math.round(60 / (await turn(run, 3))));
const rounds = [];
for (let k = 0; k < spec.rounds; ++k) rounds.push([await turn(run, calls), await turn(peer, Math.max(1, calls >> 1))]);
console.log(JSON.stringify({ off, rounds }));
process.exit(0);
"""


def installed() -> None:
    """Raises CalledProcessError where npm cannot install the peer."""
    if not (PEERS / "node_modules" / "onnxruntime-web").exists():
        PEERS.mkdir(parents=True, exist_ok=True)
        (PEERS / "package.json").write_text('{"name": "peers", "private": true, "type": "module"}')
        subprocess.run(["npm", "install", "--silent", f"onnxruntime-web@{VERSION}"], cwd=PEERS, check=True)


def race(name: str, rounds: int, target: str) -> dict[str, float]:
    """Milliseconds of a call of ours, the median ratio, the bytes of the module, the largest difference."""
    model = MODELS[name]
    proto = model.build()
    inputs = inputs_of(model, proto)
    program = tw.compile_program(proto, dims=dict(model.dims), target=target)
    with tempfile.TemporaryDirectory(dir=PEERS) as place:
        folder = Path(place)
        program.bundle(folder / "ours", name="raced")
        binding = described(program)
        onnx.save(proto, folder / "model.onnx")
        for array in binding.inputs:
            np.ascontiguousarray(inputs[array.name]).tofile(folder / f"{array.identifier}.bin")
        spec = {
            "rounds": rounds,
            "inputs": [
                {
                    "name": a.name,
                    "identifier": a.identifier,
                    "dtype": str(a.dtype.numpy),
                    "shape": list(inputs[a.name].shape),
                }
                for a in binding.inputs
            ],
            "outputs": [{"name": a.name, "identifier": a.identifier} for a in binding.outputs],
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        (folder / "race.mjs").write_text(RACE.replace("OURS", "ours").replace("NAME", "raced"))
        done = subprocess.run(["node", *RELAXED, "race.mjs"], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        result = json.loads(done.stdout.splitlines()[-1])
        ratios = [theirs / ours for ours, theirs in result["rounds"]]
        return {
            "ms": statistics.median(ours for ours, _ in result["rounds"]),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "bytes": (folder / "ours" / "raced.wasm").stat().st_size,
            "off": result["off"],
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_web", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(RACED), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--target", default="wasm32-simd128", help="or wasm32-relaxed-simd")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args()
    if shutil.which("node") is None or shutil.which("npm") is None:
        print("bench-web: left out, there is no Node, or no npm")
        return 0
    installed()
    lines = [
        "| model | module, bytes | ms a call | times faster than onnxruntime-web | least of the rounds | difference |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    print("\n".join(lines))
    for name in options.models:
        r = race(name, options.rounds, options.target)
        row = f"| {name} | {r['bytes']} | {r['ms']:.2f} | {r['ratio']:.2f} | {r['least']:.2f} | {r['off']:.1e} |"
        lines.append(row)
        print(row, flush=True)
    if options.write:
        before = RESULTS.read_text() if RESULTS.exists() else HEAD
        parts = before.split("\n## ")
        retained = [part for part in parts[1:] if not part.startswith(f"{options.target}\n")]
        retained.append(f"{options.target}\n\n" + "\n".join(lines) + "\n")
        RESULTS.write_text("\n## ".join([HEAD, *sorted(retained)]))
    return 0


HEAD = f"""# WebAssembly in Node

`python -m benchmarks.bench_web --write`: bundles against onnxruntime-web {VERSION} (its wasm
backend, SIMD) in Node 20, one thread each, in turns in one process, on a busy Zen 3; processor time, medians of the
rounds. The difference is the largest of all outputs, over the largest value of that output.
"""

if __name__ == "__main__":
    raise SystemExit(main())
