"""Memory: a call's arena against its lower bound, weights, peak of the process: `python -m benchmarks.bench_memory`.

The lower bound is the largest sum of bytes that are live at once. Each model is compiled in a process of its own, so
that the peak is the peak of compiling, packing the weights and one call of that model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks import harness, light_models, models

DEFAULT = "m64,m256,nat,imp,hok1,dz,az6,onnx-squeezenet,onnx-shufflenet,onnx-resnet50"
ALL = ",".join((*models.POLICY, *(f"onnx-{n}" for n in light_models.names())))
DEFAULT_EACH = "nat"
BAR = 1.10
TIMEOUT = 180.0
"""Seconds for one model."""
HEADER = ["model", "batch", "arena MB", "lower bound MB", "ratio", "bar", "weights MB", "packed MB", "peak MB"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=DEFAULT, help="names; onnx-NAME is a light model of the onnx wheel; all")
    parser.add_argument("--batches", default="1,8", help="values of a symbolic batch")
    parser.add_argument(
        "--each", type=int, default=0, help="what each of so many models more takes, of --models, alone"
    )
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    if options.each:
        return _print_each((DEFAULT_EACH if options.models == DEFAULT else options.models).split(","), options.each)
    console = harness.console()
    rows: list[dict[str, Any]] = []
    status = 0
    for model in (ALL if options.models == "all" else options.models).split(","):
        with console.status(model):
            result = _in_process(model, options.batches)
        if isinstance(result, str):
            console.print(f"{model} failed: {result}", style="red", markup=False)
            status = 1
            continue
        rows += result
        console.print(" | ".join(_cells(result[-1])), markup=False, highlight=False)
    cells = [_cells(row) for row in rows]
    text = harness.markdown_table(HEADER, cells)
    print(text)
    if any(row["ratio"] > BAR for row in rows):
        status = 1
    if not options.no_report:
        print(f"wrote {harness.write_report('memory', 'Memory', rows, text)}")
    return status


def _cells(row: dict[str, Any]) -> list[str]:
    sizes = {k: f"{row[k] / 1e6:.3g}" for k in ("arena", "lower_bound", "raw_weights", "packed_weights")}
    return [
        row["model"],
        str(row["batch"]),
        sizes["arena"],
        sizes["lower_bound"],
        f"{row['ratio']:.3f}",
        f"{BAR:g}",
        sizes["raw_weights"],
        sizes["packed_weights"],
        f"{row['peak'] / 1e6:.0f}",
    ]


def _print_each(names: list[str], count: int) -> int:
    """Print what each of many models of a kind takes, compiled from its file, loaded from a .tw file, and compiled
    with `keep_weights=True`."""
    rows = []
    for name in names:
        for way in ("compiled", "loaded", "kept"):
            result = _in_process(name, f"{way}:{count}")
            if isinstance(result, str):
                print(f"{name} failed: {result}")
                return 1
            rows += [[name, way, str(count), f"{result[0]['raw'] / 1e6:.2f}", f"{result[0]['each'] / 1e6:.2f}"]]
    print(harness.markdown_table(["model", "way", "models", "raw weights MB", "resident MB each"], rows))
    return 0


def _resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_each(name: str, way: str, count: int) -> None:
    """Keeps `count` models of a kind that have been called, and prints what each of them has added as JSON."""
    import gc
    import tempfile

    import onnx

    import tilewright as tw

    path = str(models.load(name))
    inputs = models.example_inputs(onnx.load(path), 1)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.tw")
        first = tw.compile(path, threads=1)
        first.save(file)

        def another() -> tw.Model:
            model = (
                tw.load(file) if way == "loaded" else tw.compile(path, threads=1, keep_weights=way == "kept" or None)
            )
            model.run(inputs)
            return model

        retained = [another()]
        gc.collect()
        before = _resident()
        retained += [another() for _ in range(count)]
        gc.collect()
        raw = sum(p.nbytes for p in first.params)
        print(json.dumps([{"each": (_resident() - before) / count, "raw": raw}]))


def _in_process(model: str, batches: str) -> list[dict[str, Any]] | str:
    """The rows of one model, or what went wrong."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    code = "import sys; from benchmarks.bench_memory import measure; measure(*sys.argv[1:])"
    command = [sys.executable, "-c", code, model, batches]
    try:
        result = subprocess.run(
            command,
            env=environment,
            cwd=models.ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"took longer than {TIMEOUT:g} s"
    if result.returncode != 0:
        # The message begins at the margin and may be followed by the program that it is about.
        said = [line for line in result.stderr.splitlines() if line[:1].strip()]
        return said[-1] if said else f"status {result.returncode}"
    rows: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return rows


def measure(name: str, batches: str) -> None:
    """Compiles, runs once at each batch, prints the rows as JSON."""
    import onnx

    import tilewright as tw

    way, _, count = batches.partition(":")
    if count:
        measure_each(name, way, int(count))
        return
    onnx_name = name.removeprefix("onnx-")
    path = models.load(name) if name == onnx_name else light_models.load(onnx_name).path
    model = tw.compile(str(path), threads=1)
    proto = onnx.load(path)
    rows = []
    for batch in [int(b) for b in batches.split(",")] if model.manifest.symbols else [1]:
        model.run(models.example_inputs(proto, batch))
        result = model.memory(**{s.name: batch for s in model.manifest.symbols})
        rows.append(
            {
                "model": name,
                "batch": batch,
                "arena": result.arena,
                "lower_bound": result.lower_bound,
                "ratio": result.ratio,
                "raw_weights": result.raw_weights,
                "packed_weights": result.packed_weights,
                "peak": result.process_peak,
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    raise SystemExit(main())
