"""Many more random programs of the whole language than `make test` tries, each in C too: see
`tests/schedule/test_language.py`."""

from __future__ import annotations

import os

import pytest

from tests.schedule.test_language import CHUNK, check_chunk

CASES = int(os.environ.get("TILEWRIGHT_LANGUAGE_CASES", "20000")) if os.environ.get("TILEWRIGHT_FUZZ") else 0
FIRST = 1_000_000
"""Seeds from here on, which `make test` does not see."""


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, CHUNK))
def test_random_programs_of_the_whole_language(first: int) -> None:
    check_chunk(range(first, min(first + CHUNK, FIRST + CASES)), every=1)
