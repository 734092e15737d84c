"""Texts of programs that this machine may not be able to load."""

from __future__ import annotations

from tilewright.runtime.program import Program


def shown(program: Program, what: str) -> str:
    """The text that `Model.show` prints of a program, which is not loaded."""
    text = program.texts[what]
    return text() if callable(text) else text
