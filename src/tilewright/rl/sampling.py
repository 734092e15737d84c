"""Actions from a published policy's outputs, with NumPy alone: for actors that need neither PyTorch nor a compiler.

    actor = tw.attach("policy")
    rng = np.random.default_rng(seed)
    outputs = actor.run({"obs": obs})
    actions, log_probs = tilewright.rl.sampling.sample(outputs, rng)

The outputs' names say which distribution it is; `tilewright.rl.sb3.publish` and `tilewright.rl.torchrl.publish` give
them.

| names | actions |
|---|---|
| `log_probs`, `probs` | discrete: int64 (batch,) |
| `log_probs_0`, `probs_0`, `log_probs_1`, ... | several discrete ones: int64 (batch, how many) |
| `flip_probs`, `log_probs_zero`, `log_probs_one` | binary: float32 (batch, how many), 0 or 1 |
| `mean`, `log_std` | Gaussian: float32 (batch, how many) |
| `squashed_mean`, `log_std` | Gaussian through tanh, in (-1, 1) |
| `logits` | discrete, as `log_probs` before they are normalised |
| `q_values` | discrete, the best one |
| `actions` | as they are |

The random numbers are NumPy's; a torch policy with the same seed draws others from the same distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.support.errors import CallError

Array = npt.NDArray[Any]

__all__ = ["sample"]

_LOG_SQRT_2PI = 0.5 * float(np.log(2 * np.pi))
_EPSILON = 1e-6  # inside the logarithm of tanh's derivative, as Stable-Baselines3 has it


def sample(
    outputs: Mapping[str, Any], rng: np.random.Generator, deterministic: bool = False
) -> tuple[Array, Array | None]:
    """Actions and their log-probabilities, (batch,) float32; None where the outputs say nothing of probabilities.

    Args:
        outputs: what `actor.run` gives, NumPy arrays by name.
        rng: where random numbers come from.
        deterministic: the most likely action, with its own log-probability.

    Raises:
        CallError: the names are none of those above.
    """
    if "probs" in outputs:
        return _discrete(outputs["probs"], outputs["log_probs"], rng, deterministic)
    if "logits" in outputs:
        log_probs = _log_softmax(np.asarray(outputs["logits"]))
        return _discrete(np.exp(log_probs), log_probs, rng, deterministic)
    if "probs_0" in outputs:
        parts: list[tuple[Array, Array]] = []
        while f"probs_{len(parts)}" in outputs:
            k = len(parts)
            parts.append(_discrete(outputs[f"probs_{k}"], outputs[f"log_probs_{k}"], rng, deterministic))
        return np.stack([a for a, _ in parts], 1), np.sum([p for _, p in parts], 0)
    if "flip_probs" in outputs:
        probs = np.asarray(outputs["flip_probs"])
        ones = np.round(probs) > 0 if deterministic else rng.random(probs.shape, np.float32) < probs
        log_probs = np.where(ones, outputs["log_probs_one"], outputs["log_probs_zero"]).sum(1)
        return ones.astype(probs.dtype), log_probs
    if "mean" in outputs:
        return _gaussian(np.asarray(outputs["mean"]), np.asarray(outputs["log_std"]), rng, deterministic)
    if "squashed_mean" in outputs:
        result = _gaussian(np.asarray(outputs["squashed_mean"]), np.asarray(outputs["log_std"]), rng, deterministic)
        actions = np.tanh(result[0])
        return actions, result[1] - np.log(1 - actions**2 + _EPSILON).sum(1)
    if "q_values" in outputs:
        return np.argmax(outputs["q_values"], 1), None
    if "actions" in outputs:
        return np.asarray(outputs["actions"]), None
    raise CallError("the outputs are no policy's that can be drawn from", got=f"outputs {sorted(outputs)}")


def _discrete(probs: Any, log_probs: Any, rng: np.random.Generator, deterministic: bool) -> tuple[Array, Array]:
    probs, log_probs = np.asarray(probs), np.asarray(log_probs)
    if deterministic:
        actions = np.argmax(probs, 1)
    else:
        # The first action whose cumulated probability exceeds a uniform number below the total, so that rounding of the
        # sum never reaches past the last action and one of probability zero is never chosen.
        upto = np.cumsum(probs, 1)
        uniform = rng.random((len(probs), 1)) * upto[:, -1:]
        actions = np.minimum((upto <= uniform).sum(1), probs.shape[1] - 1)
    return actions, log_probs[np.arange(len(actions)), actions]


def _gaussian(mean: Array, log_std: Array, rng: np.random.Generator, deterministic: bool) -> tuple[Array, Array]:
    if deterministic:
        return mean, -(log_std + _LOG_SQRT_2PI).sum(1)
    noise = rng.standard_normal(mean.shape, np.float32).astype(mean.dtype, copy=False)
    return mean + noise * np.exp(log_std), -(0.5 * noise * noise + log_std + _LOG_SQRT_2PI).sum(1)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result
