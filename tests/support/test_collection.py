"""The pause of the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from tilewright.support.collection import importing, uncollected, without_collection


def test_it_is_off_inside_and_on_after() -> None:
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_turns_it_on_once_more() -> None:
    with pytest.raises(KeyError), without_collection():
        raise KeyError
    assert gc.isenabled()


def test_a_process_without_it_stays_without() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_function_without_it_is_no_line_of_a_user() -> None:
    @uncollected
    def inside(a: int, *, b: int) -> tuple[bool, int, str | None]:
        frame = sys._getframe(1)
        return gc.isenabled(), a + b, str(frame.f_globals["__name__"])

    assert inside(1, b=2) == (False, 3, "tilewright.support.collection")
    assert gc.isenabled() and inside.__name__ == "inside"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="faults of pages are counted by Linux")
def test_calls_at_any_depth_need_no_new_memory() -> None:
    import resource

    def leaf() -> int:
        return 1

    def calls(depth: int) -> int:
        return calls(depth - 1) if depth else sum(leaf() for _ in range(100))

    @uncollected
    def faults() -> int:
        calls(400)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for depth in range(400):  # longer than a chunk of frames, so that one of them ends at its end
            calls(depth)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    assert faults() < 50


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Nothing is frozen, though the test suite freezes what it has imported."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_an_import_creates_is_old_at_once_and_not_frozen(unfrozen: None) -> None:
    with importing():
        assert not gc.isenabled()
        created: list[object] = [[]]
    assert gc.isenabled() and not gc.get_freeze_count()
    assert any(o is created for o in gc.get_objects(generation=2))


def test_what_a_caller_has_frozen_stays_frozen(unfrozen: None) -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with importing():
        created: list[object] = [[]]
    assert frozen - 10 < gc.get_freeze_count() <= frozen
    assert any(o is created for o in gc.get_objects(generation=0))
