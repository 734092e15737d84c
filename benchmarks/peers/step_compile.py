"""The compile of one learning step, in a process of its own: `python -m benchmarks.peers.step_compile CASE` prints the
seconds that `tw.compile_step` took, all that it loads of Tilewright and PyTorch's exporter included."""

from __future__ import annotations

import sys
import time

POLICY = "m64 ppo@64"
"""The policy of `bench_train`, beside the networks of `bench_training`."""


def seconds(case: str) -> float:
    import torch

    import tilewright as tw
    from benchmarks.peers import learning, training

    if case == POLICY:
        batch = tuple(torch.as_tensor(x) for x in learning.batch(64))
        module, loss = learning._module(64), learning.torch_loss
    else:
        module, loss, batch = training.task_of(case)
    start = time.perf_counter()
    tw.compile_step(module, loss, tw.train.Adam(3e-4), batch, clip=0.5)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(seconds(sys.argv[1]))
