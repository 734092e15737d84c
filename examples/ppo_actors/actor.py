"""The process that plays: environments, the policy, and segments of experience for the learner."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from examples.ppo_actors import environments
from examples.ppo_actors.policies import Policy, connect
from examples.ppo_actors.trajectories import Array, Shared, sample


def main(index: int, life: int, address: Any, shared: Shared, pipe: Connection) -> None:
    """Play until the learner hangs up.

    Args:
        index: which of the actors this is: whose slots and gauges it writes.
        life: how often an actor of this index was started before.
        address: where the policy's weights are.
        pipe: gives the numbers of slots to fill, takes those that are full: one byte each.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the learner, which hangs up
    seed = shared.config.seed * 10_007 + 101 * index + life
    play = Player(index, seed, connect(address, shared.config), shared)
    try:
        while True:
            slot = pipe.recv_bytes(1)
            play.fill(shared.slots(index)[slot[0]])
            pipe.send_bytes(slot)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


class Player:
    """Environments, and a policy that acts in them."""

    def __init__(self, index: int, seed: int, policy: Policy, shared: Shared) -> None:
        self._policy = policy
        self._rng = np.random.default_rng(seed)
        self._gauges = shared.gauges(index)
        self._env = environments.make(shared.config.env, shared.config.envs)
        self._obs, _ = self._env.reset(seed=seed)
        self._new = np.zeros(shared.config.envs, bool)
        self._score = np.zeros(shared.config.envs, np.float32)
        self._took = np.zeros(shared.config.horizon + 1)
        self._gauges[:] = 0
        self._gauges["pid"] = os.getpid()

    def fill(self, segment: Any) -> None:
        """Play one segment into the memory that the learner reads."""
        for t in range(len(segment["version"])):
            (logits, value), version = self._call(t)
            action, logprob = sample(logits, self._rng)
            row = {"obs": self._obs, "value": value, "action": action, "logprob": logprob, "new": self._new}
            self._obs, reward, terminated, truncated, _ = self._env.step(action)
            row |= {"reward": reward, "terminated": terminated, "truncated": truncated, "version": version}
            self._new = terminated | truncated
            row |= {"returned": self._returns(reward, self._new)}
            for name, what in row.items():
                segment[name][t] = what
        (_, segment["last_value"][:]), _ = self._call(-1)
        self._gauges["segments"] += 1
        self._gauges["median"] = np.median(self._took)  # the mean would tell how busy the machine is

    def _call(self, t: int) -> tuple[tuple[Array, Array], int]:
        start = time.perf_counter()
        outputs, version = self._policy.versioned(self._obs)
        self._took[t] = time.perf_counter() - start
        self._gauges["calls"] += 1
        self._gauges["version"] = version
        self._gauges["age"] = self._policy.age
        return outputs, version

    def _returns(self, reward: Array, done: Array) -> Array:
        """The returns of episodes that ended with this step, NaN elsewhere."""
        self._score += reward
        returned = np.where(done, self._score, np.nan)
        self._score[done] = 0
        return returned
