"""Steps with a budget of memory: the same bits as without, planned bytes within it, and the growth with depth."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.registry import emit1
from tilewright.train.entry import compile_step
from tilewright.train.step import Step

Array = np.ndarray[Any, Any]
ROWS, WIDTH = 512, 8
LAYER = ROWS * WIDTH * 4
"""Bytes of what one layer gives."""


def chain(layers: int, rows: int = ROWS, width: int = WIDTH, scale: float = 2) -> tuple[Graph, dict[str, Array]]:
    """The mean square of tanh(... tanh(x w0) w1 ...); `scale` divides normal weights."""
    builder = GraphBuilder("chain")
    rng = np.random.default_rng(0)
    value = builder.input("x", TensorType(f32, (as_expr(rows), as_expr(width))))
    weights = {}
    for k in range(layers):
        w = builder.param(f"w{k}", TensorType(f32, (as_expr(width), as_expr(width))))
        weights[w.name] = rng.normal(size=(width, width)).astype(np.float32) / scale
        value = emit1(builder, "tanh", emit1(builder, "matmul", value, w))
    loss = emit1(builder, "reduce_mean", emit1(builder, "mul", value, value), axes=(0, 1), keepdims=False)
    return builder.finish((loss,)), weights


def batch(seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(ROWS, WIDTH)).astype(np.float32)


def trained(step: Step, batches: list[tuple[Any, ...]]) -> Array:
    for case in batches:
        step(*case)
    return np.concatenate([np.ravel(v) for v in step.weights.values()])


def least(model: Any) -> int:
    """The bytes that the step needs at least, as the error says."""
    with pytest.raises(tw.Error, match="no plan needs so little memory") as raised:
        compile_step(model, memory=0)
    match = re.search(r"(\d+) bytes or more", str(raised.value))
    assert match
    return int(match.group(1))


def test_a_chain_of_n_layers_needs_memory_of_root_n() -> None:
    for layers in (16, 64):
        bytes_ = least(chain(layers))
        assert bytes_ <= (2 * layers**0.5 + 4) * LAYER
        step = compile_step(chain(layers), memory=bytes_)
        assert step.model.memory().arena <= bytes_
        assert np.isfinite(step(batch(0))["loss"])


@pytest.mark.daily(3)
@pytest.mark.parametrize("share", ["0.8x", "0.6x", "0.45x"])
def test_parameters_are_the_same_bits(share: str) -> None:
    ordinary = compile_step(chain(24))
    small = compile_step(chain(24), memory=share)
    assert small.model.memory().arena <= float(share[:-1]) * ordinary.model.memory().arena
    batches = [(batch(k),) for k in range(20)]
    np.testing.assert_array_equal(trained(small, batches), trained(ordinary, batches))
    assert small.model.memory().arenas_held == small.model.memory().arena
    assert "arena of a call" in small.show("memory")


def test_what_fits_is_left_alone() -> None:
    ordinary, same = compile_step(chain(4)), compile_step(chain(4), memory="1x")
    assert same.model.memory().arena == ordinary.model.memory().arena


def modules() -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
    nn = torch.nn

    class Recurrent(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.lstm, self.last = nn.Linear(6, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 6)

        def forward(self, x: Any) -> Any:
            return self.last(torch.tanh(self.lstm(torch.tanh(self.first(x)))[0]))

    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (nn.Linear(6, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Dropout(0.3))]
    encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return {
        "dropout and batch norm": (nn.Sequential(*layers), torch.randn(64, 6)),
        "transformer": (nn.Sequential(encoder, nn.Linear(16, 16)), torch.randn(2, 8, 16)),
        "recurrent": (Recurrent(), torch.randn(3, 12, 6)),
    }


@pytest.mark.parametrize("name", ["dropout and batch norm", "transformer", "recurrent"])
def test_models_are_the_same_bits(name: str) -> None:
    """Random numbers, statistics that change, several readers of a value, and loops."""
    model, x = modules()[name]

    def loss(m: Any, x: Any) -> Any:
        return (m(x) ** 2).mean()

    ordinary = compile_step(model, loss, example=(x,), seed=3)
    most = ordinary.model.memory().lower_bound
    result = []
    for share in (0.9, 0.8, 0.7):
        try:
            result.append(compile_step(model, loss, example=(x,), seed=3, memory=int(share * most)))
        except tw.Error as error:
            assert "no plan needs so little memory" in str(error)
    assert result
    expected = trained(ordinary, [(x.numpy(),)] * 5)
    for step in result:
        assert step.model.memory().lower_bound < most
        np.testing.assert_array_equal(trained(step, [(x.numpy(),)] * 5), expected)


def test_what_costs_hardly_any_time_is_computed_once_more() -> None:
    """GELU's results are, products are not; `memory=None` keeps all."""
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
    nn = torch.nn
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))]
    model, x = nn.Sequential(*layers), torch.randn(2048, 512)

    def loss(m: Any, x: Any) -> Any:
        return (m(x) ** 2).mean()

    retained, default = (compile_step(model, loss, example=(x,), memory=memory) for memory in (None, "auto"))
    saved = retained.model.memory().arena - default.model.memory().arena
    assert saved >= 2048 * 1024 * 4
    np.testing.assert_array_equal(trained(default, [(x.numpy(),)] * 3), trained(retained, [(x.numpy(),)] * 3))


def test_budgets_count_the_room_in_new_parameters() -> None:
    """The values that Adam writes are nearly as large as the activations, so that nothing is computed again."""
    model = chain(12, rows=1024, width=256, scale=16)
    retained = compile_step(model, memory=None)
    half = compile_step(model, memory="0.6x")
    assert half.model.memory().arena <= 0.6 * retained.model.memory().arena
    assert len(half.model.program.manifest.run_steps) == len(retained.model.program.manifest.run_steps)
    x = np.random.default_rng(1).normal(size=(1024, 256)).astype(np.float32)
    np.testing.assert_array_equal(trained(half, [(x,)] * 3), trained(retained, [(x,)] * 3))


def test_small_steps_keep_all() -> None:
    retained, default = (compile_step(chain(24), memory=memory) for memory in (None, "auto"))
    assert default.model.memory().arena == retained.model.memory().arena


@pytest.mark.parametrize("budget", ["half", "x", "-1x", -1, True])
def test_budgets_are_checked(budget: Any) -> None:
    with pytest.raises(tw.Error, match="no such budget of memory"):
        compile_step(chain(1), memory=budget)


def test_sizes_must_be_known() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    with pytest.raises(tw.Error, match="sizes that are known"):
        compile_step(model, lambda m, x: m(x).mean(), example=(torch.randn(3, 4),), symbolic=True, memory="0.5x")
