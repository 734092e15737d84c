"""Optimisers against PyTorch's, in every setting of its own list (`optim_db`): 100 steps of random gradients, to 1e-5.

The loss is the sum of parameters times the batch, so that the batch is the gradient and no error is fed back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")
pytest.importorskip("expecttest", reason="PyTorch's list of optimisers needs it; make torch installs it")

from tilewright.ir.dtype import f32  # noqa: E402  after what may skip
from tilewright.ir.expr import as_expr  # noqa: E402
from tilewright.ir.graph import GraphBuilder, TensorType  # noqa: E402
from tilewright.ops.registry import emit1  # noqa: E402
from tilewright.train.entry import compile_step  # noqa: E402
from tilewright.train.optimizers import SGD, Adam, AdamW, RMSprop  # noqa: E402

STEPS, SIZE = 100, 37
OURS: dict[str, Any] = {"SGD": SGD, "Adam": Adam, "AdamW": AdamW, "RMSprop": RMSprop}
HOW = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings that say how PyTorch computes, not what."""


def settings() -> Iterator[Any]:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        name = info.optim_cls.__name__
        if name not in OURS:
            continue
        seen = set()
        for case in info.optim_inputs_func(device="cpu"):
            known = {k: v for k, v in case.kwargs.items() if k not in HOW}
            known = {k: v.item() if isinstance(v, torch.Tensor) else v for k, v in known.items()}
            text = ",".join(f"{k}={v}" for k, v in known.items())
            if text not in seen:
                seen.add(text)
                yield pytest.param(name, known, id=f"{name}-{text or 'defaults'}")


@pytest.mark.parametrize(("name", "arguments"), list(settings()))
def test_a_setting(name: str, arguments: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=SIZE).astype(np.float32)
    gradients = rng.normal(size=(STEPS, SIZE)).astype(np.float32)
    shape = TensorType(f32, (as_expr(SIZE),))
    builder = GraphBuilder("linear")
    x, p = builder.input("x", shape), builder.param("p", shape)
    loss = emit1(builder, "reduce_sum", emit1(builder, "mul", p, x), axes=(0,), keepdims=False)
    step = compile_step((builder.finish((loss,)), {"p": start}), optimizer=OURS[name](**arguments))
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()).double())
    eager = getattr(torch.optim, name)([theirs], **arguments)
    for gradient in gradients:
        step(gradient)
        theirs.grad = torch.from_numpy(gradient).double()
        eager.step()
    expected = theirs.detach().numpy()
    np.testing.assert_allclose(step.parameters["p"], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_the_list_is_not_empty() -> None:
    assert {p.values[0] for p in settings()} == set(OURS)
