"""Models that come from PyTorch, with random weights, through both ONNX exporters: a table of them and their export.

Needs the `torch` extra and `transformers` (BERT); nothing is downloaded. `python -m benchmarks.torch_models`
exports all of them into `build/models`, checks each with ONNX Runtime against PyTorch, and prints the errors.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import torch_text, torch_vision

EXPORTERS = ("dynamo", "torchscript")


@dataclass(frozen=True, slots=True)
class TorchModel:
    """How to make a module with example inputs of batch 2, and what its inputs and outputs are called.

    `axes` is where the batch stands in each input (None: in front).
    """

    build: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
    inputs: list[str]
    outputs: list[str]
    axes: tuple[int, ...] | None = None
    output_axes: tuple[int, ...] | None = None


_BERT = (["input_ids", "attention_mask", "token_type_ids"], ["last_hidden_state", "pooled"])
_GPT2 = (["input_ids", "position_ids"], ["logits", "k_new", "v_new"])

MODELS: dict[str, TorchModel] = {
    "resnet18": TorchModel(torch_vision.resnet18, ["image"], ["logits"]),
    "resnet50": TorchModel(torch_vision.resnet50, ["image"], ["logits"]),
    "vgg16": TorchModel(torch_vision.vgg16, ["image"], ["logits"]),
    "unet": TorchModel(torch_vision.unet, ["image"], ["mask"]),
    "mobilenetv2": TorchModel(torch_vision.mobilenetv2, ["image"], ["logits"]),
    "yolo": TorchModel(torch_vision.yolo, ["image"], ["stride8", "stride16", "stride32"]),
    "bert": TorchModel(torch_text.bert, *_BERT),
    "bert-small": TorchModel(torch_text.bert_small, *_BERT),
    "bert384": TorchModel(functools.partial(torch_text.bert, 384), *_BERT),
    "gpt2": TorchModel(torch_text.gpt2_prefill, *_GPT2, output_axes=(0, 1, 1)),
    "gpt2-decode": TorchModel(
        torch_text.gpt2_decode, [*_GPT2[0], "past_k", "past_v"], _GPT2[1], (0, 0, 1, 1), (0, 1, 1)
    ),
}


def create(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module of `name` in evaluation mode with its example inputs (batch 2), the same every time."""
    torch.manual_seed(0)
    with torch.no_grad():
        module, inputs = MODELS[name].build()
    return module.eval(), inputs


def export(name: str, exporter: str, path: Path) -> None:
    """Exports model `name` with a symbolic batch dimension called "batch" to `path`."""
    module, inputs = create(name)
    model = MODELS[name]
    axes = model.axes or (0,) * len(inputs)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    common = {"input_names": model.inputs, "output_names": model.outputs, "opset_version": 18}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            batch = torch.export.Dim("batch", min=1, max=1024)
            shapes = tuple({axis: batch} for axis in axes)
            # One file: weights inside, as all of these stay under protobuf's 2 GB.
            torch.onnx.export(
                module,
                inputs,
                temporary,
                dynamo=True,
                dynamic_shapes=shapes,
                external_data=False,
                verbose=False,
                **common,
            )
        elif exporter == "torchscript":
            named = list(zip(model.inputs, axes, strict=True))
            named += zip(model.outputs, model.output_axes or (0,) * len(model.outputs), strict=True)
            names = {n: {axis: "batch"} for n, axis in named}
            torch.onnx.export(module, inputs, temporary, dynamo=False, dynamic_axes=names, **common)
        else:
            raise ValueError(f"exporter is {exporter!r}, expected one of {EXPORTERS}")
    os.replace(temporary, path)


def _main() -> None:
    import onnxruntime

    from benchmarks.models import load

    for name in MODELS:
        module, inputs = create(name)
        with torch.no_grad():
            expected = module(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for exporter in EXPORTERS:
            path = load(name if exporter == "dynamo" else f"{name}-{exporter}")
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            feeds = {n: t.numpy() for n, t in zip(MODELS[name].inputs, inputs, strict=True)}
            errors = [
                float(abs(got - want.numpy()).max() / abs(want.numpy()).max())
                for got, want in zip(session.run(None, feeds), expected, strict=True)
            ]
            print(f"{path.name:28} {path.stat().st_size / 1e6:7.1f} MB  error against PyTorch {max(errors):.1e}")


if __name__ == "__main__":
    _main()
