"""The scanner of refused words, and the ledger that only goes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.words import ledger, rules


def refused(text: str, path: str = "src/tilewright/example.py") -> list[str]:
    return [word for word, _ in rules.words(rules.ROOT / path, text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("found = 1", ["found"]),
        ("FOUND_HERE = 1", ["found"]),
        ("foundation = profound = 1", []),
        ("class PlainLayout: ...", ["plain"]),
        ("MOST_ROWS = 4", ["MOST_"]),
        ("ROWS_MOST = most = 4", []),
        ("few_rows = far", ["few", "far"]),
        ("# few of them lie behind it", ["behind"]),
        ("x = 'far behind'", []),
        ("x = 'a message that stands behind'", ["behind"]),
        ('def f():\n    """Nobody reads it."""', ["nobody"]),
        ('def f():\n    """The way\n    back, or the way it goes."""', ["way back"]),
        ('def f():\n    """The same of rows."""', ["The same ..."]),
        ('x = """The same of rows."""', []),
        ('def f():\n    """Rows that lie 64 bytes apart, apart from the last."""', []),
        ("x = '#'; plain = 2", ["plain"]),
        ("from hypothesis import given, settings\n@given(x)\ndef f(given): ...", ["given"]),
        ("x = 'it\\'s \"'; plain = 2", ["plain"]),
        ('x = """a "quote" \\""" plain"""; plain = 2', ["plain", "plain"]),
    ],
)
def test_words_of_python(text: str, words: list[str]) -> None:
    assert refused(text) == words


def test_strings_of_tests_are_no_prose() -> None:
    assert refused("x = 'a text that stands behind'", "tests/example.py") == []


def test_words_of_documents() -> None:
    assert refused("What lies behind is found apart.", "docs/example.md") == ["behind", "apart"]


def test_each_word_stands_in_the_glossary() -> None:
    words = (rules.ROOT / "docs/glossary.md").read_text().partition("## Words not to use")[2]
    forms = {"guests", "strands", "settles", "settled", "judges", "judged"}
    assert [w for w in (*rules.EVERYWHERE, *rules.IN_NAMES) if w not in forms and w not in words] == []


HERE, OTHER = str(Path(__file__).relative_to(rules.ROOT)), "docs/glossary.md"


def test_a_word_more_is_refused() -> None:
    allowed, now = {HERE: {"found": 2}}, {HERE: {"found": 3}}
    assert ledger.risen(allowed, now) == [(HERE, "found", 2, 3)]
    assert ledger.lowered(allowed, now) == allowed
    assert len(ledger.complaints(allowed, now)) == 1


def test_a_new_file_has_no_words() -> None:
    assert ledger.risen({}, {HERE: {"found": 1}}) == [(HERE, "found", 0, 1)]


def test_a_limit_that_could_be_lower_is_refused_until_updated() -> None:
    allowed, now = {HERE: {"found": 2}, OTHER: {"plain": 1}}, {HERE: {"found": 1}}
    assert ledger.complaints(allowed, now) == [
        "tests/words/counts.txt can be lowered (2 in all): python -m tests.words --update"
    ]
    assert ledger.lowered(allowed, now) == now


def test_a_moved_file_takes_its_line_along() -> None:
    allowed, now = {"src/gone.py": {"found": 2}}, {HERE: {"found": 9}, OTHER: {"found": 3, "plain": 1}}
    assert ledger.moved(allowed, now) == {OTHER: {"found": 2}}
    assert ledger.risen(allowed, now) == [(OTHER, "found", 2, 3), (OTHER, "plain", 0, 1), (HERE, "found", 0, 9)]
    assert ledger.lowered(allowed, {HERE: {"found": 1}}) == {HERE: {"found": 1}}


def test_round_trip_and_lines_of_a_merge() -> None:
    counts = {"a.py": {"The same ...": 1, "found": 12}, "b.md": {"plain": 1}}
    assert ledger.parsed(ledger.printed(counts)) == counts
    text = "<<<<<<< HEAD: x\na.py: found 12\n=======\na.py: found 11\n>>>>>>> 0123: y\n"
    assert ledger.parsed(text) == {"a.py": {"found": 11}}
