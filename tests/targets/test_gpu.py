"""GPUs: how many blocks a multiprocessor holds, against NVIDIA's occupancy calculator, and the targets."""

from __future__ import annotations

import pytest

from tilewright.targets.nvidia import A100, H100
from tilewright.targets.target import Target


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 32, 0, 8),  # threads
        (256, 64, 0, 4),  # registers
        (256, 65, 0, 3),  # 72 for each thread are given
        (128, 255, 0, 2),
        (32, 16, 0, 32),  # blocks
        (128, 32, 64 << 10, 3),  # shared memory: 227 KB, and one for each block
        (1024, 65, 0, 0),
        (2048, 16, 0, 0),
        (128, 32, 228 << 10, 0),
    ],
)
def test_blocks_of_a_multiprocessor(threads: int, registers: int, shared: int, blocks: int) -> None:
    assert H100.blocks(threads, registers, shared) == blocks


def test_targets_say_which_gpu() -> None:
    for name, gpu in (("nvidia-sm_80", A100), ("nvidia-sm_90", H100)):
        target = Target.parse(name)
        assert target.gpu is gpu and target.cpu == gpu.cpu and target.cores == gpu.multiprocessors
    assert Target.parse("x86-64-v3").gpu is None
