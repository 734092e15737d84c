"""LiteRT's reference kernels on the models of `cases.py`, by a Python that has `ai-edge-litert`.

`python -m tests.frontend.tflite.record --python ENV/bin/python` writes the outputs that the tests compare with; with
`--seeds N` it compares those of other random models, and of a million numbers rounded to codes, now (`make tflite`);
its exit status is 1 if any differs by more than `allowed`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.frontend.tflite.cases import EXACT, ROUNDED, allowed, model_and_input
from tests.frontend.tflite.writer import Writer
from tests.quantization.million import numbers, scales, zeros

Models = dict[str, tuple[bytes, Any]]
"""A file and an input, by name."""
RECORDED = Path(__file__).with_name("litert.npz")
SEED = 4
"""The seed of the recorded models: with it, rounding once and twice gives different codes of "dense"."""
THEIRS = """
import sys, numpy as np
from pathlib import Path
from ai_edge_litert.interpreter import Interpreter, OpResolverType
results = {}
for path in sorted(Path(sys.argv[1]).glob("*.tflite")):
    i = Interpreter(model_content=path.read_bytes(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    i.allocate_tensors()
    i.set_tensor(i.get_input_details()[0]["index"], np.load(path.with_suffix(".npy")))
    i.invoke()
    results[path.stem] = i.get_tensor(i.get_output_details()[0]["index"])
np.savez_compressed(sys.argv[2], **results)
"""


def seeded(seeds: range) -> Models:
    """All models by name and seed."""
    return {f"{name}.{seed}": model_and_input(name, seed) for name in (*EXACT, *ROUNDED) for seed in seeds}


def roundings() -> Models:
    """A million numbers to codes, by a model for each scale and zero point, and all codes to those of other scales."""
    models: Models = {}
    for k, (scale, zero, x) in enumerate(zip(scales(), zeros(-128, 127), numbers(-128, 127).T, strict=True)):
        for name, kind, array in (("numbers", "float32", x), ("codes", "int8", np.arange(-128, 128))):
            w = Writer()
            of_input = () if name == "numbers" else (float(scale) * (0.3 + 0.037 * k), int(zero))
            y = w.tensor(array.shape, "int8", float(scale), int(zero))
            w.add("QUANTIZE", [w.input(array.shape, kind, *of_input)], y)
            inside = np.abs(array / scale) < 2**31 - 2**8  # beyond, their conversion to i32 is undefined
            models[f"{name}.{k}"] = w.file(y), np.where(inside, array, 0).astype(kind)
    return models


def theirs(python: str, models: Models) -> dict[str, Any]:
    """LiteRT's outputs of models, by name."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (data, x) in models.items():
            Path(folder, f"{name}.tflite").write_bytes(data)
            np.save(Path(folder, f"{name}.npy"), x)
        out = Path(folder, "out.npz")
        subprocess.run([python, "-c", THEIRS, folder, out], check=True, timeout=600)
        with np.load(out, allow_pickle=False) as arrays:
            return dict(arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--seeds", type=int, default=0)
    args = parser.parse_args()
    if not args.seeds:
        np.savez_compressed(RECORDED, **theirs(args.python, seeded(range(SEED, SEED + 1))))
        return
    import tilewright as tw

    wrong: list[str] = []
    models = seeded(range(1, 1 + args.seeds)) | roundings()
    results = theirs(args.python, models)
    for name, want in results.items():
        data, x = models[name]
        case = name.rsplit(".", 1)[0]
        off = np.abs(tw.compile(data)(x).astype(np.float64) - want)
        print(f"{name}: {np.count_nonzero(off)} of {off.size} differ, by {off.max():g} at most", flush=True)
        if off.max() > (allowed(case, want.dtype) if case in EXACT or case in ROUNDED else 0):
            wrong.append(name)
    count = sum(a.size for a in results.values())
    print(f"{len(results)} models, {count} results; with other codes than allowed: {' '.join(wrong) or 'none'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
