"""A control page: whose it is and of which version, and what it says of a reader."""

from __future__ import annotations

import time

import pytest

from tilewright.runtime.layout import Memory
from tilewright.runtime.weights.control import NONE, READER, SEALED, SLOTS, Control, ReaderState, control_nbytes
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


def of_three_readers() -> Control:
    control = Control(Memory(control_nbytes(3)).words, 3)
    control.initialize(640, PROGRAM)
    return control


def pin(control: Control, reader: int, slot: int, count: int) -> None:
    control.words[(control.reader_address(reader) - control.address + READER.pins + 8 * slot) >> 3] = count


def test_a_reader_is_what_its_line_says() -> None:
    control = of_three_readers()
    for index in range(3):
        line = (control.reader_address(index) - control.address) >> 3
        control.words[line : line + (READER.size >> 3)] = -7  # what a dead one left
    before = time.monotonic()
    for index in range(3):
        control.enter(index, 70 + index)
    for index in range(3):
        result = control.reader(index)
        assert result == ReaderState(index, 70 + index, result.since, 0, 0, ())
        assert before - 1e-6 <= result.since <= time.monotonic() + 1e-6
    pin(control, 1, 0, 1)
    pin(control, 1, 5, 2)
    assert [control.reader(k).pins for k in range(3)] == [(), (0, 5), ()]
    control.forget_pins(1)
    assert control.reader(1).pins == ()
    control.check(640, PROGRAM, "store")


def test_a_slot_is_selected_unless_it_is_current_or_a_living_reader_pins_it() -> None:
    control = of_three_readers()
    for slot in range(SLOTS):
        for reader in range(3):
            pin(control, reader, slot, 1)
            assert not control.seize(slot, lambda k: True)
            assert not control.seize(slot, lambda k, reader=reader: k == reader)
            assert control.seize((slot + 1) % SLOTS, lambda k: True)
            pin(control, 0, slot, 1)  # a dead one besides
            assert control.seize(slot, lambda k, reader=reader: k == reader) is False
            assert control.seize(slot, lambda k: False)
            pin(control, 0, slot, 0)
            pin(control, reader, slot, 0)
    control.flip(2)
    assert not control.seize(2, lambda k: True)
    assert control.take([2, 6, 1], lambda k: True, 0.0) == 6


def test_who_holds_all_slots_is_named() -> None:
    control = of_three_readers()
    for index in range(3):
        control.enter(index, 70 + index)
    for slot in range(SLOTS):
        pin(control, (slot % 2) * 2, slot, 1)
    with pytest.raises(StoreError, match=r"made by processes \[70, 72\]"):
        control.take(range(SLOTS), lambda k: True, 0.0)
    assert control.take(range(SLOTS), lambda k: k != 2, 0.0) == 1
    control.flip(3)
    with pytest.raises(StoreError, match=r"made by processes \[70\]"):
        control.take([3, 2], lambda k: True, 0.0)


def test_the_newest_version_is_the_one_that_was_flipped_to() -> None:
    control = of_three_readers()
    assert (control.current, control.version, control.newest()) == (NONE, None, None)
    for slot, version in ((0, 4), (SLOTS - 1, 5)):
        control.seal(slot, version, spent=0.25)
        control.flip(slot)
        result = control.newest()
        assert result is not None
        assert (result.index, result.state, result.version, result.spent) == (slot, SEALED, version, 0.25)
        assert control.version == version
        control.set_checksum(result, 99)
        assert control.slot(slot).checksum == 99
        control.set_checksum(result, 98)
        assert control.slot(slot).checksum == 99, "it is another state now"
    assert control.slot(0).version == 4


@pytest.mark.parametrize("change", ["flip", "seal"])
def test_the_newest_version_is_read_whole(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A publisher that comes between two words, or between the slot's number and its words: they are read again."""
    control = page()
    control.seal(0, 1)
    control.seal(1, 2)
    control.flip(0)
    words, reads = Control._slot_words, list[int]()

    def meanwhile(self: Control, index: int) -> list[int]:
        result = words(self, index)
        reads.append(index)
        if len(reads) == 1:
            if change == "flip":
                control.flip(1)
            else:
                control.seal(0, 3)
        return result

    monkeypatch.setattr(Control, "_slot_words", meanwhile)
    result = control.newest()
    assert result is not None
    assert (result.index, result.version) == ((1, 2) if change == "flip" else (0, 3))
