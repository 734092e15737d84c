"""Tests that say nothing about another machine, with the reason."""

from __future__ import annotations

UNFIT: dict[str, str] = {}
"""By the beginning of a test's name."""


def reason(name: str, target: str) -> str | None:
    """Why a test is left out on a target, or None."""
    return next((why for begin, why in UNFIT.items() if name.startswith(begin)), None)
