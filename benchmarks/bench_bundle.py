"""Bundles against the Python runtime and against emx-onnx-cgen's C at -O3: `python -m benchmarks.bench_bundle --write`.

emx-onnx-cgen has an environment of its own, whose Python is given as `--emx`. All contenders are called from loops in C
in one process each model, in turns, the Python runtime from a loop in Python; times are the process's processor time,
ratios are medians over the rounds. Both
C sources are built for this machine (-O3 -march=native).
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks.bundle_models import MODELS, BundleModel, inputs_of
from benchmarks.models import ROOT
from tilewright.bundle.binding import Binding
from tilewright.bundle.write import described
from tilewright.runtime.program import Program

RESULTS = ROOT / "benchmarks" / "results" / "bundle.md"
Array = np.ndarray[Any, Any]
Bench = Callable[[int], float]
"""Seconds of so many calls."""
TURN = 0.03
"""Seconds of processor time of a turn, at least one call."""
LIMIT = 120
"""Seconds that emx-onnx-cgen, and a compiler for what it writes, may take."""

_CLOCK = """
#include <time.h>
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
"""

_MEMORY = """
static unsigned char *place(size_t bytes) {
    const size_t page = (size_t)2 << 20, whole = (bytes + page - 1) / page * page;
    void *memory = aligned_alloc(page, whole);
    if (bytes >= page) madvise(memory, whole, MADV_HUGEPAGE);
    return memory;
}
"""
"""Memory of 2 MB and more in large pages, as the Python runtime has its weights."""


def built(folder: Path, source: str, *more: str) -> ctypes.CDLL:
    """A library of a C source, with -O3 for this machine."""
    (folder / "bench.c").write_text(source)
    library = folder / "bench.so"
    flags = ["-std=gnu11", "-O3", "-march=native", "-w", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "bench.c", *more, "-lm", "-o", library], cwd=folder, check=True, timeout=LIMIT)
    return ctypes.CDLL(str(library))


def timer(library: ctypes.CDLL, pointers: list[int]) -> Bench:
    """Calls of a library's `bench` on these arrays."""
    library.bench.restype = ctypes.c_double
    table = (ctypes.c_void_p * len(pointers))(*pointers)
    return lambda n: float(library.bench(ctypes.c_int64(n), table))


def ours(program: Program, binding: Binding, model: BundleModel, folder: Path, arrays: Mapping[str, Array]) -> Bench:
    """A bundle's calls."""
    program.bundle(folder, rows=model.rows)
    n, upper = binding.name, binding.name.upper()
    named = [*binding.inputs, *binding.outputs]
    sizes = [str(model.sizes[s.spec.name]) for s in binding.sizes]
    inputs = ["constants", "activations", *(["state"] if binding.state else []), *sizes]
    inputs += [f"p[{k}]" for k in range(len(named))] + (["extents"] if binding.extents else [])
    memory = ["weights", "constants", "workspace", "activations", *(["state"] if binding.state else [])]
    source = [f'#include "{n}.h"', "#include <stdio.h>", _CLOCK]
    source += ["#include <stdlib.h>", "#include <sys/mman.h>", _MEMORY]
    source += [f"static unsigned char *{m};" for m in memory]
    source += ["static int64_t extents[64];", "double bench(int64_t n, void **p) {", "    static int ready;"]
    source += [
        "    if (!ready) {",
        *(f"        {m} = place({upper}_{m.upper()}_BYTES + 1);" for m in memory),
        f'        FILE *file = fopen("{folder}/{n}.weights", "rb");',
        f"        if (fread(weights, 1, {upper}_WEIGHTS_BYTES, file) != {upper}_WEIGHTS_BYTES) return -1;",
        "        fclose(file);",
        f"        if ({n}_prepare(constants, weights, workspace)) return -1;",
        "        ready = 1;",
        "    }",
        "    const double start = seconds();",
        "    for (int64_t k = 0; k < n; ++k) {",
        *(["        *(int64_t *)state = 0;"] if binding.state else []),
        f"        if ({n}_run({', '.join(inputs)})) return -1;",
        "    }",
        "    return seconds() - start;",
        "}",
    ]
    library = built(folder, "\n".join(source), f"{n}.o")
    return timer(library, [arrays[a.name].ctypes.data for a in named])


def theirs(
    python: str,
    proto: onnx.ModelProto,
    model: BundleModel,
    folder: Path,
    inputs: Mapping[str, Array],
    outs: list[Array],
) -> Bench:
    """Calls of emx-onnx-cgen's C. Raises CalledProcessError where it does not take the model."""
    onnx.save(proto, folder / "model.onnx")
    known = {d: n for d, n in model.dims.items() if isinstance(n, int)} | dict(model.sizes)
    pinned = [x for d, n in known.items() for x in ("--input-dim", f"{d}={n}")]
    options = ["--restrict-arrays", "--large-temp-threshold", str(1 << 30)]
    line = [python, "-m", "emx_onnx_cgen", "compile", *pinned, *options, "model.onnx", "model.c"]
    subprocess.run(line, cwd=folder, check=True, capture_output=True, timeout=LIMIT)
    text = (folder / "model.c").read_text()
    load = f'if (!model_load_file(fopen("{folder}/model.bin", "rb"))) return -1;' if "model_load_file" in text else ""
    arguments = ", ".join(f"p[{k}]" for k in range(len(inputs) + len(outs)))
    source = f"""
#include "model.c"
{_CLOCK}
double bench(int64_t n, void **p) {{
    static int ready;
    if (!ready) {{ {load} ready = 1; }}
    const double start = seconds();
    for (int64_t k = 0; k < n; ++k) model({arguments});
    return seconds() - start;
}}
"""
    initializers = {i.name for i in proto.graph.initializer}
    order = [i.name for i in proto.graph.input if i.name not in initializers]
    library = built(folder, source)
    return timer(library, [*(inputs[name].ctypes.data for name in order), *(o.ctypes.data for o in outs)])


def runtime(program: Program, model: BundleModel, inputs: Mapping[str, Array]) -> Bench:
    """Calls of the Python runtime, into arrays that are there."""
    runner = tw.Model(program, threads=1)
    if program.manifest.state is not None:
        state = runner.state(capacity=model.rows)

        def call() -> None:
            state.truncate(0)
            state(*inputs.values())
    else:
        arguments = [inputs[i.name] for i in program.manifest.arguments]

        def call() -> None:
            runner(*arguments)

    def bench(n: int) -> float:
        start = time.process_time()
        for _ in range(n):
            call()
        return time.process_time() - start

    return bench


def race(contenders: Mapping[str, Bench], rounds: int) -> dict[str, list[float]]:
    """Seconds a call by contender and round, in turns, each after a call that fills the caches."""
    counts = {}
    for name, bench in contenders.items():
        least = min(bench(1) for _ in range(4))
        counts[name] = max(1, round(TURN / max(least, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for k in range(rounds):
        names = list(contenders)
        for name in names if k % 2 else names[::-1]:
            contenders[name](1)
            times[name].append(contenders[name](counts[name]) / counts[name])
    return times


def row(name: str, model: BundleModel, python: str | None, rounds: int) -> str:
    """The line of the table of one model."""
    proto = model.build()
    program = tw.compile_program(proto, dims=dict(model.dims), **model.options)
    binding = described(program, rows=model.rows)
    inputs = inputs_of(model, proto)
    arrays = dict(inputs) | {a.name: np.zeros(a.elements + 16, a.dtype.numpy) for a in binding.outputs}
    note = ""
    with tempfile.TemporaryDirectory() as folder:
        place, other = Path(folder) / "ours", Path(folder) / "theirs"
        other.mkdir()
        contenders = {"bundle": ours(program, binding, model, place, arrays), "python": runtime(program, model, inputs)}
        if python is not None and not model.options:
            outs = [np.zeros(a.elements + 16, a.dtype.numpy) for a in binding.outputs]
            try:
                contenders["emx"] = theirs(python, proto, model, other, inputs, outs)
                contenders["bundle"](1)
                contenders["emx"](1)
                note = "" if _agree(binding, arrays, outs) else "other results"
            except (subprocess.SubprocessError, OSError) as error:
                note = f"not taken ({type(error).__name__})"
        size = (place / f"{binding.name}.o").stat().st_size
        times = race(contenders, rounds)
    pairs = {k: statistics.median(a / b for a, b in zip(v, times["bundle"], strict=True)) for k, v in times.items()}
    ours_us = statistics.median(times["bundle"]) * 1e6
    emx = f"{pairs['emx']:.1f}" if "emx" in pairs else "-"
    return f"| {name} | {ours_us:.4g} | {1 / pairs['python']:.3f} | {emx} | {size >> 10} | {note} |"


def _agree(binding: Binding, arrays: Mapping[str, Array], outs: list[Array]) -> bool:
    return all(
        np.allclose(arrays[a.name][: a.elements], o[: a.elements], rtol=1e-2, atol=1e-3)
        for a, o in zip(binding.outputs, outs, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--emx", help="the Python of an environment with emx-onnx-cgen")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--write", action="store_true", help="keep the table")
    options = parser.parse_args()
    head = [
        "| model | bundle µs | bundle / Python runtime | emx-onnx-cgen / bundle | object KB | |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(head), flush=True)
    rows = []
    for name in options.models:
        rows.append(row(name, MODELS[name], options.emx, options.rounds))
        print(rows[-1], flush=True)
    if options.write:
        about = [
            "# Bundles",
            "",
            "`make bench-bundle`: medians of paired turns, one thread, on a busy 2-core Zen 3. A ratio below 1 in the",
            "third column means that the bundle is faster than calls from Python; the fourth says how many times as",
            "long emx-onnx-cgen's C takes (1.4.0, gcc 12 -O3 -march=native).",
            "",
        ]
        RESULTS.write_text("\n".join([*about, *head, *rows]) + "\n")


if __name__ == "__main__":
    main()
