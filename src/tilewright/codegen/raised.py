"""Errors of Python functions that native code calls: they are held until that call returns."""

from __future__ import annotations

import threading

_raised = threading.local()
"""The first error in the current call of this thread."""


def is_pending() -> bool:
    """Whether a Python function has raised an error in the current call of this thread."""
    return getattr(_raised, "error", None) is not None


def keep(error: BaseException) -> None:
    """Hold an error that a Python function raised; native code continues meanwhile."""
    _raised.error = error


def raise_pending() -> None:
    """Raise the error of a Python function in a call that this thread has made, if there is one."""
    error: BaseException | None = getattr(_raised, "error", None)
    if error is not None:
        _raised.error = None
        raise error
