"""Attention under `torch.compile`: in training both ways are compiled, gradients are eager PyTorch's; PyTorch's fast
path of an encoder layer in evaluation mode is decomposed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.dynamo.torch_backend import assert_same, compiled, gradients

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
nn, functional = torch.nn, torch.nn.functional


class Attention(nn.Module):
    """Attention to `keys` places of the input, with whatever else PyTorch's function takes."""

    def __init__(self, keys: int, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(16, 16), nn.Linear(16, 32)
        self.keys, self.options = keys, arguments

    def forward(self, x: Any) -> Any:
        def heads(y: Any) -> Any:
            return y.unflatten(-1, (2, 8)).transpose(1, 2)

        k, v = self.kv(x[:, : self.keys]).chunk(2, -1)
        y = functional.scaled_dot_product_attention(heads(self.q(x)), heads(k), heads(v), **self.options)
        return y.transpose(1, 2).flatten(-2)


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (6, {}),
    "causal": (6, {"is_causal": True}),
    "causal, fewer keys": (4, {"is_causal": True}),
    "a mask": (5, {"attn_mask": torch.arange(30).view(6, 5) % 3 > 0}),
    "an added mask": (5, {"attn_mask": torch.arange(30.0).view(6, 5) / 10}),
    "a scale": (6, {"scale": 0.2}),
}


@pytest.mark.parametrize("keys,arguments", CASES.values(), ids=CASES)
def test_both_ways_are_compiled(keys: int, arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = Attention(keys, arguments), torch.randn(2, 6, 16, requires_grad=True)
    other, same = copy.deepcopy(model), copy.deepcopy(x)
    reports: list[Any] = []
    result = gradients(compiled(model, reports), (x,), lambda y: y.square().sum())
    assert_same(result, gradients(other, (same,), lambda y: y.square().sum()), rtol=1e-5, atol=1e-5)
    assert [left for report in reports for left in report.coverage().uncompiled] == []


def test_what_pytorch_runs_is_the_same() -> None:
    """The operator in the place of PyTorch's own backward, as a part that is not compiled runs it."""
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(4))
    mask = torch.zeros(5, 5).masked_fill(torch.rand(5, 5) < 0.3, float("-inf"))
    y = functional.scaled_dot_product_attention(q, k, v, mask, scale=0.3)
    from tilewright.dynamo import attention  # noqa: F401  defines the operator

    with torch.no_grad():
        result = torch.ops.tilewright.attention_backward(g, q, k, v, mask, False, 0.3)
    for a, b in zip(result, torch.autograd.grad(y, (q, k, v), g), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def layer(**arguments: Any) -> Any:
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **arguments)


PADDED = torch.tensor([[False] * 5 + [True], [True] * 6])
"""The second sequence is nothing but padding: PyTorch's fast path gives no number there."""
HIDDEN = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1) > 0, float("-inf"))
FAST: dict[str, tuple[Any, dict[str, Any]]] = {
    "a layer": (layer(), {}),
    "a layer, norms first": (layer(norm_first=True, activation="gelu"), {"src_mask": HIDDEN}),
    "a layer, both masks": (
        layer(),
        {"src_mask": HIDDEN, "src_key_padding_mask": torch.zeros(2, 6).masked_fill(PADDED, float("-inf"))},
    ),
    "layers": (nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False), {"src_key_padding_mask": PADDED}),
}


@pytest.mark.parametrize("module,arguments", FAST.values(), ids=FAST)
def test_encoder_layers_are_compiled_whole(module: Any, arguments: dict[str, Any]) -> None:
    module.eval()
    x = torch.randn(2, 6, 16)
    reports: list[Any] = []
    with torch.no_grad():
        assert_same(
            compiled(module, reports)(x, **arguments), module(x, **arguments), rtol=2e-5, atol=2e-5, equal_nan=True
        )
    (report,) = reports
    assert report.coverage().compiled_parts == 1 and not report.uncompiled
