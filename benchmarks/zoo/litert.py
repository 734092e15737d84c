"""The zoo's models in LiteRT's format, and their calls: a peer of `bench_zoo_peers`.

PYTHON -m benchmarks.zoo.litert NAME FOLDER      converts one model and runs it once, in an environment of LiteRT's own

The converter, litert-torch, wants libraries that nothing else here needs, so `make litert-env` gives it an
environment; nothing here that runs there imports Tilewright. The runtime is taken from the same place: it needs NumPy
alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "build" / "peers" / "litert-env"
PYTHON = ENVIRONMENT / "bin" / "python"
MODEL = "model.tflite"
INPUTS = "litert.npz"
"""The example by the names of the file's inputs; written last."""
UNCONVERTED = "unconverted.txt"
"""Why there is no file."""

Array = np.ndarray[Any, Any]


def ready(folder: Path) -> bool:
    """Whether a model has been converted, or it is known why it cannot be."""
    return (folder / INPUTS).exists() or (folder / UNCONVERTED).exists()


def calls(folder: Path) -> tuple[Callable[[], Any], Callable[[], list[Array]]]:
    """`invoke` with the inputs set once, one thread, by XNNPACK, which is what the runtime takes by itself."""
    if not (folder / INPUTS).exists():
        raise FileNotFoundError("not prepared")
    runtime = library()
    interpreter = runtime.Interpreter(model_path=str(folder / MODEL), num_threads=1)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    with np.load(folder / INPUTS) as file:
        for name, details in runner.get_input_details().items():
            interpreter.set_tensor(details["index"], file[name].astype(details["dtype"]))
    outputs = sorted(runner.get_output_details().items(), key=lambda item: int(item[0].rpartition("_")[2]))
    return interpreter.invoke, lambda: [interpreter.get_tensor(details["index"]) for _, details in outputs]


def library() -> Any:
    """The runtime's module, from its own environment where this one has none."""
    results = [str(path) for path in ENVIRONMENT.glob("lib/python*/site-packages") if str(path) not in sys.path]
    sys.path.extend(results)  # after all others: this environment's NumPy stays
    try:
        from ai_edge_litert import interpreter
    finally:
        for path in results:
            sys.path.remove(path)
    return interpreter


def convert(name: str, folder: Path) -> None:
    """Write a model's file and its inputs, or why there is none. Runs in LiteRT's environment."""
    import litert_torch
    import torch

    from benchmarks.zoo import built

    entry = built(name)
    named = entry.example if isinstance(entry.example, dict) else {}
    inputs = () if named else tuple(entry.example)
    arguments = {f"args_{k}": value for k, value in enumerate(inputs)} | named
    with torch.no_grad():
        litert_torch.convert(entry.module.eval(), inputs, named or None).export(str(folder / MODEL))
    np.savez(folder / INPUTS, **{key: value.numpy() for key, value in arguments.items()})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.litert", description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    for old in (MODEL, INPUTS, UNCONVERTED):
        (options.folder / old).unlink(missing_ok=True)
    try:
        convert(options.name, options.folder)
        call, _ = calls(options.folder)
        call()
    except Exception as error:  # the converter may raise anything
        (options.folder / INPUTS).unlink(missing_ok=True)
        first = (str(error).strip().splitlines() or [""])[0][:150]
        (options.folder / UNCONVERTED).write_text(f"not converted: {type(error).__name__}: {first}")
    print(json.dumps({"name": options.name}))


if __name__ == "__main__":
    main()
