"""Losses against their formulas in NumPy in f64, and as compiled steps against eager gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip

from tilewright.support.errors import Error  # noqa: E402
from tilewright.train import losses  # noqa: E402
from tilewright.train.entry import compile_step  # noqa: E402
from tilewright.train.optimizers import SGD  # noqa: E402

N, ACTIONS = 11, 3


def normal(seed: int, *shape: int) -> Any:
    return torch.tensor(np.random.default_rng(seed).normal(size=shape), dtype=torch.float64)


def test_log_probabilities_and_entropies() -> None:
    actions, mean, log_std, logits = normal(0, N, ACTIONS), normal(1, N, ACTIONS), normal(2, ACTIONS), normal(3, N, 4)
    normals = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(losses.normal_log_prob(actions, mean, log_std), normals.log_prob(actions).sum(1))
    torch.testing.assert_close(losses.normal_entropy(log_std), normals.entropy()[0].sum())
    chosen = torch.randint(4, (N,))
    categories = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(losses.categorical_log_prob(chosen, logits), categories.log_prob(chosen))
    torch.testing.assert_close(losses.categorical_entropy(logits), categories.entropy())


def test_ppo() -> None:
    new, old, advantages = normal(0, N), normal(1, N), normal(2, N)
    a = advantages.numpy()
    a = (a - a.mean()) / (a.std(ddof=1) + 1e-8)
    ratio = np.exp((new - old).numpy())
    expected = -np.minimum(a * ratio, a * np.clip(ratio, 0.7, 1.3)).mean()
    assert losses.ppo(new, old, advantages, clip=0.3).item() == pytest.approx(expected)
    raw = advantages.numpy()
    ordinary = -np.minimum(raw * ratio, raw * np.clip(ratio, 0.8, 1.2)).mean()
    assert losses.ppo(new, old, advantages, normalize=False).item() == pytest.approx(ordinary)


def test_targets_have_no_gradients() -> None:
    values, following = normal(0, N, ACTIONS).requires_grad_(), normal(1, N, ACTIONS).requires_grad_()
    actions, rewards, done = torch.randint(ACTIONS, (N,)), normal(2, N), torch.arange(N) % 2.0
    loss = losses.dqn(values, actions, rewards, following, done, gamma=0.9)
    target = rewards + (1 - done) * 0.9 * following.max(1).values
    off = (values[torch.arange(N), actions] - target).abs()
    assert loss.item() == pytest.approx(torch.where(off < 1, off**2 / 2, off - 0.5).mean().item())
    loss.backward()
    assert values.grad is not None and following.grad is None
    log_prob, advantages = normal(3, N).requires_grad_(), normal(4, N).requires_grad_()
    losses.a2c(log_prob, advantages).backward()
    torch.testing.assert_close(log_prob.grad, -advantages.detach() / N)
    assert advantages.grad is None


def test_sac() -> None:
    one, two, rewards, log_prob = normal(0, N), normal(1, N), normal(2, N), normal(3, N)
    done = torch.arange(N) % 2.0
    target = rewards + (1 - done) * 0.9 * (torch.minimum(two, one) - 0.2 * log_prob)
    expected = 0.5 * (((one - target) ** 2).mean() + ((two - target) ** 2).mean())
    result = losses.sac_critics([one, two], rewards, done, [two, one], log_prob, 0.2, gamma=0.9)
    assert result.item() == pytest.approx(expected.item())
    assert losses.sac_actor([one, two], log_prob, 0.2).item() == pytest.approx(
        (0.2 * log_prob - torch.minimum(one, two)).mean().item()
    )


def test_vtrace() -> None:
    """The sums of the paper's definition, term by term."""
    time, batch, gamma = 5, 2, 0.9
    new, old, rewards, values = (normal(k, time, batch) for k in range(4))
    last, done = normal(4, batch), torch.zeros(time, batch, dtype=torch.float64)
    done[2, 0] = 1
    targets, advantages = losses.vtrace(new, old, rewards, values, last, done, gamma)
    rho = np.minimum(1, np.exp((new - old).numpy()))
    v = np.concatenate([values.numpy(), last.numpy()[None]])
    go_on = gamma * (1 - done.numpy())
    delta = rho * (rewards.numpy() + go_on * v[1:] - v[:-1])
    for s in range(time):
        expected = v[s].copy()
        for t in range(s, time):
            expected += np.prod(go_on[s:t] * rho[s:t], axis=0) * delta[t]
        np.testing.assert_allclose(targets[s], expected, rtol=1e-12)
    after = np.concatenate([targets.numpy()[1:], last.numpy()[None]])
    np.testing.assert_allclose(advantages, rho * (rewards.numpy() + go_on * after - v[:-1]), rtol=1e-12)


def test_compiled() -> None:
    """A PPO loss of these pieces: parameters after a step as eager autograd moves them."""
    torch.manual_seed(0)

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.logits, self.value = nn.Linear(4, 8), nn.Linear(8, ACTIONS), nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            h = torch.tanh(self.body(x))
            return self.logits(h), self.value(h)[:, 0]

    def loss(model: Any, x: Any, actions: Any, old: Any, advantages: Any, returns: Any) -> Any:
        logits, values = model(x)
        policy = losses.ppo(losses.categorical_log_prob(actions, logits), old, advantages)
        entropy = losses.categorical_entropy(logits).mean()
        return {"loss": policy + 0.5 * losses.mse(values, returns) - 0.01 * entropy, "entropy": entropy}

    module = Policy()
    batch = (torch.randn(N, 4), torch.randint(ACTIONS, (N,)), -torch.rand(N), torch.randn(N), torch.randn(N))
    step = compile_step(module, loss, SGD(0.1), batch)
    result = step(*batch)
    expected = loss(module, *batch)
    expected["loss"].backward()
    assert result["loss"] == pytest.approx(expected["loss"].item(), rel=1e-5)
    assert result["entropy"] == pytest.approx(expected["entropy"].item(), rel=1e-5)
    for name, p in module.named_parameters():
        np.testing.assert_allclose(step.parameters[name], (p - 0.1 * p.grad).detach(), rtol=1e-5, atol=1e-6)


class Reversed(torch.autograd.Function):
    """The identity, whose gradient is another."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, flow: Any) -> Any:
        return -flow


REFUSED: dict[str, tuple[Any, str]] = {
    "a gradient of one's own": (lambda m, x: Reversed.apply(m(x)).sum(), "cannot be traced: got Reversed"),
    "no gradient": (lambda m, x: m(x).round().sum(), "depends on nothing that is trained"),
    "no parameter": (lambda m, x: x.sum(), "depends on nothing that is trained"),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_losses_whose_gradients_are_not_told(name: str, symbolic: bool) -> None:
    loss, message = REFUSED[name]
    with pytest.raises(Error, match=message):
        compile_step(nn.Linear(5, 5), loss, SGD(0.1), (torch.randn(4, 5),), symbolic=symbolic)


def test_without_a_tape_gradients_of_ones_own_are_refused_too() -> None:
    def loss(model: Any, x: Any) -> Any:
        return (Reversed.apply(model(x)) * torch.rand(5, generator=torch.Generator())).sum()

    with pytest.raises(Error, match="cannot be traced: got Reversed"):
        compile_step(nn.Linear(5, 5), loss, SGD(0.1), (torch.randn(4, 5),))


def unseen(model: Any, x: Any) -> Any:
    """Attention in which the first row of each picture may see nothing."""
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[0] = False
    return nn.functional.scaled_dot_product_attention(model(x), model(x), x, mask).square().mean()


def hidden_from_all(model: Any, x: Any) -> Any:
    """A loss with a mask that is added, which hides a row in part."""
    mask = torch.zeros(4, 4)
    mask[0], mask[1, 2:] = -torch.inf, -torch.inf
    return nn.functional.scaled_dot_product_attention(model(x), model(x), x, mask).square().mean()


MASKED: dict[str, Any] = {
    "attention": unseen,
    "attention with a sum": hidden_from_all,
    "softmax": lambda m, x: (
        torch.ops.aten._safe_softmax(m(x).masked_fill(x[..., :1] > 0, -torch.inf), -1).square().sum()
    ),
    "logaddexp": lambda m, x: torch.where(
        x > 0, torch.logaddexp(m(x).masked_fill(x < 0, -torch.inf), x.masked_fill(x < 0, -torch.inf)), 0
    ).sum(),
    "norm": lambda m, x: torch.linalg.vector_norm(m(x) * (x[..., :1] > 0), dim=-1).sum(),
    "normalised": lambda m, x: (nn.functional.normalize(m(x) * (x[..., :1] > 0), dim=-1) * x).sum(),
}


@pytest.mark.parametrize("name", MASKED)
def test_gradients_stay_finite_where_a_mask_leaves_nothing(name: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(5, 5), torch.randn(2, 4, 5)
    step = compile_step(model, MASKED[name], SGD(0.1), (x,))
    result = step(x.numpy())
    MASKED[name](model, x).backward()
    norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None))
    assert norm.isfinite() and norm > 0
    np.testing.assert_allclose(result["gradient_norm"], norm.item(), rtol=1e-5)
