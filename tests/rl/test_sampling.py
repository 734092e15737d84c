"""Actions drawn with NumPy: frequencies, moments and log-probabilities against torch.distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.rl.sampling import sample
from tilewright.support.errors import CallError

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make rl` runs this")
from torch import distributions as D  # noqa: E402

DRAWS = 40_000


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def repeated(values: Any) -> Any:
    return np.repeat(np.asarray([values], np.float32), DRAWS, 0)


def discrete(probs: list[float]) -> tuple[Any, Any]:
    with np.errstate(divide="ignore"):
        return repeated(probs), repeated(np.log(probs))


def check_frequencies(actions: Any, probs: list[float]) -> None:
    counts = np.bincount(actions, minlength=len(probs))
    expected = np.asarray(probs) * DRAWS
    assert (counts[expected == 0] == 0).all()
    retained = expected > 0
    chi2 = ((counts - expected)[retained] ** 2 / expected[retained]).sum()
    assert chi2 < 30  # P(chi2 > 30) < 1e-5 for up to five degrees of freedom


def test_discrete(rng: np.random.Generator) -> None:
    wanted = [0.0, 0.5, 0.125, 0.0, 0.375, 0.0]
    probs, log_probs = discrete(wanted)
    actions, result = sample({"probs": probs, "log_probs": log_probs}, rng)
    check_frequencies(actions, wanted)
    np.testing.assert_array_equal(result, log_probs[0][actions])
    best, result = sample({"probs": probs[:3], "log_probs": log_probs[:3]}, rng, deterministic=True)
    assert best.tolist() == [1, 1, 1] and np.allclose(result, np.log(0.5))


def test_logits(rng: np.random.Generator) -> None:
    logits = np.asarray([[300.0, 301.0, -1000.0]], np.float32).repeat(DRAWS, 0)
    actions, result = sample({"logits": logits}, rng)
    expected = D.Categorical(logits=torch.from_numpy(logits))
    check_frequencies(actions, expected.probs[0].tolist())
    np.testing.assert_allclose(result, expected.log_prob(torch.from_numpy(actions)), rtol=1e-4)


def test_rounded_sums_reach_no_further_than_the_last_action(rng: np.random.Generator) -> None:
    probs = np.full((DRAWS, 3), 1 / 3, np.float32) * np.float32(0.999)
    actions, _ = sample({"probs": probs, "log_probs": np.log(probs)}, rng)
    check_frequencies(actions, [1 / 3] * 3)


def test_several_discrete(rng: np.random.Generator) -> None:
    first, second = [0.25, 0.75], [0.1, 0.2, 0.7]
    outputs = {}
    for k, probs in enumerate((first, second)):
        outputs[f"probs_{k}"], outputs[f"log_probs_{k}"] = discrete(probs)
    actions, result = sample(outputs, rng)
    assert actions.shape == (DRAWS, 2)
    check_frequencies(actions[:, 0] * 3 + actions[:, 1], np.outer(first, second).ravel().tolist())
    np.testing.assert_allclose(result, np.log(first)[actions[:, 0]] + np.log(second)[actions[:, 1]], rtol=1e-5)


def test_binary(rng: np.random.Generator) -> None:
    logits = torch.tensor([[-1.0, 2.0]]).repeat(DRAWS, 1)
    expected = D.Bernoulli(logits=logits)
    softplus = torch.nn.functional.softplus
    outputs = {
        "flip_probs": expected.probs.numpy(),
        "log_probs_zero": -softplus(logits).numpy(),
        "log_probs_one": -softplus(-logits).numpy(),
    }
    actions, result = sample(outputs, rng)
    np.testing.assert_allclose(actions.mean(0), expected.probs[0], atol=0.015)
    np.testing.assert_allclose(result, expected.log_prob(torch.from_numpy(actions)).sum(1), rtol=1e-5)
    assert sample(outputs, rng, deterministic=True)[0][0].tolist() == [0, 1]


def test_gaussians(rng: np.random.Generator) -> None:
    mean, log_std = repeated([0.5, -2.0]), repeated([-1.0, 0.5])
    expected = D.Normal(torch.from_numpy(mean), torch.from_numpy(log_std).exp())
    actions, result = sample({"mean": mean, "log_std": log_std}, rng)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions.mean(0), mean[0], atol=0.04)
    np.testing.assert_allclose(actions.std(0), np.exp(log_std[0]), rtol=0.02)
    np.testing.assert_allclose(result, expected.log_prob(torch.from_numpy(actions)).sum(1), rtol=1e-4, atol=1e-4)
    best, result = sample({"mean": mean, "log_std": log_std}, rng, deterministic=True)
    np.testing.assert_array_equal(best, mean)
    np.testing.assert_allclose(result, expected.log_prob(torch.from_numpy(mean)).sum(1), rtol=1e-5)


def test_squashed(rng: np.random.Generator) -> None:
    mean, log_std = repeated([0.5, -0.2]), repeated([-1.0, -0.5])
    actions, result = sample({"squashed_mean": mean, "log_std": log_std}, rng)
    assert (np.abs(actions) < 1).all()
    normal = D.Normal(torch.from_numpy(mean).double(), torch.from_numpy(log_std).double().exp())
    expected = D.TransformedDistribution(normal, D.TanhTransform(cache_size=1))
    exact = expected.log_prob(torch.from_numpy(actions).double()).sum(1)
    inside = (np.abs(actions) < 0.99).all(1)
    np.testing.assert_allclose(result[inside], exact[inside], atol=2e-3)


def test_values_and_ordinary_actions(rng: np.random.Generator) -> None:
    assert sample({"q_values": np.asarray([[1.0, 3, 2], [5, 3, 2]])}, rng)[0].tolist() == [1, 0]
    actions, result = sample({"actions": np.ones((2, 1))}, rng)
    assert actions.tolist() == [[1], [1]] and result is None
    with pytest.raises(CallError, match="no policy's"):
        sample({"output0": np.ones((2, 1))}, rng)
