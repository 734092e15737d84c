"""Decoding with caches against ONNX Runtime and OpenVINO: `python -m benchmarks.bench_decode`.

A model of GPT-2's shape makes 16 tokens, one a step, after some earlier ones; one process a framework, taking turns.
ONNX Runtime keeps its caches as values of its own, OpenVINO as variables.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.decoder_model import saved
from benchmarks.harness import markdown_table, speedup, write_markdown
from benchmarks.peers.decoding import STEPS
from tilewright.measure import paired
from tilewright.measure.contender import load_arrays

PEERS = ("own", "onnxruntime", "openvino")
HEADER = ["layers x width", "earlier", "batch", "tokens/s", "without state", "ONNX Runtime", "OpenVINO", "difference"]


def compare(layers: int, width: int, earlier: int, batch: int, threads: int, rounds: int) -> list[str]:
    """A row of the table."""
    path = saved(layers, width, width // 64)
    arguments = {"path": str(path), "earlier": earlier, "batch": batch, "threads": threads}
    names = ("state", *PEERS)
    contenders = [paired.Contender(name, f"benchmarks.peers.decoding:{name}", arguments) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        raced = paired.race(contenders, rounds=rounds, turn_seconds=0.05, outputs=Path(folder))
        result = dict(zip(names, raced, strict=True))
        logits = {name: load_arrays(str(r.outputs))["logits"] for name, r in result.items() if r.outputs}
    cells = [str(speedup(result["state"], result[p])) if result[p].times else "-" for p in PEERS]
    off = max(np.abs(a - logits["state"]).max() for a in logits.values()) / np.abs(logits["state"]).max()
    tokens = batch * STEPS / result["state"].median
    return [f"{layers} x {width}", str(earlier), str(batch), f"{tokens:.1f}", *cells, f"{off:.1e}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="12x768", help="layers x width, with commas between")
    parser.add_argument("--cases", default="512x1,512x8,64x1", help="earlier tokens x batch, with commas between")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    table = []
    for model in options.models.split(","):
        layers, width = map(int, model.split("x"))
        for case in options.cases.split(","):
            earlier, batch = map(int, case.split("x"))
            table.append(compare(layers, width, earlier, batch, options.threads, options.rounds))
            print("  ".join(table[-1]), flush=True)
    if not options.no_report:
        title = f"Decoding with caches, {options.threads} thread(s): how many times faster with state [95 %]"
        write_markdown("decode", title, markdown_table(HEADER, table))


if __name__ == "__main__":
    main()
