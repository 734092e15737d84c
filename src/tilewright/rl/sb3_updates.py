"""The choice of compiled updates for a Stable-Baselines3 model, and their installation in place of its own."""

from __future__ import annotations

from typing import Any

from stable_baselines3.a2c.a2c import A2C
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.dqn.dqn import DQN
from stable_baselines3.ppo.ppo import PPO
from stable_baselines3.sac.sac import SAC
from stable_baselines3.td3.td3 import TD3

from tilewright.rl.sb3_learner import Learner
from tilewright.rl.sb3_off_policy import Delayed, Soft, Values
from tilewright.rl.sb3_on_policy import OnPolicy
from tilewright.rl.sb3_policy import Parts
from tilewright.support.errors import UnsupportedError


def learner_of(model: Any, parts: Parts, threads: int) -> Learner:
    """The compiled updates of a model, by `threads` threads. Raises UnsupportedError listing all obstacles."""
    if not isinstance(model, BaseAlgorithm):
        raise UnsupportedError(
            "updates are an algorithm's", expected="PPO, A2C, DQN, SAC, TD3 or DDPG", got=type(model)
        )
    where = type(model).__name__
    if str(model.device) != "cpu":
        raise UnsupportedError("the model is not on the CPU", where=where, got=model.device)
    train = type(model).train
    if train in (PPO.train, A2C.train):
        return OnPolicy(model, parts, threads)
    for kind, learner in ((DQN, Values), (SAC, Soft), (TD3, Delayed)):
        if train is kind.train:
            return learner(model, threads)
    raise UnsupportedError("trains in a way of its own", where=where, expected="train() of PPO, A2C, DQN, SAC or TD3")
