"""Policies as PyTorch modules, compiled to native code, against eager PyTorch; run by `make torch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.algorithms.winograd.winograd_errors import MAX_DEVIATIONS
from tests.frontend.onnx.sensitivity import deviation_of_outputs
from tests.frontend.torch.torch_checks import BATCHES, assert_close, nn, pytree, torch

from benchmarks import torch_policies  # isort: skip  # needs torch, of which the line above makes a reason to skip
from tilewright.support.errors import WeightError

F = torch.nn.functional


def compare(module: Any, model: tw.Model, inputs: tuple[Any, ...], tolerance: float = 1e-5) -> None:
    with torch.no_grad():
        expected = module(*inputs)
    result = model(*pytree.tree_leaves(inputs))
    assert_close(result if isinstance(result, tuple) else (result,), expected, tolerance, type(module).__name__)


def compare_by_layers(module: Any, model: tw.Model, inputs: tuple[Any, ...]) -> None:
    """Compare with eager PyTorch where outputs may deviate as much as the errors that the layers promise make them."""
    with torch.no_grad():
        expected = module(*inputs)
    result = model(*pytree.tree_leaves(inputs))
    results = result if isinstance(result, tuple) else (result,)
    try:
        assert_close(results, expected, 1e-5, type(module).__name__)
    except AssertionError:  # what layers promise takes many runs of the module
        allowed = [MAX_DEVIATIONS * each for each in deviation_of_outputs(module, model, inputs)]
        assert_close(results, expected, 1e-5, type(module).__name__, allowed)


def perturbed(module: Any) -> dict[str, Any]:
    """Other weights for a module, as a training step would leave them."""
    torch.manual_seed(7)
    state = {name: t.clone() for name, t in module.state_dict().items()}
    for t in state.values():
        if t.is_floating_point():
            t.mul_(1 + 0.1 * torch.rand_like(t))
    return state


@pytest.mark.parametrize("name", list(torch_policies.POLICIES))
def test_the_policy_suite(name: str) -> None:
    """Outputs at dynamic batches, parameter names, and new weights through `update`."""
    module = torch_policies.create(name)
    model = tw.compile(module, torch_policies.inputs(name, 2))
    assert {s.name for s in model.manifest.symbols} == {"batch"}
    for batch in BATCHES if name in ("m64", "m256", "dz", "nl") else (1, 5):
        compare_by_layers(module, model, torch_policies.inputs(name, batch))
    updated = {p.name for p in model.params if not p.fixed}
    assert updated | set(model.manifest.ignored) == set(module.state_dict())
    module.load_state_dict(perturbed(module))
    model.update(module.state_dict(), version=3)
    compare_by_layers(module, model, torch_policies.inputs(name, 2, seed=5))


def test_what_layers_promise_still_tells_errors() -> None:
    """IMP's value may be off by more than its logits, as shares of the largest; both by little. Weights of one layer
    that are off by a thousandth are too much."""
    module = torch_policies.create("imp")
    inputs = torch_policies.inputs("imp", 5)
    model = tw.compile(module, inputs)
    action, value = (d.max() for d in deviation_of_outputs(module, model, inputs))
    with torch.no_grad():
        outputs = module(*inputs)
    action, value = action / outputs["action"].abs().max().item(), value / outputs["value"].abs().max().item()
    assert 3 * action < value < 2e-4 and action < 2e-5
    with torch.no_grad():
        module.network[0].weight.mul_(1.001)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        compare_by_layers(module, model, inputs)


def test_names_that_are_not_read() -> None:
    """num_batches_tracked and log_std are accepted and dropped; an unknown name is not."""
    module = torch_policies.create("m64")
    model = tw.compile(module, torch.zeros(1, 17))
    assert model.manifest.ignored == ("log_std",)
    state = module.state_dict()
    model.update({name: t for name, t in state.items() if name != "log_std"})
    with pytest.raises(WeightError, match="no such weight"):
        model.update({**state, "log_sdt": torch.zeros(6)})
    with pytest.raises(WeightError, match="is missing"):
        model.update({name: t for name, t in state.items() if name != "action_head.bias"})


def test_batch_norm_follows_its_statistics() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU()).eval()
    model = tw.compile(module, torch.zeros(2, 5))
    assert model.manifest.ignored == ("1.num_batches_tracked",)
    x = torch.randn(6, 5)
    module.train()
    for _ in range(3):
        module(torch.randn(32, 5) * 4 + 1)
    model.update(module.state_dict())
    compare(module.eval(), model, (x,))


def test_recurrent_state_into_buffers() -> None:
    """A rollout whose state stays in the caller's memory, PyTorch's or NumPy's; `done` resets it."""
    module = torch_policies.create("nl")
    model = tw.compile(module, torch_policies.inputs("nl", 2))
    assert [i.name for i in model.inputs] == ["obs", "done", "h", "c"]
    assert [o.name for o in model.outputs] == ["action", "value", "h", "c"]
    state = {"h": torch.zeros(1, 3, 128), "c": torch.zeros(1, 3, 128)}
    ours = {name: t.numpy().copy() for name, t in state.items()}
    eager = dict(state)
    into = {"action": torch.empty(3, 4), "value": torch.empty(3, 1), **state}
    for step in range(4):
        obs, done, *_ = torch_policies.inputs("nl", 3, seed=step)
        with torch.no_grad():
            expected = module(obs, done, **eager)
        results = model.run({"obs": obs, "done": done, **state}, out=into)
        assert results["h"] is state["h"]
        arrays = model.run({"obs": obs.numpy(), "done": done.numpy(), **ours}, out=ours)
        for name, e in expected.items():
            assert_close((results[name], arrays[name]), (e, e), 1e-5, f"step {step}, {name}")
        eager = {"h": expected["h"], "c": expected["c"]}
    fresh = model.run({"obs": obs, "done": torch.ones(3), **state})
    zeros = model.run({"obs": obs, "done": torch.zeros(3), "h": torch.zeros(1, 3, 128), "c": torch.zeros(1, 3, 128)})
    assert torch.equal(fresh["h"], zeros["h"])


class Resettable(nn.Module):  # type: ignore[misc,name-defined]
    """A cell whose state a mask resets, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(9, 16), nn.Linear(16, 3)

    def forward(self, obs: Any, state: Any, done: Any = None) -> Any:
        if done is not None:
            state = tuple(s * (~done)[:, None] for s in state)
        state = self.cell(obs, state)
        return self.head(state[0]), state


def test_optional_reset_mask() -> None:
    """An argument with a default is an input if the example has it."""
    module = Resettable().eval()
    obs, state = torch.randn(2, 9), (torch.randn(2, 16), torch.randn(2, 16))
    model = tw.compile(module, (obs, state))
    assert [i.name for i in model.inputs] == ["obs", "state_0", "state_1"]
    compare(module, model, (obs, state))


# --- policies of other people's shapes ------------------------------------------------------------------------------


class SquashedGaussian(nn.Module):  # type: ignore[misc,name-defined]
    """SAC: LayerNorm and Mish, mean and a log standard deviation between bounds."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(11, 32), nn.LayerNorm(32), nn.Mish(), nn.Linear(32, 32), nn.LayerNorm(32), nn.ELU()]
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(32, 6)

    def forward(self, obs: Any, noise: Any) -> dict[str, Any]:
        mean, log_std = self.head(self.trunk(obs)).chunk(2, dim=-1)
        log_std = log_std.clamp(-20, 2)
        std = log_std.exp()
        raw = mean + std * noise
        action = torch.tanh(raw)
        log_prob = -0.5 * ((raw - mean) / std) ** 2 - log_std - 0.9189385
        log_prob = log_prob - 2 * (0.6931472 - raw - F.softplus(-2 * raw))
        return {"action": action, "log_prob": log_prob.sum(-1), "mean": torch.tanh(mean)}


class DuelingC51(nn.Module):  # type: ignore[misc,name-defined]
    """Rainbow's head: distributions over 51 atoms, dueling streams; greedy action."""

    def __init__(self, actions: int = 4, atoms: int = 51) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 64), nn.SiLU())
        self.value, self.advantage = nn.Linear(64, atoms), nn.Linear(64, actions * atoms)
        self.register_buffer("support", torch.linspace(-10, 10, atoms))

    def forward(self, obs: Any) -> dict[str, Any]:
        x = self.trunk(obs)
        advantage = self.advantage(x).view(-1, 4, 51)
        logits = self.value(x).unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
        q = (logits.softmax(-1) * self.support).sum(-1)
        return {"q": q, "action": q.argmax(1)}


class MultiDiscrete(nn.Module):  # type: ignore[misc,name-defined]
    """RLlib-like: one-hot and continuous observations, categorical heads with masked logits."""

    def __init__(self, sizes: tuple[int, ...] = (3, 5, 2)) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(10, 4)
        self.net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, sum(sizes)))

    def forward(self, obs: Any) -> list[Any]:
        x = torch.cat([obs["vector"], self.embed(obs["kind"]), F.one_hot(obs["team"], 3).float()], dim=-1)
        logits = self.net(x)
        logits = logits + torch.clamp(torch.log(obs["mask"]), min=torch.finfo(logits.dtype).min)
        return [part.log_softmax(-1) for part in logits.split(list(self.sizes), dim=-1)]


class Entities(nn.Module):  # type: ignore[misc,name-defined]
    """Attention over a padded set of entities, pooled by the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(7, 16)
        self.attend = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
        self.head = nn.Linear(16, 3)

    def forward(self, entities: Any, present: Any) -> Any:
        x = self.attend(F.relu(self.embed(entities)), src_key_padding_mask=~present)
        weight = present.unsqueeze(-1).to(x.dtype)
        return self.head((x * weight).sum(1) / weight.sum(1).clamp(min=1))


class Recurrent(nn.Module):  # type: ignore[misc,name-defined]
    """GRU policy over a short sequence, batch first, in the manner of RLlib: state [batch, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(inplace=True))
        self.gru = nn.GRU(16, 12, batch_first=True)
        self.pi, self.vf = nn.Linear(12, 2), nn.Linear(12, 1)

    def forward(self, obs: Any, state_in: dict[str, Any]) -> dict[str, Any]:
        y, h = self.gru(self.encoder(obs), state_in["h"].unsqueeze(0))
        return {"logits": self.pi(y), "vf": self.vf(y).squeeze(-1), "state_out": {"h": h.squeeze(0)}}


class Residual(nn.Module):  # type: ignore[misc,name-defined]
    """A small residual CNN with squeeze and excitation on channels-last observations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.squeeze, self.excite = nn.Linear(8, 4), nn.Linear(4, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, obs: Any) -> Any:
        x = F.relu(self.stem(obs.permute(0, 3, 1, 2).to(torch.float32).div(255)))
        y = self.norm(self.a(x))
        y = y * torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))[:, :, None, None]
        return self.head(F.adaptive_avg_pool2d(F.relu(x + y), 1).flatten(1))


def _observation(n: int) -> dict[str, Any]:
    return {
        "vector": torch.randn(n, 5),
        "kind": torch.randint(0, 10, (n,)),
        "team": torch.randint(0, 3, (n,)),
        "mask": (torch.rand(n, 10) < 0.8).float(),
    }


@pytest.mark.parametrize(
    ("build", "make"),
    [
        (SquashedGaussian, lambda n: (torch.randn(n, 11), torch.randn(n, 3))),
        (DuelingC51, lambda n: (torch.randn(n, 9),)),
        (MultiDiscrete, lambda n: (_observation(n),)),
        (Entities, lambda n: (torch.randn(n, 6, 7), torch.arange(6) < torch.randint(1, 7, (n, 1)))),
        (Recurrent, lambda n: (torch.randn(n, 3, 6), {"h": torch.randn(n, 12)})),
        (Residual, lambda n: (torch.randint(0, 256, (n, 9, 7, 3), dtype=torch.uint8),)),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_other_policies(build: Any, make: Any) -> None:
    torch.manual_seed(0)
    module = build().eval()
    model = tw.compile(module, make(1))
    for batch in (1, 2, 5):
        compare(module, model, make(batch))
    module.load_state_dict(perturbed(module))
    model.update(module.state_dict())
    compare(module, model, make(3))


def test_saved_and_loaded(tmp_path: Any) -> None:
    """Names, ignored weights and NumPy arrays survive the file."""
    module = torch_policies.create("m64")
    tw.compile(module, np.zeros((2, 17), np.float32)).save(tmp_path / "m64.tw")
    model = tw.load(tmp_path / "m64.tw")
    assert model.manifest.ignored == ("log_std",)
    model.update(module.state_dict())
    compare(module, model, torch_policies.inputs("m64", 3))
