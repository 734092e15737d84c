"""Room for expressions that are deeper than Python lets functions call each other: a chain of sixteen hyperbolic
tangents in one kernel is 250 operations deep."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FRAMES = 10_000
"""Calls inside each other: of the deepest kernel that fusing makes a third. None of them takes C's stack."""

_lock = threading.Lock()
_inside = 0
_before = 0


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Let functions call each other FRAMES deep inside; the last thread that leaves gives the limit of before back."""
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
