"""Whole updates of SAC, TD3 and DDPG against eager PyTorch, which does them one loss after the other."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip
from torch.nn import functional as F  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.support.errors import ModelError  # noqa: E402
from tilewright.train import losses, off_policy  # noqa: E402
from tilewright.train.optimizers import SGD, Adam  # noqa: E402

ROWS, OBSERVATION, ACTIONS, WIDTH, STEPS = 24, 7, 3, 32, 60
GAMMA, TAU = 0.97, 0.02


def layers(inputs: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
    )


class Gaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = layers(OBSERVATION, 2 * ACTIONS)

    def forward(self, obs: Any) -> Any:
        mean, log_std = self.body(obs).chunk(2, 1)
        return mean, log_std.clamp(-20, 2)


class Direct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = layers(OBSERVATION, ACTIONS)

    def forward(self, obs: Any) -> Any:
        return torch.tanh(self.body(obs))


class Critics(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(layers(OBSERVATION + ACTIONS, 1) for _ in range(count))

    def forward(self, obs: Any, actions: Any) -> Any:
        return [critic(torch.cat([obs, actions], 1)) for critic in self.each]


class Agent(nn.Module):
    def __init__(self, actor: Any, critics: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = actor(), Critics(critics)
        self.target, self.actor_target = copy.deepcopy(self.critic), copy.deepcopy(self.actor)
        self.log_alpha = nn.Parameter(torch.tensor([-0.5]))


def batches(noises: int, discounts: bool = False) -> list[list[Any]]:
    """Different ones, in turns."""
    rng = np.random.default_rng(0)
    results = []
    for _ in range(7):
        arrays = [rng.normal(size=(ROWS, n)) for n in (OBSERVATION, ACTIONS, 1, OBSERVATION)]
        arrays[1] = np.tanh(arrays[1])
        arrays.append(rng.random((ROWS, 1)) < 0.1)
        arrays += [rng.uniform(0.9, 1, size=(ROWS, 1))] if discounts else []
        arrays += [rng.normal(size=(ROWS, ACTIONS)) for _ in range(noises)]
        results.append([torch.tensor(a.astype(np.float32)) for a in arrays])
    return results


def follow(target: Any, source: Any) -> None:
    with torch.no_grad():
        for old, new in zip(target.parameters(), source.parameters(), strict=True):
            old.mul_(1 - TAU).add_(new, alpha=TAU)


class EagerSAC:
    """The order of Stable-Baselines3's SAC.train."""

    def __init__(self, agent: Any, alpha: float | None) -> None:
        self.agent, self.alpha = agent, alpha
        rates = {"actor": agent.actor.parameters(), "critic": agent.critic.parameters(), "alpha": [agent.log_alpha]}
        self.optimizers = {name: torch.optim.Adam(list(p), 1e-3) for name, p in rates.items()}

    def move(self, name: str, loss: Any) -> float:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        return loss.item()

    def act(self, obs: Any, noise: Any) -> Any:
        mean, log_std = self.agent.actor(obs)
        normal = torch.distributions.Normal(mean, log_std.exp())
        before = mean + log_std.exp() * noise
        actions = torch.tanh(before)
        return actions, (normal.log_prob(before) - torch.log(1 - actions**2 + 1e-6)).sum(1, keepdim=True)

    def __call__(self, obs: Any, actions: Any, rewards: Any, following: Any, done: Any, *rest: Any) -> dict[str, float]:
        gamma = rest[0] if len(rest) == 3 else GAMMA
        new, log_prob = self.act(obs, rest[-2])
        alpha = self.agent.log_alpha.detach().exp() if self.alpha is None else torch.tensor(self.alpha)
        result = {}
        if self.alpha is None:
            result["alpha_loss"] = self.move("alpha", -(self.agent.log_alpha * (log_prob - ACTIONS).detach()).mean())
        with torch.no_grad():
            then, then_log_prob = self.act(following, rest[-1])
            least = torch.cat(self.agent.target(following, then), 1).min(1, keepdim=True).values
            wanted = rewards + (1 - done) * gamma * (least - alpha * then_log_prob)
        values = self.agent.critic(obs, actions)
        result["critic_loss"] = self.move("critic", 0.5 * sum(F.mse_loss(v, wanted) for v in values))
        least = torch.cat(self.agent.critic(obs, new), 1).min(1, keepdim=True).values
        result["actor_objective"] = self.move("actor", (alpha * log_prob - least).mean())
        follow(self.agent.target, self.agent.critic)
        return result


class EagerTD3:
    """The order of Stable-Baselines3's TD3.train."""

    def __init__(self, agent: Any, delay: int, noise: float) -> None:
        self.agent, self.delay, self.noise, self.count = agent, delay, noise, 0
        self.actor = torch.optim.Adam(agent.actor.parameters(), 1e-3)
        self.critic = torch.optim.Adam(agent.critic.parameters(), 1e-3)

    def __call__(self, obs: Any, actions: Any, rewards: Any, following: Any, done: Any, *rest: Any) -> dict[str, float]:
        self.count += 1
        with torch.no_grad():
            then = self.agent.actor_target(following)
            if rest:
                then = (then + (self.noise * rest[0]).clamp(-0.5, 0.5)).clamp(-1, 1)
            least = torch.cat(self.agent.target(following, then), 1).min(1, keepdim=True).values
            wanted = rewards + (1 - done) * GAMMA * least
        loss = sum(F.mse_loss(v, wanted) for v in self.agent.critic(obs, actions))
        self.critic.zero_grad()
        loss.backward()
        self.critic.step()
        result = {"critic_loss": loss.item()}
        if self.count % self.delay == 0:
            loss = -self.agent.critic(obs, self.agent.actor(obs))[0].mean()
            self.actor.zero_grad()
            loss.backward()
            self.actor.step()
            result["actor_loss"] = loss.item()
            follow(self.agent.target, self.agent.critic)
            follow(self.agent.actor_target, self.agent.actor)
        return result


def compare(agent: Any, step: Any, eager: Any, data: list[list[Any]]) -> None:
    """Losses and all that the agent holds, after as many updates in both."""
    for k in range(STEPS):
        result, expected = step(*data[k % len(data)]), eager(*data[k % len(data)])
        for name, value in expected.items():
            assert result[name] == pytest.approx(value, rel=1e-5, abs=1e-5), (k, name)
    ours, theirs = step.state_dict(), agent.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert not np.array_equal(ours["target.each.0.0.weight"], ours["critic.each.0.0.weight"])


@pytest.mark.costly(2)
@pytest.mark.parametrize("alpha", [None, 0.2])
@pytest.mark.parametrize("discounts", [False, True])
def test_sac(alpha: float | None, discounts: bool) -> None:
    agent, data = Agent(Gaussian), batches(2, discounts)
    recipe = off_policy.sac(Adam(1e-3), gamma=None if discounts else GAMMA, tau=TAU, alpha=alpha, noise=True)
    step = tw.compile_step(agent, **recipe, example=data[0])
    compare(agent, step, EagerSAC(agent, alpha), data)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_td3(delay: int) -> None:
    agent, data = Agent(Direct), batches(1)
    recipe = off_policy.td3(Adam(1e-3), gamma=GAMMA, tau=TAU, delay=delay, target_noise=0.3, noise=True)
    step = tw.compile_step(agent, **recipe, example=data[0])
    compare(agent, step, EagerTD3(agent, delay, 0.3), data)


def test_ddpg() -> None:
    agent, data = Agent(Direct, 1), batches(0)
    step = tw.compile_step(
        agent, **off_policy.td3(Adam(1e-3), gamma=GAMMA, tau=TAU, delay=1, target_noise=0), example=data[0]
    )
    compare(agent, step, EagerTD3(agent, 1, 0), data)


def test_noise_is_drawn_where_batches_bring_none() -> None:
    """Other numbers in each stage and each update, the same again with the same seed."""
    data = batches(0)

    def run(seed: int) -> list[dict[str, float]]:
        step = tw.compile_step(Agent(Gaussian), **off_policy.sac(SGD(0.0)), example=data[0], seed=seed)
        return [step(*data[0]) for _ in range(3)]

    one = run(0)
    assert one == run(0)
    assert one[0]["critic_loss"] != run(1)[0]["critic_loss"]
    assert (
        len({candidate["actor_objective"] for candidate in one})
        == len({candidate["critic_loss"] for candidate in one})
        == 3
    )


def test_stages_draw_different_numbers() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Parameter(torch.zeros(ROWS)), nn.Parameter(torch.zeros(ROWS))

    def loss(name: str) -> Any:
        return lambda model, x: (getattr(model, name) * torch.randn_like(x)).sum()

    stages = [tw.train.Stage(name, loss(name), [name], SGD(1.0)) for name in ("one", "two")]
    step = tw.compile_step(Two(), stages, example=[torch.zeros(ROWS)])
    step(torch.zeros(ROWS))
    assert np.abs(step.parameters["one"] - step.parameters["two"]).max() > 0.1
    assert abs(np.corrcoef(step.parameters["one"], step.parameters["two"])[0, 1]) < 0.7


def test_saved_and_loaded_it_goes_on_bit_by_bit(tmp_path: Any) -> None:
    """With a delay: what takes part in an update depends on the count."""
    data = batches(1)
    recipe = off_policy.td3(Adam(1e-3), delay=2, noise=True)
    one = tw.compile_step(Agent(Direct), **recipe, example=data[0])
    for k in range(3):
        one(*data[k])
    one.save(tmp_path / "step")
    two = tw.compile_step(Agent(Direct), **recipe, example=data[0])
    two.load(tmp_path / "step")
    for k in range(3, 7):
        assert one(*data[k]) == two(*data[k])
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(value, two.state_dict()[name], err_msg=name)


def test_a_batch_that_is_not_finite_changes_nothing() -> None:
    data = batches(1)
    step = tw.compile_step(Agent(Direct), **off_policy.td3(noise=True), example=data[0], on_nonfinite="skip")
    before = step.state_dict()
    broken = [x.clone() for x in data[0]]
    broken[2][0] = float("nan")
    assert not np.isfinite(step(*broken)["critic_loss"])
    for name, value in step.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert step.count == 0


def test_refused_steps_change_nothing() -> None:
    data = batches(1)
    step = tw.compile_step(Agent(Direct), **off_policy.td3(noise=True), example=data[0])
    before = step.state_dict()
    step.refuse = lambda result: result["critic_loss"] > 0
    step(*data[0])
    assert step.count == 0
    for name, value in step.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def loss_of(model: Any, x: Any) -> Any:
    return (model.one(x) + model.two(x)).sum()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 1), nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("stages", "options", "says"),
    [
        ([tw.train.Stage("a", loss_of, ["one.*"])], {"clip": 1.0}, "stands with each stage"),
        ([tw.train.Stage("a", loss_of, ["three.*"])], {}, "no parameter matches"),
        ([tw.train.Stage("a", loss_of, ["one.*"], every=2)], {}, "takes part in every update"),
        ([tw.train.Stage("a", loss_of, ["one.*"]), tw.train.Stage("a", loss_of, ["two.*"])], {}, "names of their own"),
        ([tw.train.Stage("a", loss_of, ["*"]), tw.train.Stage("b", loss_of, ["two.*"])], {}, "move one parameter"),
        (
            [tw.train.Stage("a", loss_of, ["one.*"]), tw.train.Stage("b", loss_of, ["two.*"])],
            {"accumulate": 2},
            "not gathered",
        ),
        ([tw.train.Stage("a", loss_of, ["one.*"])], {"averages": [tw.train.Average("x.", "one.")]}, "names"),
        ([tw.train.Stage("a", loss_of, ["*"])], {"averages": [tw.train.Average("two.", "one.")]}, "cannot follow"),
    ],
)
def test_what_does_not_fit_is_refused(stages: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        tw.compile_step(Small(), stages, example=[torch.zeros(4, 2)], **options)


def test_squashed_normals() -> None:
    torch.manual_seed(0)
    mean, log_std, noise = 0.3 * torch.randn(3, 5, 2, dtype=torch.float64)
    actions, log_prob = losses.squashed_normal(mean, log_std, noise)
    base = torch.distributions.Normal(mean, log_std.exp())
    squashed = torch.distributions.TransformedDistribution(base, torch.distributions.transforms.TanhTransform())
    torch.testing.assert_close(log_prob, squashed.log_prob(actions).sum(1), rtol=1e-4, atol=1e-4)


class Normalised(nn.Module):
    """Batch norm, whose statistics the first stage moves and the second reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.one, self.two = nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Linear(4, 1)
        self.follower = nn.Linear(4, 1)


def first(model: Any, x: Any) -> Any:
    return (model.one(model.norm(x)) - model.follower(x)).square().mean()


def second(model: Any, x: Any) -> Any:
    scaled = (x - model.norm.running_mean) / (model.norm.running_var + 1e-5).sqrt()
    return (model.two(scaled) * model.one(x)).square().mean()


@pytest.mark.parametrize("symbolic", [False, True])
def test_buffers_and_batches_of_any_size(symbolic: bool) -> None:
    module, rng = Normalised(), np.random.default_rng(0)
    stages = [
        tw.train.Stage("first", first, ["norm.*", "one.*"], SGD(0.05), clip=0.1),
        tw.train.Stage("second", second, ["two.*"], SGD(0.05)),
    ]
    average = tw.train.Average("follower.", "one.", 0.1)
    sizes = [6, 3, 9] if symbolic else [6, 6, 6]
    batches = [torch.tensor(rng.normal(size=(n, 4)).astype(np.float32)) for n in sizes]
    step = tw.compile_step(module, stages, example=[batches[0]], averages=[average], symbolic=symbolic)
    one = torch.optim.SGD([*module.norm.parameters(), *module.one.parameters()], 0.05)
    two = torch.optim.SGD(module.two.parameters(), 0.05)
    for x in batches:
        result = step(x)
        loss = first(module, x)
        one.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_([*module.norm.parameters(), *module.one.parameters()], 0.1)
        one.step()
        other = second(module, x)
        two.zero_grad()
        other.backward()
        two.step()
        with torch.no_grad():
            for old, new in zip(module.follower.parameters(), module.one.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
        expected = [loss.item(), norm.item(), other.item()]
        assert [result[n] for n in ("first_loss", "first_gradient_norm", "second_loss")] == pytest.approx(
            expected, rel=1e-5
        )
    ours, theirs = step.state_dict(), module.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_what_an_early_stage_has_moved_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The critics' new parameters and moments are there before the actor's loss, whose activations stand elsewhere."""
    monkeypatch.setitem(globals(), "WIDTH", 256)
    monkeypatch.setitem(globals(), "ROWS", 256)
    arrays = [torch.randn(256, n) for n in (OBSERVATION, ACTIONS, 1, OBSERVATION)]
    arrays += [torch.zeros(256, 1), torch.randn(256, ACTIONS), torch.randn(256, ACTIONS)]
    agent = Agent(Gaussian)
    steps = [
        tw.compile_step(copy.deepcopy(agent), **off_policy.sac(noise=True), example=arrays, memory=memory, fast="exact")
        for memory in ("auto", None)
    ]
    for _ in range(4):
        one, other = (step(*arrays) for step in steps)
        assert one == other
    for step in steps:
        assert all(np.isfinite(array).all() for array in step.weights.values())
    assert steps[0].model.memory().arena < steps[1].model.memory().arena
    for name, array in steps[0].weights.items():
        np.testing.assert_array_equal(array, steps[1].weights[name], err_msg=name)
