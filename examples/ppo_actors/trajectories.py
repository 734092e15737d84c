"""The memory that experience travels through, and what is computed of it with NumPy alone.

It comes from `multiprocessing.RawArray`: a file that is unlinked as soon as it is made, whose descriptor the actors
inherit. So nothing is left in /dev/shm however the processes end, and no lock can be left taken by an actor that was
killed: a slot belongs to the actor or to the learner, and a message of four bytes through a pipe hands it over.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.ppo_actors import environments
from examples.ppo_actors.config import Config

Array = npt.NDArray[Any]

SLOTS = 2
"""Segments of each actor: it fills one while the learner trains on the other, which bounds staleness."""

GAUGES = np.dtype(
    [
        ("pid", np.int64),
        ("calls", np.int64),  # of the policy
        ("median", np.float64),  # seconds of a call, over the last segment
        ("version", np.int64),  # that the last call used
        ("age", np.float64),  # seconds since that version was published
        ("segments", np.int64),
    ]
)


class Shared:
    """Slots and gauges of all actors. Pickles to a few numbers and descriptors when a process is spawned with it.

    Args:
        context: a multiprocessing context.
    """

    def __init__(self, config: Config, context: Any) -> None:
        self.config = config
        self.slot = slot_type(config)
        self._slots = context.RawArray(ctypes.c_char, self.slot.itemsize * SLOTS * config.actors)
        self._gauges = context.RawArray(ctypes.c_char, GAUGES.itemsize * config.actors)

    def slots(self, actor: int) -> Array:
        """The actor's segments: records of `slot_type`, [SLOTS]."""
        everything = np.frombuffer(self._slots, self.slot).reshape(self.config.actors, SLOTS)
        return everything[actor]

    def gauges(self, actor: int) -> Any:
        """The gauges of an actor: a record of `GAUGES`, each field written by the actor alone."""
        return np.frombuffer(self._gauges, GAUGES)[actor : actor + 1]


def slot_type(config: Config) -> np.dtype[Any]:
    """One segment: [horizon, envs] of everything that PPO wants to know, and the value after its end, [envs]."""
    shape, dtype, _ = environments.spaces(config.env)
    steps = (config.horizon, config.envs)
    return np.dtype(
        [
            ("obs", dtype, (*steps, *shape)),
            ("action", np.int64, steps),
            ("logprob", np.float32, steps),
            ("value", np.float32, steps),
            ("reward", np.float32, steps),
            ("terminated", np.bool_, steps),
            ("truncated", np.bool_, steps),
            ("new", np.bool_, steps),  # the step that only resets: its action is ignored
            ("version", np.int64, config.horizon),  # of the weights that acted
            ("returned", np.float32, steps),  # the return of an episode that ended here, else NaN
            ("last_value", np.float32, config.envs),
        ],
        align=True,
    )


def advantages(segment: Any, gamma: float, lam: float) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16) of one segment, float32 [horizon, envs].

    What follows the end of an episode is not counted: not at all where it was terminated, by the value of its last
    observation where it was cut off. That value is at hand, since the next step starts from that observation.
    """
    value, done = segment["value"], segment["terminated"] | segment["truncated"]
    result = np.zeros_like(value)
    following, after = segment["last_value"], np.zeros_like(segment["last_value"])
    for t in reversed(range(len(value))):
        delta = segment["reward"][t] + gamma * following * ~segment["terminated"][t] - value[t]
        after = delta + gamma * lam * after * ~done[t]
        result[t], following = after, value[t]
    return result


def sample(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Actions drawn from softmax(logits), int64 [n], and their log-probabilities, float32 [n] (by Gumbel-max)."""
    actions = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return actions, logprobs[np.arange(len(actions)), actions]
