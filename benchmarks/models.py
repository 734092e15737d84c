"""The models of the benchmarks by name: built on first use, kept under `build/models`.

`load("az6")` returns the path of an ONNX file. Names:

* policy suite (onnx and NumPy only): m64 m256 nat nl imp imp84 hok1 hok3 dz txl az6 az20;
* models with branches (`branch_models`): inception3 inception3-160 hrnet hrnet-96 towers256 towers512;
* light-<name>: the light models of the onnx wheel with random weights in place of constants, e.g. light-resnet50;
* from PyTorch (needs the torch extra): resnet18 resnet50 vgg16 unet mobilenetv2 yolo bert bert-small bert384 gpt2
  gpt2-decode, and each with the suffix -torchscript (without it, the exporter is the one based on torch.export);
* <model>-qdq, -qop, -qdyn: a model in 8 bits, <model>-f16 in halves (`narrow_models`; needs ONNX Runtime);
* layer-<name>: a single layer of the tables in `suites/` (see layers.py).

`python -m benchmarks.models NAME...` builds models, runs each with ONNX Runtime and prints the outputs' scale.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx

from benchmarks import layers, light_models, narrow_models, policy_suite
from benchmarks.branch_models import BRANCHES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "models"

POLICY: dict[str, Callable[[], onnx.ModelProto]] = {
    "m64": policy_suite.m64,
    "m256": policy_suite.m256,
    "nat": policy_suite.nat,
    "nl": policy_suite.nl,
    "imp": policy_suite.imp,
    "imp84": functools.partial(policy_suite.imp, channels=4, size=84),
    "hok1": policy_suite.hok1,
    "hok3": policy_suite.hok3,
    "dz": policy_suite.dz,
    "txl": policy_suite.txl,
    "az6": policy_suite.az,
    "az20": functools.partial(policy_suite.az, blocks=20, width=256),
}
TORCH = tuple("resnet18 resnet50 vgg16 unet mobilenetv2 yolo bert bert-small bert384 gpt2 gpt2-decode".split())
LIGHT = tuple(f"light-{name}" for name in light_models.names())
NAMES: tuple[str, ...] = (*POLICY, *BRANCHES, *LIGHT, *TORCH, *(f"{name}-torchscript" for name in TORCH))

# Raise it when a builder changes, so that files built earlier are not used.
_VERSION = 1


def load(name: str) -> Path:
    """Path of the ONNX file of model `name` (or of an .onnx file, returned as it is), built if it is not there yet."""
    if name.endswith(".onnx"):
        return Path(name)
    if name.startswith(layers.PREFIX):
        return _layer(name.removeprefix(layers.PREFIX))
    narrow = narrow_models.split(name)
    if name not in NAMES and narrow is None:
        raise SystemExit(f"unknown model {name!r}; known: {', '.join(NAMES)}")
    path = FOLDER / f"{name}.v{_VERSION}.onnx"
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    if narrow is not None:
        model, kind = narrow
        _save(narrow_models.narrowed(load(model), kind, example_inputs), path)
    elif name in POLICY:
        _save(POLICY[name](), path)
    elif name in BRANCHES:
        _save(BRANCHES[name](), path)
    elif name in LIGHT:
        _save(light_models.randomized(name.removeprefix("light-")), path)
    else:
        from benchmarks import torch_models

        base = name.removesuffix("-torchscript")
        torch_models.export(base, "dynamo" if base == name else "torchscript", path)
    return path


def _layer(name: str) -> Path:
    shape = layers.OTHERS.get(name) or layers.read()[name].shape
    path = FOLDER / "layers" / f"{layers.PREFIX}{name}.v{_VERSION}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(shape.build(), path)
    return path


def _save(model: onnx.ModelProto, path: Path) -> None:
    """Writes beside and renames, so that two processes building the same model do not read half a file."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    onnx.save(model, temporary)
    os.replace(temporary, path)


def example_inputs(model: onnx.ModelProto, batch: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs for `model`: every symbolic dimension is `batch`.

    Floats are standard normal, bytes uniform; integers named like token ids are valid ids, masks are ones, a
    `done` flag is 0 or 1.
    """
    rng = np.random.default_rng(seed)
    inputs = {}
    for value in light_models.data_inputs(model.graph):
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else batch for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        inputs[value.name] = _example(rng, value.name, shape, dtype)
    return inputs


def _example(rng: np.random.Generator, name: str, shape: list[int], dtype: np.dtype) -> np.ndarray:
    match name:
        case "attention_mask" | "mask":
            return np.ones(shape, dtype)
        case "token_type_ids":
            return np.zeros(shape, dtype)
        case "done":
            return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 256 if dtype.itemsize == 1 else 1000, shape).astype(dtype)


def main(names: Iterable[str]) -> None:
    import onnxruntime

    for name in names:
        path = load(name)
        model = onnx.load(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for batch in (1,) if name.startswith("light-") else (1, 4):
            outputs = session.run(None, example_inputs(model, batch))
            text = ", ".join(
                f"{o.name}{list(x.shape)} rms {np.sqrt(np.mean(np.square(x))):.3g}"
                for o, x in zip(model.graph.output, outputs, strict=True)
            )
            print(f"{name:20} {path.stat().st_size / 1e6:7.2f} MB  batch {batch}: {text}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [n for n in NAMES if not n.startswith(TORCH)])
