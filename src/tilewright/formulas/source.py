"""Where a piece of a comprehension stands in its text, and errors that point at it with a caret."""

from __future__ import annotations

from typing import Any, NoReturn

from tilewright.support.classes import dataclass
from tilewright.support.errors import ComprehensionError

At = tuple[int, int]
"""A piece of a text: the offset of its first character, and that after its last."""

NOWHERE: At = (0, 0)
"""The place of a node that is not from a text."""

_WIDEST = 200
"""The largest number of characters that an error shows of a line."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text, with the name and first line that errors say."""

    text: str
    name: str = "comprehension"
    line: int = 1

    def place(self, at: At) -> str:
        """The place of a piece as `name:line:column`, the column counted from 1."""
        start = self.text.rfind("\n", 0, at[0]) + 1
        return f"{self.name}:{self.line + self.text.count(chr(10), 0, at[0])}:{at[0] - start + 1}"

    def excerpt(self, at: At) -> str:
        """The line in which a piece is, and a second line that marks the piece with carets."""
        start = self.text.rfind("\n", 0, at[0]) + 1
        end = self.text.find("\n", at[0])
        line = self.text[start : end if end >= 0 else len(self.text)]
        first = max(0, at[0] - start - _WIDEST // 2)
        shown = line[first : first + _WIDEST]
        indent = "".join("\t" if c == "\t" else " " for c in shown[: at[0] - start - first])
        marked = max(1, min(at[1], start + len(line)) - at[0])
        return f"    {shown}\n    {indent}{'^' * min(marked, _WIDEST)}"

    def error(self, what: str, at: At, **details: Any) -> ComprehensionError:
        """A ComprehensionError with the message `what`, about the piece `at` of the text."""
        return ComprehensionError(what, excerpt=self.excerpt(at), where=self.place(at), **details)

    def fail(self, what: str, at: At, **details: Any) -> NoReturn:
        """Raise a ComprehensionError with the message `what`, about the piece `at` of the text."""
        raise self.error(what, at, **details)
