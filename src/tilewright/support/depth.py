"""Raises Python's recursion limit for deep expressions: a chain of sixteen hyperbolic tangents in one kernel is 250
operations deep."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FRAMES = 10_000
"""The recursion limit, three times what the deepest fused kernel needs. Python calls do not use C's stack."""

_lock = threading.Lock()
_inside = 0
_before = 0


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Within the context, the recursion limit is FRAMES; the last thread that leaves restores the old limit."""
    global _inside, _before
    with _lock:
        if not _inside:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_before, FRAMES))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and sys.getrecursionlimit() == max(_before, FRAMES):  # nothing else has set it since
                sys.setrecursionlimit(_before)


__all__ = ["deep_recursion"]
