"""Models as StableHLO and as linalg: run by XLA and IREE and compared with ours, and whether they come in as they went.

    python -m benchmarks.bench_mlir_out [NAME...] [--ways xla,iree,linalg,keys] [--limit 400] [--rows FILE] [--report]

NAME is any model of `benchmarks.models`, of one row; without names, all of `suites/models.txt`. `xla` and `iree` take
the StableHLO text, `linalg` is that text by IREE, `keys` reads the StableHLO text again, with its sizes known and with
them open: what was read, written and read once more must have the same key. Each is a process of its own with a time
limit. Rows go to a file one by one; those of models that are not named stay.

A difference is the largest over all outputs, each relative to that output's largest magnitude; ours is compiled with
`fast="exact"`, so that what Winograd's transforms round differently is not taken for a wrong text.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import layers, models
from benchmarks.harness import console, markdown_table, relative_error, write_markdown

ROWS = models.ROOT / "build" / "mlir-out.jsonl"
BOUND = 1e-5
"""A difference that is no rounding error any more."""
HEADER = {
    "xla": "StableHLO by XLA",
    "iree": "StableHLO by IREE",
    "linalg": "linalg by IREE",
    "keys": "the same key: sizes known, open",
}
"""The ways, with the heads of their columns."""


def suite() -> list[str]:
    """The models of the table, without their batches."""
    return list(dict.fromkeys(label.partition("@")[0] for _, (label, *_) in layers.lines("models")))


# --- in a process of its own ----------------------------------------------------------------------------------------


def difference(name: str, way: str) -> str:
    """The difference of a model by another compiler, as text."""
    import tilewright as tw
    from benchmarks.peers.mlir import by_iree, by_xla
    from tilewright.codegen.linalg import linalg_text
    from tilewright.codegen.stablehlo import stablehlo_text
    from tilewright.frontend.read import import_model

    path, dims = models.load(name), sizes(name)
    inputs = models.example_inputs(onnx.load(path, load_external_data=False))
    ours = tw.compile(path, dims=dims, fast="exact", threads=1).run(inputs)
    read = import_model(path, dims)
    arrays = [*(inputs[v.name] for v in read.graph.inputs), *(read.weights[p.name] for p in read.graph.params)]
    if way == "linalg":
        result = by_iree(linalg_text(read.graph), arrays, "none")
    else:
        result = {"xla": by_xla, "iree": by_iree}[way](stablehlo_text(read.graph), arrays)
    names = [v.name for v in read.graph.outputs]
    theirs = {name: np.asarray(x) for name, x in zip(names, result, strict=True)}
    return f"{relative_error(theirs, dict(zip(names, ours.values(), strict=True))):.1e}"


def keys(name: str) -> str:
    """Whether a model that was read and written has the same key when it is read again."""
    from tilewright.frontend.read import import_model
    from tilewright.ir.key import key

    said = []
    for dims in (sizes(name), {}):
        first = round_trip(import_model(models.load(name), dims).graph)
        said.append("yes" if key(round_trip(first)) == key(first) else "NO")
    return ", ".join(said)


def round_trip(graph: Any) -> Any:
    """A graph written as StableHLO, and read."""
    from tilewright.codegen.stablehlo import stablehlo_text
    from tilewright.frontend.stablehlo import import_stablehlo

    return import_stablehlo(stablehlo_text(graph)).graph


def sizes(name: str) -> dict[str, int]:
    """One row: each symbolic dimension is 1."""
    graph = onnx.load(models.load(name), load_external_data=False).graph
    return {d.dim_param: 1 for v in graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}


# --- all of them ----------------------------------------------------------------------------------------------------


def in_process(name: str, way: str, limit: float) -> str:
    """The answer of a process of its own about a model in one way."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    order = [sys.executable, "-m", "benchmarks.bench_mlir_out", name, "--one", way]
    child = subprocess.Popen(
        order, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # also the compilers that it called
        child.communicate()
        return f"nothing in {limit:.0f} s"
    if child.returncode:
        lines = err.strip().splitlines() or [""]
        return f"status {child.returncode}: {next((line for line in lines if 'error:' in line), lines[-1])[:160]}"
    return out.splitlines()[-1]


def read(path: Path) -> dict[str, dict[str, str]]:
    """The results of earlier runs, way by way; of two of one model the later."""
    result: dict[str, dict[str, str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        result.setdefault(row["model"], {})[row["way"]] = row["found"]
    return result


def report(rows: dict[str, dict[str, str]]) -> str:
    order = {name: k for k, name in enumerate([*suite(), *models.NAMES])}
    names = sorted(rows, key=lambda name: order.get(name, len(order)))
    cells = [[name, *(rows[name].get(way, "").replace("|", "/") for way in HEADER)] for name in names]
    figures = [float(candidate) for row in rows.values() for candidate in row.values() if candidate[:1].isdigit()]
    over = sum(figure > BOUND for figure in figures)
    text = f"{over} of {len(figures)} runs differ by more than {BOUND:g}. What has no figure was not run."
    return f"{markdown_table(['model', *HEADER.values()], cells)}\n{text}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_mlir_out", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="models; all of suites/models.txt if none")
    parser.add_argument("--ways", default=",".join(HEADER), help="some of the ways, with commas between")
    parser.add_argument("--one", choices=list(HEADER), help="one way of one model here and now, as text")
    parser.add_argument("--limit", type=float, default=400, help="seconds of one model in one way")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where rows are kept, one by one")
    parser.add_argument("--report", action="store_true", help="only write the table of the rows there are")
    options = parser.parse_args(arguments)
    if options.one:
        print(keys(options.names[0]) if options.one == "keys" else difference(options.names[0], options.one))
        return 0
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in [] if options.report else options.names or suite():
        for way in options.ways.split(","):
            result = in_process(name, way, options.limit)
            bad += "NO" in result or (result[:1].isdigit() and float(result) > BOUND)
            with options.rows.open("a") as file:
                file.write(json.dumps({"model": name, "way": way, "found": result}) + "\n")
            console().print(f"{name}  {HEADER[way]}: {result}", markup=False, highlight=False)
    title = "Models as StableHLO and linalg, by XLA and IREE, against ours"
    console().print(f"wrote {write_markdown('mlir-out', title, report(read(options.rows)))}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
