"""Mutants of real programs' texts: each is refused with a ParseError, or read, and then prints and parses to itself."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from tests.ir.test_text import read_graph
from tilewright.ir.key import key
from tilewright.ir.parser import parse_func
from tilewright.ir.verify import verify_func, verify_graph
from tilewright.support.errors import ParseError, VerifyError

GOLDEN = Path(__file__).resolve().parents[1]
COUNT = 20_000 if os.environ.get("TILEWRIGHT_FUZZ") else 300
TOKEN = re.compile(r"\s+|[A-Za-z_0-9.]+|\"[^\"]*\"|.", re.DOTALL)


def seeds(start: str) -> list[str]:
    """The golden texts that are whole programs."""
    texts = [path.read_text() for path in sorted(GOLDEN.glob("**/golden/**/*.txt"))]
    return [text for text in texts if text.startswith(start)]


def mutant(rng: random.Random, texts: list[str]) -> str:
    """A text with a few of its tokens removed, doubled, swapped, or taken from another text."""
    tokens = TOKEN.findall(rng.choice(texts)[:4000])
    donor = TOKEN.findall(rng.choice(texts)[:4000])
    for _ in range(rng.randint(1, 4)):
        i, j = rng.randrange(len(tokens)), rng.randrange(len(tokens))
        match rng.randrange(5):
            case 0:
                del tokens[i : i + rng.randint(1, 3)]
            case 1:
                tokens.insert(i, tokens[j])
            case 2:
                tokens[i], tokens[j] = tokens[j], tokens[i]
            case 3:
                tokens[i] = rng.choice(donor)
            case 4:
                tokens[i] = rng.choice(
                    ["0", "-1", "9" * 30, "1e400", "nan", "(", "]", '"', "\0", "i32", "select", "true"]
                )
        if not tokens:
            break
    return "".join(tokens)


@pytest.mark.parametrize(
    ("start", "parse", "verify"), [("func", parse_func, verify_func), ("graph", read_graph, verify_graph)]
)
def test_mutants(start: str, parse: object, verify: object) -> None:
    texts = seeds(start)
    assert texts
    rng = random.Random(0)
    read = 0
    for _ in range(COUNT):
        text = mutant(rng, texts)
        try:
            program = parse(text)  # type: ignore[operator]
        except ParseError:
            continue
        read += 1
        assert parse(str(program)) == program  # type: ignore[operator]
        try:
            verify(program)  # type: ignore[operator]
        except VerifyError:
            continue
        assert len(key(program)) == 32
    assert read
