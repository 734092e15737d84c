"""The words that the repository does not use, and a scanner that counts them in its files.

`docs/glossary.md` says what to write instead of each. One regular expression finds the strings and comments of a Python
file; what lies between is code, whose names are read. A string is prose if it is a docstring, or a message or help text
of `src/`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

EVERYWHERE = (
    *("plain", "apart", "nobody", "somebody", "whoever", "behind", "guest", "guests", "lodging", "strand"),
    *("strands", "patience", "brought", "settle", "settles", "settled", "judge", "judges", "judged", "cold"),
)
"""Words that neither a part of a name nor prose may be."""

IN_NAMES = (
    *(
        "found",
        "few",
        "many",
        "far",
        "late",
        "made",
        "given",
        "kept",
        "taken",
        "turned",
        "around",
        "near",
        "again",
        "ahead",
    ),
    *("halves", "face", "withdraw", "admit"),
)
"""Words that no part of a name may be; in prose they are ordinary English."""

OF_CONSTANTS = ("MOST", "LEAST")
"""Words with which no name of a constant begins: it is MAX_ or MIN_."""

OPENINGS = (
    *("The same", "That", "Those", "These", "It", "They", "Them", "Its", "Their", "What", "Which", "Who", "Whose"),
    *("Such", "So", "And", "But", "Or", "As", "Else", "Likewise", "Of", "There"),
)
"""Words with which no docstring begins: it would lean on the docstring before it, or not say what the thing is."""

PHRASES = re.compile(r"[Ww]ay\s+(?:back|forward)\b")
"""Phrases that prose does not have."""

ORDINARY = re.compile(r"[Aa]part from|(?:bytes|elements|lines|steps|rows) apart|[Cc]old (?:cache|start|compile)s?")
"""Phrases in which a refused word has its ordinary meaning."""

FOREIGN = frozenset(
    (
        *("FileNotFoundError", "ModuleNotFoundError", "PackageNotFoundError", "NOT_FOUND", "connection_made"),
        *("kept_var_idx", "module_kept_var_idx"),
    )
)
"""Names of others that have a refused word in them."""

OF_HYPOTHESIS = re.compile(r"from hypothesis import [^\n]*|@given\b")
"""The decorator of property tests, as its library calls it."""

_LITERAL = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
    r"|\#[^\n]*",
    re.DOTALL,
)
_NAME = re.compile(r"\w+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORD = re.compile(r"[A-Za-z]+")
_OPENING = re.compile(rf'"""(?:{"|".join(OPENINGS)})\b')
_PROSE = frozenset((*EVERYWHERE, *(word.capitalize() for word in EVERYWHERE)))
_PARTS = frozenset((*EVERYWHERE, *IN_NAMES))


def files() -> list[Path]:
    """The files that are read: Python, the documents and the README. Tables of results stay as they were measured."""
    python = [path for room in ("src", "tests", "benchmarks", "examples") for path in (ROOT / room).rglob("*.py")]
    documents = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md"]
    return sorted(path for path in (*python, *documents, ROOT / "README.md") if path.parent != Path(__file__).parent)


def counts(path: Path) -> Counter[str]:
    """How often each refused word stands in a file."""
    return Counter(word for word, _ in words(path, path.read_text()))


def words(path: Path, text: str) -> Iterator[tuple[str, int]]:
    """The refused words of a file with this text, each with its offset. An opening of a docstring has dots after it."""
    if path.suffix != ".py":
        yield from _of_prose(text, 0, len(text))
        return
    messages = ROOT / "src" in path.parents
    end = 0
    for literal in _LITERAL.finditer(text):
        yield from _of_code(text, end, literal.start())
        start, end = literal.span()
        if text[start] == "#" or text.startswith('"""', start) or (messages and text.count(" ", start, end) > 2):
            yield from _of_prose(text, start, end)
        if (opening := _OPENING.match(text, start)) and not text[text.rfind("\n", 0, start) + 1 : start].strip(" r"):
            yield f"{opening[0][3:]} ...", start
    yield from _of_code(text, end, len(text))


def _of_code(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    foreign: list[re.Match[str]] | None = None
    for name in _NAME.finditer(text, start, end):
        if refused := _of_name(name[0]):
            if name[0] == "given":
                foreign = list(OF_HYPOTHESIS.finditer(text)) if foreign is None else foreign
                if any(phrase.start() <= name.start() < phrase.end() for phrase in foreign):
                    continue
            yield from ((word, name.start()) for word in refused)


@cache
def _of_name(name: str) -> tuple[str, ...]:
    if name in FOREIGN:
        return ()
    parts = _PART.findall(name)
    first = (f"{parts[0]}_",) if name.isupper() and parts[0] in OF_CONSTANTS else ()
    return (*first, *(part.lower() for part in parts if part.lower() in _PARTS))


def _of_prose(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    for word in _WORD.finditer(text, start, end):
        if word[0] in _PROSE:
            phrases = ORDINARY.finditer(text, start, end)
            if not any(phrase.start() <= word.start() < phrase.end() for phrase in phrases):
                yield word[0].lower(), word.start()
    for phrase in PHRASES.finditer(text, start, end):
        yield " ".join(phrase[0].lower().split()), phrase.start()
