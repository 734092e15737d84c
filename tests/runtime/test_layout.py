"""Memory of the runtime."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.layout import HUGE_PAGE, aligned_bytes


@pytest.mark.parametrize("nbytes", [0, 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_memory_is_aligned_and_writable(nbytes: int) -> None:
    memory = aligned_bytes(nbytes)
    assert memory.nbytes == max(nbytes, 64)
    assert memory.ctypes.data % (HUGE_PAGE if nbytes >= HUGE_PAGE else 64) == 0
    memory[:] = 7
    assert (memory == 7).all()


def test_large_memory_asks_for_huge_pages() -> None:
    """Whatever allocator the process has, and only as far as pages are filled."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        pytest.skip("a system without huge pages")
    memory = aligned_bytes(2 * HUGE_PAGE + 4096)
    assert "hg" in flags_of(memory.ctypes.data)
    assert "hg" not in flags_of(memory.ctypes.data + 2 * HUGE_PAGE)


def flags_of(address: int) -> list[str]:
    """The kernel's flags of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            first, last = (int(part, 16) for part in name.split("-"))
            inside = first <= address < last
        elif inside and name == "VmFlags:":
            return rest
    raise AssertionError("no mapping there")


def test_more_than_there_can_be_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        aligned_bytes(1 << 60)


def test_memory_lives_as_long_as_a_view() -> None:
    view = aligned_bytes(2 * HUGE_PAGE)[100:].view(np.float32)[5:]
    view[:] = 1.0
    assert view.sum() == view.size
