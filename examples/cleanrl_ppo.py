"""PPO on CartPole in one process and one file, in the manner of CleanRL, with Tilewright for the rollouts.

    python examples/cleanrl_ppo.py             # five lines differ from eager PyTorch: look for "tilewright"
    python examples/cleanrl_ppo.py --eager     # the same without them

Training is ordinary PyTorch. Rollouts call the compiled policy, which takes the agent's weights after every update
without being compiled again. Needs torch and gymnasium.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical

import tilewright as tw  # tilewright: 1 of 5


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """Logits [n, actions] and values [n] of observations [n, size]."""

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01))
        self.critic = nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(x), self.critic(x).squeeze(1)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eager", action="store_true", help="rollouts by PyTorch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--gae-lambda", type=float, default=0.8)
    parser.add_argument("--update-epochs", type=int, default=20)
    parser.add_argument("--minibatch-size", type=int, default=256)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    return parser.parse_args(arguments)


def train(args: argparse.Namespace) -> dict[str, float]:
    """Train; gives the mean return of the last 100 episodes and where the time went, in seconds."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    Categorical.set_default_validate_args(False)  # the check of the arguments would take longer than the policy
    envs = gym.make_vec(
        "CartPole-v1",
        num_envs=args.num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    steps = (args.num_steps, args.num_envs)
    obs = torch.zeros(*steps, *envs.single_observation_space.shape)
    actions = torch.zeros(steps, dtype=torch.long)
    logprobs, rewards, dones, values = (torch.zeros(steps) for _ in range(4))
    next_obs = torch.from_numpy(envs.reset(seed=args.seed)[0])
    next_done = torch.zeros(args.num_envs)
    score, returns = np.zeros(args.num_envs), deque[float](maxlen=100)

    policy = agent if args.eager else tw.compile(agent, next_obs)  # tilewright: 2 of 5
    began, inference, calls = time.perf_counter(), 0.0, 0
    num_updates = args.total_timesteps // (args.num_steps * args.num_envs)
    for update in range(num_updates):
        left = 1.0 - update / num_updates
        optimizer.param_groups[0]["lr"] = left * args.learning_rate

        for step in range(args.num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                start = time.perf_counter()
                logits, values[step] = policy(next_obs)  # tilewright: 3 of 5
                inference, calls = inference + time.perf_counter() - start, calls + 1
            distribution = Categorical(logits=logits)
            actions[step] = distribution.sample()
            logprobs[step] = distribution.log_prob(actions[step])
            result, reward, terminated, truncated, _ = envs.step(actions[step].numpy())
            done = np.logical_or(terminated, truncated)
            rewards[step] = torch.from_numpy(reward)
            next_obs, next_done = torch.from_numpy(result), torch.from_numpy(done).float()
            score += reward
            returns.extend(score[done])
            score[done] = 0

        with torch.no_grad():
            _, next_value = policy(next_obs)  # tilewright: 4 of 5
        advantages = torch.zeros_like(rewards)
        upcoming = torch.zeros(args.num_envs)
        for t in reversed(range(args.num_steps)):
            alive = 1.0 - (next_done if t == args.num_steps - 1 else dones[t + 1])
            following = next_value if t == args.num_steps - 1 else values[t + 1]
            delta = rewards[t] + args.gamma * following * alive - values[t]
            advantages[t] = upcoming = delta + args.gamma * args.gae_lambda * alive * upcoming
        batch = (obs, actions, logprobs, advantages, advantages + values)
        optimize(agent, optimizer, [tensor.flatten(0, 1) for tensor in batch], left * args.clip_coef, args)
        if policy is not agent:
            policy.update(agent.state_dict())  # tilewright: 5 of 5

        if update % 50 == 49 or update == num_updates - 1:
            steps_done = (update + 1) * args.num_steps * args.num_envs
            mean = float(np.mean(returns)) if returns else float("nan")
            print(f"steps {steps_done:7}  return {mean:6.1f}  {inference / calls * 1e6:6.1f} µs a call of the policy")
    envs.close()
    total = time.perf_counter() - began
    return {"return": float(np.mean(returns)), "seconds": total, "inference": inference, "calls": float(calls)}


def optimize(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    batch: list[torch.Tensor],
    clip: float,
    args: argparse.Namespace,
) -> None:
    """PPO's epochs over one batch: observations, actions, log-probabilities, advantages, targets of the value."""
    for _ in range(args.update_epochs):
        for rows in torch.randperm(len(batch[0])).split(args.minibatch_size):
            obs, actions, logprobs, advantages, targets = (tensor[rows] for tensor in batch)
            logits, value = agent(obs)
            ratio = (Categorical(logits=logits).log_prob(actions) - logprobs).exp()
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
            loss = -surrogate.mean() + args.vf_coef * 0.5 * (value - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


if __name__ == "__main__":
    figures = train(parse())
    share = figures["inference"] / figures["seconds"]
    print(f"return {figures['return']:.1f} in {figures['seconds']:.1f} s, {share:.0%} of it in the policy's calls")
