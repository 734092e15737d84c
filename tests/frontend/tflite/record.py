"""LiteRT's reference kernels on the models of `cases.py`, by a Python that has `ai-edge-litert`.

`python -m tests.frontend.tflite.record --python ENV/bin/python` writes the outputs that the tests compare with; with
`--seeds N` it compares those of other random models now (`make tflite`).
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.frontend.tflite.cases import EXACT, ROUNDED, model_and_input

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


def theirs(python: str, seeds: range) -> dict[str, Any]:
    """LiteRT's outputs of all models, by name and seed."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (*EXACT, *ROUNDED):
            for seed in seeds:
                data, x = model_and_input(name, seed)
                Path(folder, f"{name}.{seed}.tflite").write_bytes(data)
                np.save(Path(folder, f"{name}.{seed}.npy"), x)
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
        np.savez_compressed(RECORDED, **theirs(args.python, range(SEED, SEED + 1)))
        return
    import tilewright as tw

    for name, want in theirs(args.python, range(1, 1 + args.seeds)).items():
        case, seed = name.rsplit(".", 1)
        data, x = model_and_input(case, int(seed))
        off = np.abs(tw.compile(data)(x).astype(np.float64) - want)
        print(f"{name}: {np.count_nonzero(off)} of {off.size} differ, by {off.max():g} at most", flush=True)


if __name__ == "__main__":
    main()
