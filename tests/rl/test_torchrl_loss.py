"""TorchRL's losses on compiled steps: parameters, losses and metrics are those of eager updates."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torchrl", reason="TorchRL is an extra: `make rl` runs this")

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import OneHotCategorical, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import A2CLoss, ClipPPOLoss, DQNLoss

import tilewright as tw
from tilewright.rl.torchrl_loss import learner
from tilewright.support.errors import CallError, UnsupportedError

ROWS = 32


def networks(continuous: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    net: list[nn.Module] = [nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4 if continuous else 2)]
    out, kind = (["loc", "scale"], TanhNormal) if continuous else (["logits"], OneHotCategorical)
    module = TensorDictModule(
        nn.Sequential(*net, *([NormalParamExtractor()] if continuous else [])), ["observation"], out
    )
    actor = ProbabilisticActor(module, in_keys=out, distribution_class=kind, return_log_prob=True)
    critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    return actor, ValueOperator(critic, in_keys=["observation"])


def batches(actor: Any, count: int) -> list[Any]:
    results = []
    for _ in range(count):
        data = TensorDict({"observation": torch.randn(ROWS, 4)}, [ROWS])
        with torch.no_grad():
            data = actor(data)
        data["advantage"], data["value_target"] = torch.randn(ROWS, 1), torch.randn(ROWS, 1)
        results.append(data)
    return results


def eager(loss: Any, data: list[Any], lr: float, clip: float) -> list[dict[str, float]]:
    optimizer = torch.optim.SGD(loss.parameters(), lr)
    results = []
    for batch in data:
        optimizer.zero_grad()
        out = loss(batch)
        sum(value for name, value in out.items() if name.startswith("loss_")).backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), clip)
        optimizer.step()
        results.append({name: value.item() for name, value in out.items()})
    return results


@pytest.mark.parametrize("kind", [ClipPPOLoss, A2CLoss])
@pytest.mark.parametrize("continuous", [False, True])
def test_updates_are_eager_ones(kind: Any, continuous: bool) -> None:
    actor, critic = networks(continuous)
    loss = kind(actor, critic, entropy_coeff=0.0 if continuous else 0.01, entropy_bonus=not continuous)
    data = batches(actor, 6)
    twin = copy.deepcopy(loss)
    mine = learner(loss, tw.train.SGD(0.1), data[0], clip=0.5)  # Adam takes rounding for slope where there is none
    for expected, batch in zip(eager(twin, data, 0.1, 0.5), data, strict=True):
        result = mine(batch)
        assert {name: result[name] for name in expected} == pytest.approx(expected, rel=2e-4, abs=1e-5)
    mine.push()
    for (name, value), other in zip(loss.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-5, msg=name)


def test_networks_act_by_what_was_pushed_and_steps_by_what_was_pulled() -> None:
    actor, critic = networks(False)
    loss = ClipPPOLoss(actor, critic)
    (data,) = batches(actor, 1)
    mine = learner(loss, tw.train.SGD(0.5), data)
    before = actor(data.clone())["logits"].detach().clone()
    mine(data)
    torch.testing.assert_close(actor(data.clone())["logits"].detach(), before)
    mine.push()
    assert not torch.allclose(actor(data.clone())["logits"].detach(), before)
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.zero_()
    mine.pull()
    assert all(not view.any() for view in mine.step.parameters.values())


def test_what_is_missing_or_would_stay_is_an_error() -> None:
    actor, critic = networks(False)
    (data,) = batches(actor, 1)
    mine = learner(ClipPPOLoss(actor, critic), tw.train.Adam(), data)
    with pytest.raises(CallError, match="advantage"):
        mine(data.exclude("advantage"))
    with pytest.raises(UnsupportedError, match="target networks"):
        learner(DQNLoss(nn.Linear(4, 2), action_space="one-hot", delay_value=True), tw.train.Adam(), data)
