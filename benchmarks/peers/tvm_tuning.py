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
from tvm.s_tir import meta_schedule


def build(module: Any, target: Any, _params: Any) -> Any:
    """TVM's own builder without its import of the intrinsics of GPUs, which takes longer (36 s on a machine of 2026)
    than each build may, so that none would ever end. Products of floats on CPUs use none of them."""
    from tvm.driver import build as tvm_build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return tvm_build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)


def tuned(module: Any, target: Any, work_dir: str, trials: int) -> Any:
    """The steps of `relax.get_pipeline("static_shape_tuning", cpu_weight_prepack=True)`, with that builder."""
    t = relax.transform
    before = [t.DecomposeOpsForInference(), t.CanonicalizeBindings(), relax.get_pipeline("zero")]
    before.append(t.AttachAttrLayoutFreeBuffers())
    with target:
        module = tvm.transform.Sequential(before)(module)
        meta_schedule.relax_integration.tune_relax(
            module,
            {},
            target,
            work_dir,
            trials,
            max_trials_per_task=64,
            builder=meta_schedule.builder.LocalBuilder(f_build=build),
        )
        after = [t.MetaScheduleApplyDatabase(work_dir), t.SplitLayoutRewritePreproc()]
        return tvm.transform.Sequential([*after, t.LiftTransformParams(), t.FoldConstant()])(module)


def tune(model: str, folder: Path, cpu: str, threads: int, trials: int) -> None:
    """Tune a model as TVM's documentation advises for CPUs: weights are packed beforehand, as the tuned schedules want
    them."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
    module, params = relax.frontend.detach_params(from_onnx(onnx.load(model), keep_params_in_input=True))
    built = tvm.compile(tuned(module, target, str(folder / "log"), trials), target=target)
    built.export_library(str(folder / "model.so"))
    machine = relax.VirtualMachine(built, tvm.cpu())
    packed: Any = machine["main_transform_params"](params["main"])
    np.savez(folder / "weights.npz", *[array.numpy() for array in packed])


if __name__ == "__main__":
    tune(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
