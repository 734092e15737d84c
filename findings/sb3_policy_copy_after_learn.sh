#!/usr/bin/env bash
# stable-baselines3 2.9.2 with torch 2.13.0: a policy of PPO or A2C cannot be copied by `copy.deepcopy` after `learn`; before
# it, and after one `predict`, it can. Policies of SAC, TD3 and DQN can be copied at any time.
#
# The policy keeps the distribution of the last actions, whose parameters are results of the last gradient step, and
# PyTorch copies no tensor that is the result of a differentiable computation:
#   RuntimeError: Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.
# A `predict`, which computes without gradients, replaces them. Seen where a trained policy was to be copied before its
# weights were rounded.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 stable-baselines3==2.9.2 gymnasium numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import copy
import sys
import warnings

import stable_baselines3

warnings.simplefilter("ignore")


def copied(policy):
    try:
        copy.deepcopy(policy)
    except RuntimeError as error:
        return "refused" if "support the deepcopy protocol" in str(error) else str(error)
    return "copied"


SHORT = {"n_steps": 16}
MODELS = {
    "PPO": ("CartPole-v1", SHORT | {"batch_size": 16}),
    "A2C": ("CartPole-v1", SHORT),
    "SAC": ("Pendulum-v1", {"learning_starts": 10}),
    "TD3": ("Pendulum-v1", {"learning_starts": 10}),
    "DQN": ("CartPole-v1", {"learning_starts": 10}),
}
got = {}
for name, (environment, options) in MODELS.items():
    model = getattr(stable_baselines3, name)("MlpPolicy", environment, seed=0, device="cpu", **options)
    before = copied(model.policy)
    model.learn(64)
    after = copied(model.policy)
    model.policy.predict(model.env.reset())
    got[name] = before, after, copied(model.policy)
print(stable_baselines3.__version__, got)
wanted = {name: ("copied", "refused" if name in ("PPO", "A2C") else "copied", "copied") for name in MODELS}
sys.exit(got != wanted)
PYTHON
