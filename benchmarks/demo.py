"""The demo: compiles and runs four models and holds them against ONNX Runtime. `make demo`.

Each model is compiled in a fresh process with an empty cache and in another with the cache that it left; then
both frameworks take turns, one process each, one thread. Fails if an output differs by more than 1e-4 of its scale.
PyTorch is not needed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from rich.table import Table

from benchmarks import harness, models
from benchmarks.compile_probe import ProbeError, probe

MODELS = {
    "m64": "M64: two tanh towers of 64",
    "nat": "NAT: Nature CNN, 4x84x84 bytes",
    "az6": "AZ6: 6 residual blocks of 128, 19x19",
    "light-resnet50": "light ResNet-50, 224x224",
}
TOLERANCE = 1e-4


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(models.NAMES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    console = harness.console()
    table = Table(title=f"Batch 1, {options.threads} thread(s)", title_justify="left")
    table.add_column("model")
    for name in ("Tilewright µs", "ONNX Runtime µs", "times faster [95 %]", "max error", "cold s", "cached s"):
        table.add_column(name, justify="right")
    failures = []
    with tempfile.TemporaryDirectory(prefix="tilewright-cache-") as folder:
        os.environ["TILEWRIGHT_CACHE_DIR"] = folder
        for model in options.models.split(","):
            label = MODELS.get(model, model)
            try:
                with console.status(label) as status:
                    row = _row(model, options, Path(folder), status.update)
            except (ProbeError, RuntimeError) as error:
                failures.append(f"{label}: {error}")
                table.add_row(label, "[red]failed[/red]")
                continue
            table.add_row(label, *row[1:])
            if row[0] > TOLERANCE:
                failures.append(f"{label}: outputs differ by {row[0]:.1e} of their scale, more than {TOLERANCE:g}")
    console.print(table)
    for failure in failures:
        console.print(f"[red]failed[/red] {failure}", highlight=False)
    return 1 if failures else 0


def _row(model: str, options: argparse.Namespace, cache: Path, announce: object) -> tuple[float, *tuple[str, ...]]:
    """The error, then the table's cells."""
    assert callable(announce)
    announce(f"{model}: cold compile")
    uncached = probe(model, options.threads, cache)
    announce(f"{model}: compile from the cache")
    warm = probe(model, options.threads, cache)
    peers = ["tilewright", "onnxruntime"]
    timing = harness.Timing(rounds=options.rounds)
    c = harness.compare(model, peers, threads=options.threads, timing=timing, announce=announce)
    if c.failures:
        raise RuntimeError("; ".join(f"{peer}: {text}" for peer, text in c.failures.items()))
    error = c.errors["tilewright"]
    return (
        error,
        f"{c.seconds['tilewright'] * 1e6:.1f}",
        f"{c.seconds['onnxruntime'] * 1e6:.1f}",
        str(c.speedups["onnxruntime"]),
        f"{error:.1e}",
        f"{uncached.compiling:.2f}",
        f"{warm.compiling:.2f}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
