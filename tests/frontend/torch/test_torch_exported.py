"""Both of PyTorch's ONNX exporters, in the forms that keep weights: `update(module.state_dict())` fits their files."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
pytest.importorskip("onnxscript", reason="PyTorch's exporter needs it: `make torch` has it")
nn = torch.nn


class Masked(nn.Module):  # type: ignore[misc,name-defined]
    """Weights, buffers, numbers and tables together; norms as they are before training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.second = nn.Linear(9, 9), nn.BatchNorm1d(9), nn.LayerNorm(9)
        self.scale, self.embed = nn.Parameter(torch.tensor(2.0)), nn.Embedding(10, 9)
        self.register_buffer("mask", torch.tril(torch.ones(9, 9)))

    def forward(self, x: Any) -> Any:
        h = self.norm(self.linear(x))
        h = self.second(torch.where(h > 0.3, h * self.scale, h / 3.7))
        h = (h @ self.mask).masked_fill(self.mask[0] == 0, -1e9).clamp(-5, 5)
        return torch.softmax(h, -1) + self.embed(torch.tensor([1])) + torch.arange(9) * 0.25


class Layers(nn.Module):  # type: ignore[misc,name-defined]
    """A transformer's layer and a recurrent one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.rnn = nn.LSTM(16, 8, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.rnn(self.layer(x))[0]


MODULES = {
    "masked": lambda: (Masked(), torch.randn(3, 9)),
    "layers": lambda: (Layers(), torch.randn(2, 5, 16)),
    "image": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)),
        torch.randn(2, 3, 8, 8),
    ),
    "3-D": lambda: (
        nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 7), nn.LayerNorm(7)),
        torch.randn(2, 4, 6),
    ),
}


def exported(module: Any, x: Any, exporter: str) -> onnx.ModelProto:
    logging.getLogger("torch.onnx").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter.startswith("dynamo"):
            program = torch.onnx.export(
                module, (x,), dynamo=True, verbose=False, optimize=exporter == "dynamo optimized"
            )
            proto: onnx.ModelProto = program.model_proto
            return proto
        file = io.BytesIO()
        torch.onnx.export(module, (x,), file, dynamo=False, do_constant_folding=exporter == "scopes folded")
        return onnx.load_from_string(file.getvalue())


CASES = [(m, e) for m in MODULES for e in ("dynamo", "scopes")] + [
    ("3-D", "dynamo optimized"),
    ("3-D", "scopes folded"),
]


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_the_modules_own_dictionary_fits(name: str, exporter: str) -> None:
    torch.manual_seed(0)
    module, x = MODULES[name]()
    module.eval()
    compiled = tw.compile(exported(module, x, exporter))
    trained = copy.deepcopy(module)
    with torch.no_grad():
        for weight in trained.parameters():
            weight.mul_(1.5).add_(0.1 * torch.randn_like(weight))
        for key, buffer in trained.named_buffers():
            if "running" in key:
                buffer.mul_(1.3).add_(0.1)
    for version in (module, trained, module):
        compiled.update(version.state_dict())
        with torch.no_grad():
            np.testing.assert_allclose(compiled(x.numpy()), version(x).numpy(), rtol=1e-4, atol=1e-5)


def test_tensors_of_small_floats_are_selected() -> None:
    from tests.frontend.onnx.build import info, model, node

    m = model([node("Cast", ["x"], ["y"], to=1)], [info("x", ["n"], onnx.TensorProto.FLOAT8E4M3FN)], ["y"], opset=25)
    x = torch.randn(9).to(torch.float8_e4m3fn)
    got = tw.compile(m)(x)
    np.testing.assert_array_equal(np.asarray(got), x.float().numpy())
