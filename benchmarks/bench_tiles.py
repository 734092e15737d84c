"""Products of bf16 and of 8 bits against OpenVINO at its best: `python -m benchmarks.bench_tiles`, with AMX.

bf16: one file of f32, ours with precision="bf16", OpenVINO with its precision of inference bf16. int8: one file with
QuantizeLinear and DequantizeLinear around the product. Processes take turns; ratios are medians of pairs, above 1 where
ours is faster. `--peak` is what the instructions do from registers, in GFLOP/s, of bf16 and of int8.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.bench_split import SHAPES
from benchmarks.harness import speedup
from benchmarks.onnx_builder import Builder
from tilewright.ir.dtype import bf16
from tilewright.measure import paired
from tilewright.schedule.dot_intrinsics import find_tile_dot
from tilewright.targets.target import Target

WAYS = {"bf16": ("own:bf16", "vino:latency_bf16"), "int8": ("own:fixed", "vino:latency")}
"""By precision: our setup and OpenVINO's."""


def product(shape: tuple[int, int, int], precision: str) -> onnx.ModelProto:
    """x[rows, depth] times a weight, f32 in and out."""
    rows, depth, columns = shape
    w = (np.random.default_rng(0).standard_normal((depth, columns)) / np.sqrt(depth)).astype(np.float32)
    b = Builder("product")
    x, weight = b.input("x", [rows, depth]), b.weight("w", w)
    if precision == "int8":
        step, zero = b.weight("step", np.float32(4 / 127)), b.weight("zero", np.uint8(128))
        x = b.op("DequantizeLinear", [b.op("QuantizeLinear", [x, step, zero]), step, zero])
        scale = np.float32(np.abs(w).max() / 127)
        codes = b.weight("codes", np.round(w / scale).astype(np.int8))
        weight = b.op("DequantizeLinear", [codes, b.weight("scale", scale), b.weight("none", np.int8(0))])
    b.output(b.op("MatMul", [x, weight]), "y", [rows, columns])
    return b.build()


def race(path: Path, precision: str, peer: bool, seconds: float) -> tuple[float, float | None]:
    """Seconds of a call of ours, and how many times faster it is than OpenVINO's."""
    own, other = WAYS[precision]
    setups = {"own": own, **({"openvino": other} if peer else {})}
    arguments: dict[str, Any] = {"model": str(path), "threads": 1, "batch": 1}
    contenders = [paired.Contender(n, f"benchmarks.peers.{s}", arguments) for n, s in setups.items()]
    results = paired.race(contenders, rounds=21, turn_seconds=0.02, enough_seconds=seconds)
    for result in results:
        if result.error:
            raise SystemExit(result.error)
    return results[0].median, speedup(results[0], results[1]).median if peer else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one shape, as 128x768x768")
    parser.add_argument("--seconds", type=float, default=2.0, help="no further round of a shape begins after this time")
    parser.add_argument("--peak", type=float, nargs=2, metavar=("BF16", "INT8"))
    parser.add_argument("--no-peer", action="store_true", help="without OpenVINO")
    parser.add_argument("--any", action="store_true", help="run without AMX too")
    options = parser.parse_args(arguments)
    if not options.any and find_tile_dot(bf16, bf16, Target.host()) is None:
        raise SystemExit("this machine multiplies no matrices of bf16 (AMX): --any runs here")
    names = {"x".join(map(str, shape)): shape for shape in SHAPES}
    if options.only is not None and options.only not in names:
        raise SystemExit(f"no such shape: {options.only}; known: {', '.join(names)}")
    ratios: dict[str, list[float]] = {precision: [] for precision in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in names.items():
            if options.only not in (None, name):
                continue
            for k, precision in enumerate(WAYS):
                path = Path(folder) / f"{name}-{precision}.onnx"
                onnx.save(product(shape, precision), path)
                seconds, ratio = race(path, precision, not options.no_peer, options.seconds)
                rate = 2e-9 * float(np.prod(shape)) / seconds
                cells = [f"{name:>16} {precision}: {rate:7.0f} GFLOP/s"]
                if options.peak:
                    cells.append(f"{rate / options.peak[k]:.2f} of the peak")
                if ratio is not None:
                    ratios[precision].append(ratio)
                    cells.append(f"{ratio:.2f} times OpenVINO's speed")
                print(", ".join(cells), flush=True)
    for precision, values in ratios.items():
        if values:
            mean = np.exp(np.mean(np.log(values)))
            print(f"{precision}: {mean:.2f} in the geometric mean of {len(values)}, the least {min(values):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
