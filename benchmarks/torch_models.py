"""Models that come from PyTorch: ResNet-18/50 and BERT-base with random weights, through both ONNX exporters.

Needs the `torch` extra and `transformers` (BERT); nothing is downloaded. `python -m benchmarks.torch_models`
exports all of them into `build/models`, checks each with ONNX Runtime against PyTorch, and prints the errors.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

EXPORTERS = ("dynamo", "torchscript")


class Bottleneck(nn.Module):
    """ResNet v1.5 block of 1x1, 3x3 (strided), 1x1 convolutions (He et al. 2015)."""

    expansion = 4

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        c_out = width * self.expansion
        self.conv1 = nn.Conv2d(c_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, c_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.downsample = _downsample(c_in, c_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class BasicBlock(nn.Module):
    """ResNet block of two 3x3 convolutions."""

    expansion = 1

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(c_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def _downsample(c_in: int, c_out: int, stride: int) -> nn.Module:
    if stride == 1 and c_in == c_out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))


class ResNet(nn.Module):
    """ResNet for 224x224 images and 1000 classes."""

    def __init__(self, block: type[Bottleneck] | type[BasicBlock], depths: list[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        layers: list[nn.Module] = []
        c_in = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for i in range(depth):
                layers.append(block(c_in, width, 2 if stage > 0 and i == 0 else 1))
                c_in = width * block.expansion
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(c_in, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = torch.nn.functional.adaptive_avg_pool2d(self.layers(x), 1)
        return self.fc(torch.flatten(x, 1))


def _randomize_batch_norm(model: nn.Module) -> None:
    """Gives batch norms statistics of their own: the defaults (0 and 1) would hide mistakes in folding them."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.4, 0.8)
            nn.init.normal_(module.bias, 0.0, 0.1)
            module.running_mean.normal_(0.0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.8, 1.2)  # type: ignore[union-attr]


def _resnet(block: type[Bottleneck] | type[BasicBlock], depths: list[int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = ResNet(block, depths)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    _randomize_batch_norm(model)
    return model, (torch.randn(2, 3, 224, 224),)


def resnet18() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _resnet(BasicBlock, [2, 2, 2, 2])


def resnet50() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _resnet(Bottleneck, [3, 4, 6, 3])


class _Bert(nn.Module):
    """BERT with positional tensors in and a tuple out, which both exporters take."""

    def __init__(self) -> None:
        super().__init__()
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from transformers import BertConfig, BertModel

        config = BertConfig(attn_implementation="eager")
        self.bert = BertModel(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        out = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return out.last_hidden_state, out.pooler_output


def bert(tokens: int = 128) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """BERT-base: 12 layers of 768, 12 heads, 110 million weights."""
    ids = torch.randint(0, 30522, (2, tokens))
    mask = torch.ones(2, tokens, dtype=torch.int64)
    mask[1, tokens // 2 :] = 0
    return _Bert(), (ids, mask, torch.zeros(2, tokens, dtype=torch.int64))


# name -> (module and example inputs of batch 2, input names, output names)
MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[Tensor, ...]]], list[str], list[str]]] = {
    "resnet18": (resnet18, ["image"], ["logits"]),
    "resnet50": (resnet50, ["image"], ["logits"]),
    "bert": (bert, ["input_ids", "attention_mask", "token_type_ids"], ["last_hidden_state", "pooled"]),
}


def create(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module of `name` in evaluation mode with its example inputs (batch 2), the same every time."""
    torch.manual_seed(0)
    with torch.no_grad():
        module, inputs = MODELS[name][0]()
    return module.eval(), inputs


def export(name: str, exporter: str, path: Path) -> None:
    """Exports model `name` with a symbolic batch dimension called "batch" to `path`."""
    module, inputs = create(name)
    _, input_names, output_names = MODELS[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    common = {"input_names": input_names, "output_names": output_names, "opset_version": 18}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            batch = torch.export.Dim("batch", min=1, max=1024)
            shapes = tuple({0: batch} for _ in inputs)
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
            axes = {n: {0: "batch"} for n in input_names + output_names}
            torch.onnx.export(module, inputs, temporary, dynamo=False, dynamic_axes=axes, **common)
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
            feeds = {n: t.numpy() for n, t in zip(MODELS[name][1], inputs, strict=True)}
            errors = [
                float(abs(got - want.numpy()).max() / abs(want.numpy()).max())
                for got, want in zip(session.run(None, feeds), expected, strict=True)
            ]
            print(f"{path.name:28} {path.stat().st_size / 1e6:7.1f} MB  error against PyTorch {max(errors):.1e}")


if __name__ == "__main__":
    _main()
