"""A control page: whose it is and of which version, and what it says of a reader."""

from __future__ import annotations

import pytest

from tilewright.runtime.weights.control import Control
from tilewright.support.errors import StoreError

PROGRAM = bytes(range(16))


def page() -> Control:
    control = Control.private()
    control.initialize(640, PROGRAM)
    return control


def test_a_page_of_its_program() -> None:
    page().check(640, PROGRAM, "store")


MESSAGES = ["damaged or not one", "made by another version", *["does not belong"] * 5]


@pytest.mark.parametrize(("word", "message"), list(enumerate(MESSAGES)))
def test_every_word_of_its_head_counts(word: int, message: str) -> None:
    control = page()
    control.words[word] += 1
    with pytest.raises(StoreError, match=message):
        control.check(640, PROGRAM, "store")


def test_another_size_or_program() -> None:
    for nbytes, program in ((648, PROGRAM), (640, bytes(16))):
        with pytest.raises(StoreError, match="does not belong"):
            page().check(nbytes, program, "store")
