"""Errors of products in reduced precision against float64: `python -m benchmarks.bench_precision`.

One product with random weights each, activations as they come in such layers: normal, rectified, or with a few columns
thirty times larger than the others, as transformers have them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks import harness
from benchmarks.onnx_builder import Builder

LAYERS = ((1, 768, 3072), (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (32, 512, 512))
"""Rows, depth, columns."""

ACTIVATIONS = ("normal", "rectified", "outliers")
MODES = ("fp32", "bf16", "int8")


def activations(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "rectified":
        return np.maximum(x, 0)
    if kind == "outliers":
        x[:, rng.choice(shape[1], 4, replace=False)] *= 30
    return x


def product(rows: int, depth: int, columns: int, w: np.ndarray) -> onnx.ModelProto:
    b = Builder("product")
    y = b.op("MatMul", [b.input("x", [rows, depth]), b.weight("w", w)])
    b.output(y, "y", [rows, columns])
    return b.build()


def errors(layer: tuple[int, int, int], kind: str, mode: str) -> tuple[float, float]:
    """(root mean square of the error over that of the result, greatest error over the greatest result)."""
    rng = np.random.default_rng(0)
    rows, depth, columns = layer
    w = (rng.standard_normal((depth, columns)) / np.sqrt(depth)).astype(np.float32)
    x = activations(kind, (rows, depth), rng)
    got = np.asarray(tw.compile(product(rows, depth, columns, w), precision=mode)(x), np.float64)
    want = x.astype(np.float64) @ w.astype(np.float64)
    off = np.abs(got - want)
    return float(np.sqrt(np.mean(off**2) / np.mean(want**2))), float(off.max() / np.abs(want).max())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_precision", description=__doc__.splitlines()[0])
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    cells: list[list[str]] = []
    for layer in LAYERS:
        for kind in ACTIVATIONS:
            result = {mode: errors(layer, kind, mode) for mode in MODES}
            rows.append({"layer": layer, "activations": kind, **{m: result[m] for m in MODES}})
            cells.append(["x".join(map(str, layer)), kind, *(f"{result[m][0]:.1e}, {result[m][1]:.1e}" for m in MODES)])
    text = harness.markdown_table(["rows x depth x columns", "activations", *MODES], cells)
    print(text)
    if not options.no_report:
        title = "Errors of products in reduced precision: rms relative to rms, greatest relative to greatest"
        print(f"wrote {harness.write_report('precision', title, rows, text)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
