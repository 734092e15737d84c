"""The checksum of memory: whatever one word changes, it is seen."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.layout import aligned_bytes
from tilewright.runtime.native import native


def test_each_flipped_bit_changes_the_checksum() -> None:
    memory = aligned_bytes(5 * 64)
    memory[:] = np.random.default_rng(0).integers(0, 256, memory.nbytes, np.uint8)
    before = native().checksum(memory.ctypes.data, memory.nbytes)
    for place in range(memory.nbytes):
        for bit in range(8):
            memory[place] ^= 1 << bit
            assert native().checksum(memory.ctypes.data, memory.nbytes) != before, (place, bit)
            memory[place] ^= 1 << bit
    assert native().checksum(memory.ctypes.data, memory.nbytes) == before


def test_two_signs_side_by_side_change_the_checksum() -> None:
    memory = aligned_bytes(6 * 64)
    words = memory.view(np.uint64)
    words[:] = np.random.default_rng(0).integers(0, 1 << 63, len(words), np.uint64)
    before = native().checksum(memory.ctypes.data, memory.nbytes)
    for first in range(len(words)):
        for second in range(first + 1, first // 8 * 8 + 8):
            words[[first, second]] ^= np.uint64(1 << 63)
            assert native().checksum(memory.ctypes.data, memory.nbytes) != before, (first, second)
            words[[first, second]] ^= np.uint64(1 << 63)
