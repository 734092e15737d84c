"""Estimates against the clock: random layers of every operator and plan, measured time by estimated time.

    python -m benchmarks.bench_audit [compile] [time] [report] [--count 500] [--seed 0] [--target x86-64-v3]
                                     [--seconds 120] [--peer] [--inductor --every 24] [--kinds grouped max_pool]

Each layer is compiled as users compile it ("auto") and with exact algorithms only; then it is timed, in turns with
exact algorithms and, with `--peer`, with eager PyTorch on the same tensors and with the target's vectors; `--inductor`
adds that, which compiles for seconds a layer. A kernel's ratio is its time by what its plan estimates: estimates decide
among algorithms, so a plan outside 0.5 to 2 is a defect to be mended, or an exception that has a name
(`audit/report.py`). Kernels shorter than `SHORTEST` are left out: a call alone takes so long.

All phases are done if none is named. What was compiled and timed is kept, until the compiler changes, in a folder under
that for temporary files, and gone on with: each phase stops after `--seconds`. The report goes to
results/audit-TARGET.json, the picture beside it where matplotlib is installed.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from benchmarks.audit import report
from benchmarks.audit.compiling import compile_layer
from benchmarks.audit.records import Records
from benchmarks.audit.timing import keep_freed_memory, time_layer
from benchmarks.random_layers import Layer, layers
from tilewright.identity import code_version
from tilewright.support.progress import progress
from tilewright.targets.target import Target

PHASES = ("compile", "time", "report")
Row = TypeVar("Row")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    target = Target.on_host(options.target)
    name = f"{options.target}-{options.seed}-{code_version()[:12]}-{target.fingerprint[:8]}"
    name += "-inductor" if options.inductor else ""
    records = Records(Path(options.folder) / name)
    records.folder.mkdir(parents=True, exist_ok=True)
    phases = options.phases or PHASES
    chosen = list(enumerate(layers(options.count, options.seed)))[:: options.every]
    wanted = [(k, x) for k, x in chosen if _wanted(x, options.kinds)]
    if "compile" in phases:
        done = records.compiled()
        todo = [(k, layer) for k, layer in wanted if k not in done]
        _each("compile", todo, lambda k, x: _compile(k, x, target, records, options.inductor), options.seconds)
    compiled = records.compiled()
    if "time" in phases:
        done_at = records.timed()
        todo = [(k, x) for k, x in wanted if k in compiled and not compiled[k].error and k not in done_at]
        keep_freed_memory()
        with _peer_alike(target) if options.peer or options.inductor else nullcontext():
            asked = {"peer": options.peer, "inductor": options.inductor}
            _each("time", todo, lambda k, x: time_layer(compiled[k], x, records, **asked), options.seconds)
    if "report" in phases:
        numbers = {k for k, _ in wanted}
        report.write(_of(numbers, compiled), _of(numbers, records.timed()), options.target, options.outliers)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_audit", description=__doc__.splitlines()[0])
    parser.add_argument("phases", nargs="*", help=f"some of {', '.join(PHASES)}; all if none is named")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", help="of these kinds of layers alone, such as grouped max_pool")
    parser.add_argument("--target", default="host")
    parser.add_argument("--peer", action="store_true", help="time eager PyTorch too, and compare results")
    parser.add_argument("--inductor", action="store_true", help="time PyTorch's Inductor too, in a folder of its own")
    parser.add_argument("--every", type=int, default=1, help="take every so many-th layer")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop each phase after so long")
    parser.add_argument("--folder", default=Path(tempfile.gettempdir()) / "tilewright-audit")
    parser.add_argument("--outliers", type=int, default=30, help="how many to show")
    options = parser.parse_args(arguments)
    if unknown := set(options.phases) - set(PHASES):
        parser.error(f"no phase is called {', '.join(sorted(unknown))}; there are {', '.join(PHASES)}")
    return options


def _compile(number: int, layer: Layer, target: Target, records: Records, inductor: bool) -> None:
    if inductor:
        from benchmarks.audit.inductor import warm

        warm(layer)
    compile_layer(number, layer, target, records)


def _wanted(layer: Layer, kinds: Sequence[str] | None) -> bool:
    return not kinds or layer.kind in kinds


def _of(numbers: set[int], rows: dict[int, Row]) -> dict[int, Row]:
    return {k: row for k, row in rows.items() if k in numbers}


NARROW = {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""Variables that tell PyTorch's own kernels, oneDNN and MKL that there is no AVX-512; each reads it when it is
loaded."""


@contextmanager
def _peer_alike(target: Target) -> Iterator[None]:
    """PyTorch with one thread and the target's vectors, as calls have, and without a record for gradients."""
    if target.vector_bits == 256 < Target.host().vector_bits:
        os.environ.update(NARROW)
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)


def _each(title: str, todo: list[tuple[int, Layer]], call: Callable[[int, Layer], None], seconds: float) -> None:
    """One layer after another, as long as there is time."""
    end = time.monotonic() + seconds
    with progress(title, len(todo)) as step:
        for number, layer in todo:
            if time.monotonic() > end:
                break
            call(number, layer)
            step(layer.name)


if __name__ == "__main__":
    main()
