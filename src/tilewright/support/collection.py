"""Disables the cyclic garbage collector during compiles.

A compile makes millions of small objects that live until its end and hold few cycles. Traversing them repeatedly took a
tenth of the compile of a large network and a third of that of a small one. Reference counts free the rest as before.

CPython has a thread's frames in chunks of 16 KiB, which it maps when a call needs one and unmaps when that call
returns. A compile that recurses around a chunk's end did so for thousands of calls, each a few microseconds. So its
first frame asks for so much room that those of all others fit into the same chunk.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import CodeType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_FRAME = 1 << 16
"""The words of the first frame of a compile. CPython maps the next power of two, so that half of it is left for other
frames: some 2000. Pages that no frame is on are never touched."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Within the context, the collector is off; afterwards the process has its own setting again.

    Contexts may be nested, and active in several threads at once: the one that turned the collector off turns it on
    again.
    """
    result = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if result:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Imports within the context run `without_collection`; the collector's oldest generation has what they created.

    Modules and classes live as long as the process. The collection after the import took 15 % of its time and freed
    little.
    """
    with without_collection():
        yield
        if not gc.get_freeze_count():  # else the caller's frozen objects would be unfrozen, too
            gc.freeze()
            gc.unfreeze()


def uncollected(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator that runs a function `without_collection`, and in one chunk of frames. It adds a stack frame of this
    file only, not of the standard library, which errors would report as the user's line."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with without_collection():
            return function(*args, **kwargs)

    code: CodeType = run.__code__  # type: ignore[attr-defined]  # it is a function
    run.__code__ = code.replace(co_stacksize=_FRAME)  # type: ignore[attr-defined]
    return run
