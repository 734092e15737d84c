"""Containers that modules take and give, with and without names that PyTorch knows; run by `make torch`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
pytree = torch.utils._pytree

import tilewright as tw  # noqa: E402


class Sample(OrderedDict):  # type: ignore[type-arg]
    """A mapping that is registered without keys, as model libraries do."""


@dataclass
class Pair:
    hidden: Any
    logits: Any = None


class Opaque:
    """Neither names nor order but its own."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


pytree.register_pytree_node(
    Sample,
    lambda s: (list(s.values()), list(s)),
    lambda values, names: Sample(zip(names, values, strict=True)),
    serialized_type_name="tests.Sample",
)
pytree.register_pytree_node(
    Pair,
    lambda p: ([v for v in (p.hidden, p.logits) if v is not None], None),
    lambda values, _: Pair(*values),
    serialized_type_name="tests.Pair",
)
pytree.register_pytree_node(
    Opaque, lambda p: (list(p.parts), None), lambda values, _: Opaque(*values), serialized_type_name="tests.Plain"
)


class Returns(torch.nn.Module):
    def __init__(self, pack: Any) -> None:
        super().__init__()
        self.pack, self.linear = pack, torch.nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return self.pack(y, y * 2)


@pytest.mark.parametrize(
    ("pack", "names"),
    [
        (lambda a, b: Sample(sample=a, other=b), ["sample", "other"]),
        (lambda a, b: Pair(a, b), ["hidden", "logits"]),
        (lambda a, b: Pair(a), ["hidden"]),
        (lambda a, b: Opaque(a, b), ["output0", "output1"]),
        (lambda a, b: {"deep": Sample(x=a), "none": None, "list": [b]}, ["deep_x", "list_0"]),
        (lambda a, b: (None, Pair(a, Opaque(b))), ["hidden", "logits_0"]),
    ],
    ids=["mapping", "dataclass", "field-without-value", "plain", "nested", "none"],
)
def test_outputs_are_named_by_their_containers(pack: Any, names: list[str]) -> None:
    torch.manual_seed(0)
    module = Returns(pack).eval()
    x = torch.randn(4, 3)
    model = tw.compile(module, x)
    assert [spec.name for spec in model.outputs] == names
    with torch.no_grad():
        want = [leaf for leaf in pytree.tree_leaves(module(x)) if leaf is not None]
    result = model.run({"x": x})
    for name, value in zip(names, want, strict=True):
        np.testing.assert_allclose(np.asarray(result[name]), value.numpy(), rtol=1e-6, atol=1e-6)
    model.update(module.state_dict())


def test_containers_that_pytorch_cannot_name_as_inputs_are_one_error() -> None:
    class Takes(torch.nn.Module):
        def forward(self, sample: Any) -> Any:
            return sample["a"] + sample["b"]

    inputs = Sample(a=torch.ones(2, 3), b=torch.ones(2, 3))
    with pytest.raises(tw.Error, match="cannot be exported"):
        tw.compile(Takes(), (inputs,))
