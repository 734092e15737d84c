"""Drop-in adapters for reinforcement learning libraries. Each is a module of its own, imported only by programs that
use it.

    from tilewright.rl import sb3         Stable-Baselines3: rollouts, `predict` and updates of a model in training
    from tilewright.rl import rllib           RLlib's new API stack: an EnvRunner that acts from a node's store
    from tilewright.rl import rllib_learner   and PPO's Learner, whose updates are a compiled step
    from tilewright.rl import torchrl         TorchRL: a policy for collectors, and a WeightSyncScheme that feeds it
    from tilewright.rl import torchrl_loss    and the updates of a loss module on a compiled step
    from tilewright.rl import sampling        actions from a policy's outputs by NumPy alone, for actors without PyTorch

For acting, the deterministic part of a policy is compiled: observation in, parameters of the action distribution (and
values) out. Sampling stays with the library's own random numbers, so that a seed gives the same actions as before.

Each actor process runs on one thread unless told otherwise: N actors that each start a thread per core slow each other
down. How many threads PyTorch takes in the same process is the user's: `torch.set_num_threads(1)`, or
`OMP_NUM_THREADS=1`.
"""
