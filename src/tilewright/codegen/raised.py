"""Errors of Python functions that native code calls: held until the call that the code belongs to is left."""

from __future__ import annotations

import threading

_raised = threading.local()
"""The first error of the call that this thread makes."""


def is_pending() -> bool:
    """Whether a Python function has raised in the call that this thread makes."""
    return getattr(_raised, "error", None) is not None


def keep(error: BaseException) -> None:
    """Keep what a Python function raised; native code goes on meanwhile."""
    _raised.error = error


def raise_pending() -> None:
    """Raise what a Python function raised in a call that this thread has made."""
    error: BaseException | None = getattr(_raised, "error", None)
    if error is not None:
        _raised.error = None
        raise error
