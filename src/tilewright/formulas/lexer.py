"""Splits the text of a comprehension into tokens. Texts are of any origin: their length and nesting are bounded."""

from __future__ import annotations

import re
from typing import Literal

from tilewright.formulas.source import At, Source
from tilewright.support.classes import dataclass

MAX_LENGTH = 1 << 16
"""The largest number of characters of a text."""
MAX_TOKENS = 8192
"""The largest number of tokens of a text."""

Kind = Literal["number", "name", "assign", "sign", "newline", "end"]

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n|;)
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<assign>(?:\+|\*|(?:sum|prod|max|min|any|all|argmax|argmin)\b)!(?!=)|[-+*/]=!?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>->|\*\*|//|==|!=|<=|>=|[-+*/%<>()\[\],:=.])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its `kind`, its text, and its offsets in the source."""

    kind: Kind
    text: str
    at: At

    def __str__(self) -> str:
        match self.kind:
            case "end":
                return "the end of the text"
            case "newline":
                return "the end of the statement"
        return repr(self.text[:40])


def tokens_of(source: Source) -> list[Token]:
    """All tokens of a text, with an end token after them; line ends inside of parentheses and brackets are skipped."""
    text = source.text
    if len(text) > MAX_LENGTH:
        source.fail("the text is too long", (0, 1), expected=f"at most {MAX_LENGTH} characters", got=len(text))
    tokens: list[Token] = []
    at = depth = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            source.fail(f"unexpected character {text[at]!r}", (at, at + 1))
        token = Token(match.lastgroup, match.group(), match.span())  # type: ignore[arg-type]
        at = match.end()
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
        if match.lastgroup != "space" and not (token.kind == "newline" and token.text == "\n" and depth > 0):
            tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            source.fail("the text has too many words", token.at, expected=f"at most {MAX_TOKENS}")
    tokens.append(Token("end", "", (len(text), len(text))))
    return tokens
