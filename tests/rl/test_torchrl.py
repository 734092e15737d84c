"""TorchRL: policies that read a store are the original ones, and every version reaches every worker."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

pytest.importorskip("torchrl", reason="TorchRL is an extra: `make rl` runs this")

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import GymEnv, GymWrapper
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import (
    ActorValueOperator,
    EGreedyModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)

from tests.rl.environments import Memory
from tilewright.rl import torchrl
from tilewright.support.errors import CallError, UnsupportedError, WeightError

TOLERANCE = 1e-5
VERSION = "weights_version"


def make_env() -> Any:
    torch.set_num_threads(1)
    return GymWrapper(Memory(), categorical_action_encoding=False)


def make_pendulum() -> Any:
    return GymEnv("Pendulum-v1")


def discrete(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def continuous() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 2), NormalParamExtractor())
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


def greedy() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    return TensorDictSequential(
        QValueActor(net, in_keys=["observation"], action_space="one-hot"),
        EGreedyModule(make_env().action_spec, eps_init=1.0, eps_end=0.0, annealing_num_steps=10),
    )


def actor_critic() -> Any:
    torch.manual_seed(0)
    common = TensorDictModule(nn.Sequential(nn.Linear(4, 32), nn.Tanh()), ["observation"], ["hidden"])
    actor = ProbabilisticActor(
        TensorDictModule(nn.Linear(32, 2), ["hidden"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    return ActorValueOperator(common, actor, ValueOperator(nn.Linear(32, 1), in_keys=["hidden"]))


POLICIES = {"discrete": discrete, "continuous": continuous, "greedy": greedy, "actor_critic": actor_critic}


def perturb(policy: Any, by: float = 0.2) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(by * torch.randn_like(parameter))


def same(policy: Any, other: Any, batch: tuple[int, ...], kind: Any) -> None:
    width = 3 if policy.in_keys == ["observation"] and "scale" in policy.out_keys else 4
    observation = torch.randn(*batch, width)
    results = []
    for one in (policy, other):
        torch.manual_seed(4)
        with torch.no_grad(), set_exploration_type(kind):
            results.append(one(TensorDict({"observation": observation.clone()}, batch_size=batch)))
    for key in policy.out_keys:
        one, two = results[0].get(key), results[1].get(key)
        assert one.shape == two.shape and one.dtype == two.dtype, key
        torch.testing.assert_close(one, two, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", POLICIES)
def test_outputs_are_the_eager_ones(name: str, store: str) -> None:
    policy = POLICIES[name]()
    env = make_pendulum() if name == "continuous" else make_env()
    with torchrl.publish(policy, store, env.reset()) as published:
        assert published.policy.in_keys == policy.in_keys and published.policy.out_keys == policy.out_keys
        for _ in range(2):
            for batch in [(), (1,), (5,), (2, 3)]:
                for kind in (ExplorationType.DETERMINISTIC, ExplorationType.RANDOM):
                    same(policy, published.policy, batch, kind)
            perturb(policy)
            published.publish()
        twin = pickle.loads(pickle.dumps(published.policy))
        same(policy, twin, (3,), ExplorationType.DETERMINISTIC)
        same(policy, copy.deepcopy(twin), (3,), ExplorationType.DETERMINISTIC)


def test_what_is_not_compiled_is_carried_along(store: str) -> None:
    """An annealed epsilon outside the compiled part belongs to the version as weights do, and the policy that is
    trained keeps its own."""
    policy = greedy()
    exploration = policy[-1]
    with torchrl.publish(policy, store, make_env().reset()) as published:
        td = TensorDict({"observation": torch.randn(400, 4)}, batch_size=[400])
        best = policy[0](td.clone())["action"]
        with set_exploration_type(ExplorationType.RANDOM):
            assert not torch.equal(published.policy(td.clone())["action"], best)
            exploration.step(10)
            assert exploration.eps == 0
            published.policy(td.clone())
            assert exploration.eps == 0
            published.publish()
            assert torch.equal(published.policy(td.clone())["action"], best)


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_versions_reach_every_worker(kind: Any, store: str) -> None:
    """A test that fails if a worker keeps the first policy: what each frame says of its version, and its logits, are
    those of the weights that were sent."""
    policy = discrete()
    history = {}
    with torchrl.publish(policy, store, make_env().reset(), version_key=VERSION) as published:
        history[published.version] = copy.deepcopy(policy)
        collector = kind(
            [make_env] * 2,
            published.policy,
            frames_per_batch=64,
            total_frames=64 * (5 if kind is MultiSyncCollector else 12),
            weight_sync_schemes={"policy": published.scheme},
        )
        seen = []
        try:
            for data in collector:
                frames = data.reshape(-1)
                for version in frames[VERSION].unique().tolist():
                    chosen = frames[frames[VERSION].squeeze(-1) == version]
                    logits = history[version][0](chosen.select("observation").clone())["logits"]
                    torch.testing.assert_close(chosen["logits"], logits, rtol=TOLERANCE, atol=TOLERANCE)
                workers = frames[VERSION].reshape(2, -1) if kind is MultiSyncCollector else frames[VERSION]
                seen.append(workers.unique().tolist())
                perturb(policy)
                # Three ways of saying the same; it is known before it can be read.
                history[published.version + 1] = copy.deepcopy(policy)
                ways: list[Any] = [policy, TensorDict.from_module(policy).data, None]
                collector.update_policy_weights_(ways[len(seen) % 3])
        finally:
            collector.shutdown()
    if kind is MultiSyncCollector:
        assert seen == [[k] for k in range(5)]  # both workers, the whole batch, each time the newest
    else:
        assert all(max(b) > max(a) for a, b in zip(seen, seen[4:], strict=False))


def test_a_collector_in_this_process(store: str) -> None:
    policy = discrete()
    with torchrl.publish(policy, store, make_env().reset(), version_key=VERSION) as published:
        collector = Collector(make_env, published.policy, frames_per_batch=20, total_frames=60)
        versions = []
        for data in collector:
            versions += data[VERSION].unique().tolist()
            perturb(policy)
            published.publish()
        collector.shutdown()
        assert versions == [0, 1, 2]


def test_learning_with_collectors(store: str) -> None:
    """REINFORCE through two workers learns what a fixed policy cannot do."""
    policy = discrete()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    rewards = []
    with torchrl.publish(policy, store, make_env().reset()) as published:
        collector = MultiSyncCollector(
            [make_env] * 2,
            published.policy,
            frames_per_batch=200,
            total_frames=2400,
            weight_sync_schemes={"policy": published.scheme},
        )
        try:
            for data in collector:
                frames = data.reshape(-1)
                reward = frames["next", "reward"].squeeze(-1)
                rewards.append(reward.mean().item())
                log_prob = policy.get_dist(frames.select("observation")).log_prob(frames["action"])
                loss = -(log_prob * (reward - reward.mean())).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                collector.update_policy_weights_(policy)
        finally:
            collector.shutdown()
    assert rewards[0] < 0.65 < 0.9 < rewards[-1]


def test_what_is_not_supported_is_an_error(store: str) -> None:
    policy = discrete()
    deferred = TensorDictSequential(
        policy, ValueOperator(nn.Sequential(nn.Linear(6, 2000), nn.Linear(2000, 1)), in_keys=["observation", "action"])
    )
    with pytest.raises(UnsupportedError, match=r"module 'module\.1' \(ValueOperator\): has parameters"):
        torchrl.publish(deferred, store, make_env().reset())
    with pytest.raises(CallError, match="'observation'"):
        torchrl.publish(policy, store, TensorDict({}, batch_size=[]))
    with torchrl.publish(policy, store, make_env().reset()) as published:
        with pytest.raises(WeightError, match="no weights"):
            published.publish(TensorDict({}))
        with pytest.raises(WeightError, match="weight"):
            published.publish({"module.0.module.0.weight": torch.zeros(64, 4)})
        with pytest.raises(CallError, match="does not read the store"):
            MultiSyncCollector(
                [make_env],
                policy,
                frames_per_batch=10,
                total_frames=10,
                weight_sync_schemes={"policy": published.scheme},
            )
        with pytest.raises(UnsupportedError, match="version_key"):
            MultiSyncCollector(
                [make_env],
                published.policy,
                frames_per_batch=10,
                total_frames=10,
                weight_sync_schemes={"policy": published.scheme},
                track_policy_version=True,
            )
