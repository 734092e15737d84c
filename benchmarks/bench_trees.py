"""Tree ensembles against LightGBM, lleaves and ONNX Runtime: `python -m benchmarks.bench_trees`.

LightGBM regressors of 28 features, trained on random numbers until each tree has all its leaves; one process each,
taking turns. Times are of `predict` on arrays of the framework's own type.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import markdown_table, speedup, write_markdown
from tilewright.measure import paired
from tilewright.measure.contender import load_arrays

FEATURES = 28
FOLDER = Path(__file__).resolve().parent.parent / "build" / "models" / "trees"
LLEAVES = Path(__file__).resolve().parent.parent / "build" / "peers" / "lleaves-env" / "bin" / "python"
"""lleaves needs an older llvmlite than Tilewright, so it has an environment of its own (`make bench-trees`)."""
PEERS = ("own", "onnxruntime", "lleaves", "lightgbm")
HEADER = ["trees x leaves", "rows", "ours µs", "ONNX Runtime", "lleaves", "LightGBM"]
HEADER += ["our compile s", "lleaves' s", "difference from LightGBM"]
BIG = 100_000
"""Inner nodes from which on lleaves, which makes code of each, is left out: it would compile for minutes."""


def build(trees: int, leaves: int) -> Path:
    """The model as LightGBM's text and as ONNX, trained once."""
    folder = FOLDER / f"{trees}x{leaves}"
    if (folder / "model.onnx").exists():
        return folder
    import lightgbm
    import onnx
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(max(4000, leaves * 60), FEATURES)).astype(np.float32)
    y = x @ rng.normal(size=FEATURES) + np.sin(3 * x).sum(axis=1) + rng.normal(size=len(x))
    model = lightgbm.train(
        {"objective": "regression", "num_leaves": leaves, "min_data_in_leaf": 5, "verbose": -1, "num_threads": 1},
        lightgbm.Dataset(x, y),
        trees,
    )
    model.save_model(folder / "model.txt")
    onnx.save(convert_lightgbm(model, initial_types=[("x", FloatTensorType([None, FEATURES]))]), folder / "model.onnx")
    return folder


def compare(trees: int, leaves: int, rows: int, threads: int, rounds: int) -> list[str]:
    """A row of the table."""
    folder = build(trees, leaves)
    names = [p for p in PEERS if p != "lleaves" or trees * leaves < BIG]
    arguments = {"folder": str(folder), "count": rows, "features": FEATURES, "threads": threads}
    contenders = [
        paired.Contender(
            name, f"benchmarks.peers.trees:{name}", arguments, python=str(LLEAVES) if name == "lleaves" else None
        )
        for name in names
    ]
    with tempfile.TemporaryDirectory() as retained:
        raced = paired.race(contenders, rounds=rounds, turn_seconds=0.05, outputs=Path(retained))
        result = dict(zip(names, raced, strict=True))
        outputs = {name: load_arrays(str(r.outputs))["y"].reshape(-1) for name, r in result.items() if r.outputs}
    cells = [str(speedup(result["own"], result[p])) if p in result and result[p].times else "-" for p in PEERS[1:]]
    seconds = [result[p].info.get("compile_seconds") if p in result else None for p in ("own", "lleaves")]
    difference = np.abs(outputs["own"] - outputs["lightgbm"]).max() / np.abs(outputs["lightgbm"]).max()
    own = f"{result['own'].median * 1e6:.1f}"
    shown = ["-" if s is None else f"{s:.2f}" for s in seconds]
    return [f"{trees} x {leaves}", str(rows), own, *cells, *shown, f"{difference:.1e}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="100x31,500x31,500x64,500x255", help="trees x leaves, with commas between")
    parser.add_argument("--rows", default="1,100,10000")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    table = []
    for model in options.models.split(","):
        trees, leaves = map(int, model.split("x"))
        for rows in map(int, options.rows.split(",")):
            table.append(compare(trees, leaves, rows, options.threads, options.rounds))
            print("  ".join(table[-1]), flush=True)
    if not options.no_report:
        title = f"Tree ensembles, {options.threads} thread(s): how many times faster, medians of paired ratios [95 %]"
        write_markdown("trees", title, markdown_table(HEADER, table))


if __name__ == "__main__":
    main()
