"""How often each refused word may stand in each file: `counts.txt`, which only goes down.

A line is a file, and its words with their counts. A count above its limit is refused, and so is a limit above its
count, so that the file says how far the work is. `--update` lowers the limits, and takes a file's line along when the
file is moved to another name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.words import rules

PATH = Path(__file__).parent / "counts.txt"

Ledger = Mapping[str, Mapping[str, int]]
"""Counts by file, then by word."""


def measured() -> dict[str, Counter[str]]:
    """The counts of the tree."""
    return {str(path.relative_to(rules.ROOT)): counts for path in rules.files() if (counts := rules.counts(path))}


def parsed(text: str) -> dict[str, dict[str, int]]:
    """A ledger from its text; lines of a merge conflict are passed over, the last line of a file holds."""
    ledger: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        file, colon, entries = line.partition(": ")
        if colon and not file.startswith(("<", "=", ">", "|")):
            pairs = (entry.rpartition(" ") for entry in entries.split(", "))
            ledger[file] = {word: int(count) for word, _, count in pairs}
    return ledger


def printed(ledger: Ledger) -> str:
    """The text of a ledger, in the order of names."""
    return "".join(
        f"{file}: {', '.join(f'{word} {ledger[file][word]}' for word in sorted(ledger[file]))}\n"
        for file in sorted(ledger)
        if ledger[file]
    )


def risen(allowed: Ledger, now: Ledger) -> list[tuple[str, str, int, int]]:
    """The words that stand more often than is allowed: file, word, allowed, now. A file that was moved has the limits
    of its old name."""
    limits = {**allowed, **moved(allowed, now)}
    return [
        (file, word, limit, count)
        for file in sorted(now)
        for word, count in sorted(now[file].items())
        if count > (limit := limits.get(file, {}).get(word, 0))
    ]


def moved(allowed: Ledger, now: Ledger) -> dict[str, Mapping[str, int]]:
    """Limits of the files without a line that take the place of a file that is gone: the one whose counts are
    nearest."""
    fresh = [file for file in now if file not in allowed]
    gone = [file for file in allowed if file not in now and not (rules.ROOT / file).exists()]
    pairs = sorted((_distance(allowed[old], now[new]), old, new) for old in gone for new in fresh)
    names: dict[str, str] = {}
    for _, old, new in pairs:
        if new not in names and old not in names.values():
            names[new] = old
    return {new: allowed[old] for new, old in names.items()}


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> int:
    return sum(abs(one.get(word, 0) - other.get(word, 0)) for word in {*one, *other})


def lowered(allowed: Ledger, now: Ledger) -> dict[str, dict[str, int]]:
    """The ledger of the tree, but for what has risen: that keeps its limit."""
    limits = {(file, word): limit for file, word, limit, _ in risen(allowed, now)}
    return {
        file: {word: limit for word, count in words.items() if (limit := limits.get((file, word), count))}
        for file, words in now.items()
    }


def complaints(allowed: Ledger, now: Ledger) -> list[str]:
    """What is wrong, a line each: words that were added, with their lines, and limits that could be lower."""
    lines = [
        f"{file}: {word!r} stands {count} times, allowed {limit}: lines {_lines(file, word)}; "
        "docs/glossary.md says what to write"
        for file, word, limit, count in risen(allowed, now)
    ]
    if lowered(allowed, now) != allowed:
        loose = sum(sum(words.values()) for words in allowed.values()) - sum(sum(w.values()) for w in now.values())
        lines.append(f"tests/words/counts.txt can be lowered ({loose} in all): python -m tests.words --update")
    return lines


def _lines(file: str, word: str) -> str:
    path = rules.ROOT / file
    text = path.read_text() if path.exists() else ""
    return ", ".join(str(text.count("\n", 0, at) + 1) for other, at in rules.words(path, text) if other == word)
