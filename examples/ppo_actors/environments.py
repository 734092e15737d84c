"""The environments: gymnasium's vectorised CartPole, and a small one of pixels that needs nothing but NumPy.

Both step many copies at once and follow gymnasium's NEXT_STEP convention: the step that ends an episode gives its last
observation, and the step after that ignores its action, gives no reward and the first observation of a new episode.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Step = tuple[Array, Array, Array, Array, dict[str, Any]]


class Environment(Protocol):
    """The part of gymnasium's vector environments that the actors use. Arrays lead with the number of copies."""

    def reset(self, *, seed: int | None = None) -> tuple[Array, dict[str, Any]]:
        """First observations."""

    def step(self, actions: Array) -> Step:
        """Observations, rewards, terminated, truncated, details."""


class Catch:
    """A ball falls and drifts; the paddle at the bottom has to be below it when it lands: +1, or -1 if it is missed.

    An episode is five balls, so returns lie between -5 and 5. Observations are uint8 [copies, 2, 14, 14]: this frame
    and the one before it, so that the drift can be seen. Actions: left, stay, right.
    """

    SIZE, BALLS, HALF = 14, 5, 2
    shape, dtype, actions = (2, SIZE, SIZE), np.dtype(np.uint8), 3

    def __init__(self, copies: int) -> None:
        self._rng = np.random.default_rng()
        self._ball = np.zeros((copies, 3), np.int64)  # row, column, drift
        self._paddle = np.zeros(copies, np.int64)
        self._left = np.zeros(copies, np.int64)  # balls
        self._over = np.zeros(copies, bool)
        self._frames = np.zeros((copies, *self.shape), np.uint8)

    def reset(self, *, seed: int | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._start(np.ones(len(self._over), bool))
        return self._frames.copy(), {}

    def step(self, actions: Array) -> Step:
        new, reward = self._over.copy(), np.zeros(len(self._over), np.float32)
        self._frames[:, 0] = self._frames[:, 1]
        self._paddle = np.clip(self._paddle + actions - 1, self.HALF, self.SIZE - 1 - self.HALF)
        self._ball[:, 0] += 1
        column = self._ball[:, 1] + self._ball[:, 2]
        bounced = (column < 0) | (column >= self.SIZE)
        self._ball[:, 2] = np.where(bounced, -self._ball[:, 2], self._ball[:, 2])
        self._ball[:, 1] += self._ball[:, 2]
        landed = ~new & (self._ball[:, 0] == self.SIZE - 1)
        caught = np.abs(self._ball[:, 1] - self._paddle) <= self.HALF
        reward[landed] = np.where(caught, 1.0, -1.0)[landed]
        self._left[landed] -= 1
        self._over = landed & (self._left == 0)
        self._drop(landed & ~self._over)
        if new.any():
            self._start(new)
        self._draw(~new)
        return self._frames.copy(), reward, self._over.copy(), np.zeros(len(new), bool), {}

    def _start(self, which: Array) -> None:
        self._paddle[which] = self.SIZE // 2
        self._left[which] = self.BALLS
        self._over[which] = False
        self._drop(which)
        self._draw(which)
        self._frames[which, 0] = self._frames[which, 1]

    def _drop(self, which: Array) -> None:
        count = int(which.sum())
        self._ball[which, 0] = 0
        self._ball[which, 1] = self._rng.integers(0, self.SIZE, count)
        self._ball[which, 2] = self._rng.integers(-1, 2, count)

    def _draw(self, which: Array) -> None:
        copies = np.flatnonzero(which)
        self._frames[copies, 1] = 0
        self._frames[copies, 1, self._ball[copies, 0], self._ball[copies, 1]] = 255
        for beside in range(-self.HALF, self.HALF + 1):
            self._frames[copies, 1, self.SIZE - 1, self._paddle[copies] + beside] = 255


class Dense:
    """An environment whose observations are C-contiguous.

    Gymnasium's vectorised CartPole gives transposed ones. A compiled policy takes those too, but its own copy of them
    costs more than a policy as small as this one.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env

    def reset(self, *, seed: int | None = None) -> tuple[Array, dict[str, Any]]:
        obs, details = self._env.reset(seed=seed)
        return np.ascontiguousarray(obs), details

    def step(self, actions: Array) -> Step:
        obs, *rest = self._env.step(actions)
        return np.ascontiguousarray(obs), *rest


def make(name: str, copies: int) -> Environment:
    """`count` copies of the environment, stepped together."""
    if name == "pixels":
        return Catch(copies)
    import gymnasium

    env: Any = gymnasium.make_vec(name, num_envs=copies, vectorization_mode="vector_entry_point")
    return Dense(env)


def spaces(name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and dtype of an observation, number of actions."""
    if name == "pixels":
        return Catch.shape, Catch.dtype, Catch.actions
    import gymnasium

    env: Any = gymnasium.make(name)
    return env.observation_space.shape, env.observation_space.dtype, int(env.action_space.n)
