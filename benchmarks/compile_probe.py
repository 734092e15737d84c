"""Compiles one model in a fresh process and reports times and memory as JSON; run by the benchmarks and the demo.

`probe("az6", threads=1, cache=folder)` starts the process; the folder decides whether the compile finds a cached
program.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from benchmarks import models


@dataclass(frozen=True, slots=True)
class CompileTimes:
    """Seconds, and the largest size of the process in bytes.

    `importing` is `import tilewright` with NumPy and onnx, `compiling` is `tw.compile` with reading the file and
    preparing the weights, `first_run` the first call.
    """

    importing: float
    compiling: float
    first_run: float
    peak_memory: int
    weight_bytes: int


class ProbeError(Exception):
    """The process that compiles failed; the message is the end of its output."""


def probe(model: str, threads: int, cache: Path) -> CompileTimes:
    """Compiles `model` in a fresh process that uses `cache` as the compiler's cache folder."""
    path = models.load(model)
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(cache)}
    environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.compile_probe", str(path), str(threads)],
        env=environment,
        cwd=models.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        last = "\n".join(result.stderr.strip().splitlines()[-15:])
        raise ProbeError(f"the compiling process ended with status {result.returncode}: {last}")
    return CompileTimes(**json.loads(result.stdout.splitlines()[-1]))


def main(path: str, threads: int) -> None:
    start = time.perf_counter()
    import onnx

    import tilewright as tw

    compile_model = tw.compile  # names are resolved on first use: this imports the compiler
    importing = time.perf_counter() - start
    start = time.perf_counter()
    model = compile_model(path, threads=threads)
    compiling = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    proto = onnx.load(path)
    inputs = models.example_inputs(proto)
    start = time.perf_counter()
    model.run(inputs)
    first_run = time.perf_counter() - start
    weight_bytes = sum(initializer.ByteSize() for initializer in proto.graph.initializer)
    times = {
        "importing": importing,
        "compiling": compiling,
        "first_run": first_run,
        "peak_memory": peak,
        "weight_bytes": weight_bytes,
    }
    print(json.dumps(times))


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except Exception as error:
        if os.environ.get("TILEWRIGHT_DEBUG", "0") != "0":
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise SystemExit(f"{type(error).__name__}: {error} [{frame.filename}:{frame.lineno}]") from None
