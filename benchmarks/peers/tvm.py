"""TVM, tuned by MetaSchedule. `make tune-tvm` (this file as a program) tunes; the peer runs what that has written.

Tuning takes minutes a model and wants a machine that is otherwise idle, so it is no part of a benchmark's run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import models
from benchmarks.peers.common import fixed_shapes, load
from tilewright.measure.contender import Prepared
from tilewright.support import machine
from tilewright.support.errors import Error

TRIALS = {"m64": 256, "nat": 512, "az6": 512}
"""By model: schedules measured in all, of at most 64 for each of its distinct kernels."""
PYTHON = models.ROOT / "build" / "peers" / "tvm-env" / "bin" / "python"
"""The interpreter of the environment that `make tune-tvm` installs TVM's tuner in (see tvm_tuning.py)."""


def tuned(model: str, threads: int, batch: int) -> Prepared:
    """The tuned library, its weights packed beforehand and its arguments bound once."""
    import tvm
    from tvm import relax

    folder = _folder(model, threads, batch)
    if not (folder / "weights.npz").exists():
        raise Error("TVM is not tuned for it", where=model, hint=f'make tune-tvm ARGS="--models {model}@{batch}"')
    path, inputs = load(model, batch)
    names = [o.name for o in onnx.load(path, load_external_data=False).graph.output]
    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "model.so")), device)
    with np.load(folder / "weights.npz", allow_pickle=False) as packed:
        weights = [tvm.runtime.tensor(packed[name], device) for name in packed.files]
    arguments = [tvm.runtime.tensor(np.ascontiguousarray(x), device) for x in inputs.values()]
    machine.save_function("main", "bound", *arguments, *weights, include_return=True)
    call = machine["bound"]

    def outputs() -> dict[str, Any]:
        result = call()
        values = [result] if hasattr(result, "numpy") else list(result)
        return {name: value.numpy() for name, value in zip(names, values, strict=True)}

    return Prepared(call, outputs, {"version": tvm.__version__})


def _folder(model: str, threads: int, batch: int) -> Path:
    return models.ROOT / "build" / "peers" / "tvm" / f"{models.load(model).stem}-{batch}-{threads}t"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make tune-tvm", description="Tune models with TVM's MetaSchedule.")
    parser.add_argument(
        "--models", default=",".join(TRIALS), help="names, each with @batch if not 1 (default %(default)s)"
    )
    parser.add_argument("--trials", type=int, help="schedules measured for each model")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    for label in options.models.split(","):
        model, _, batch = label.partition("@")
        trials = options.trials or TRIALS.get(model, 512)
        folder = _folder(model, options.threads, int(batch or 1))
        started = time.perf_counter()
        print(f"{label}: {trials} trials ...", flush=True)
        _tune(model, int(batch or 1), folder, [machine.describe().cpu, str(options.threads), str(trials)])
        print(f"{label}: tuned in {time.perf_counter() - started:.0f} s", flush=True)
    return 0


def _tune(model: str, batch: int, folder: Path, settings: list[str]) -> None:
    """The folder is replaced when everything is there."""
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        onnx.save(fixed_shapes(model, batch), fresh / "model.onnx")
        script = Path(__file__).with_name("tvm_tuning.py")
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with (fresh / "tuning.txt").open("w") as log:
            command = [str(PYTHON), "-P", str(script), str(fresh / "model.onnx"), str(fresh), *settings]
            status = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode
        if status:
            retained = folder.with_name("failed.txt")
            shutil.copy(fresh / "tuning.txt", retained)
            raise SystemExit(f"TVM's tuner ended with status {status}: see {retained}")
        (fresh / "model.onnx").unlink()
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
