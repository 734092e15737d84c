"""Small environments with every kind of space, and nothing random but what their seed gives."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (17,), np.float32),
    "double": spaces.Box(-1, 1, (5,), np.float64),
    "matrix": spaces.Box(-1, 1, (3, 4), np.float32),
    "image": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "number": spaces.Discrete(7),
    "numbers": spaces.MultiDiscrete([3, 5, 2]),
    "bits": spaces.MultiBinary(6),
    "dict": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (1, 36, 36), np.uint8),
            "kind": spaces.Discrete(4),
            "state": spaces.Box(-1, 1, (3,), np.float32),
        }
    ),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(6),
    "multidiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "multibinary": spaces.MultiBinary(5),
    "box": spaces.Box(-1, 1, (6,), np.float32),
}


class Toy(gym.Env[Any, Any]):
    """Random observations, a reward for actions that are near the first of them, episodes of 20 steps."""

    def __init__(self, observation: str = "vector", action: str = "discrete") -> None:
        self.observation_space = OBSERVATIONS[observation]
        self.action_space = ACTIONS[action]
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self.observation_space.sample(), float(np.mean(action)), False, self._steps >= 20, {}


class Memory(gym.Env[Any, Any]):
    """The observation says which of two actions pays; ten steps. Learnt within a few updates, and not by chance."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self._steps = 0
        self._right = 0

    def _observe(self) -> Any:
        self._right = int(self.np_random.integers(2))
        obs = self.np_random.uniform(-0.2, 0.2, 4).astype(np.float32)
        obs[0] = 2 * self._right - 1
        return obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self._right)
        self._steps += 1
        return self._observe(), reward, self._steps >= 10, False, {}
