"""Tunes a model with TVM's MetaSchedule and writes it as a library. A script for the environment of `make tune-tvm`.

TVM 0.27's tuner crashes with the apache-tvm-ffi that Tilewright needs (its runtime does not), so it runs in an
environment with an older one, without Tilewright. `python -P tvm_tuning.py MODEL FOLDER CPU THREADS TRIALS` reads
a model whose shapes are fixed and writes into the folder: `log` with all that was measured, `model.so`, and
`weights.npz`, packed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def tune(model: str, folder: Path, cpu: str, threads: int, trials: int) -> None:
    """As TVM's documentation advises for CPUs: weights are packed beforehand, as the tuned schedules want them."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
    module, params = relax.frontend.detach_params(from_onnx(onnx.load(model), keep_params_in_input=True))
    pipeline = relax.get_pipeline(
        "static_shape_tuning",
        total_trials=trials,
        max_trials_per_task=64,
        target=target,
        work_dir=str(folder / "log"),
        cpu_weight_prepack=True,
    )
    built = tvm.compile(pipeline(module), target=target)
    built.export_library(str(folder / "model.so"))
    machine = relax.VirtualMachine(built, tvm.cpu())
    packed: Any = machine["main_transform_params"](params["main"])
    np.savez(folder / "weights.npz", *[array.numpy() for array in packed])


if __name__ == "__main__":
    tune(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
