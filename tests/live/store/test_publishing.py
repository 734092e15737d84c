"""Publishing: what is refused leaves everything as it was; rollbacks by force; two publishers; waiting."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.runtime.programs import affine, affine_reference
from tilewright.live import store as weights
from tilewright.live.store import sums
from tilewright.runtime.model import Model
from tilewright.support.errors import StoreError

X = np.linspace(-1, 1, 20, dtype=np.float32)
NAME = "affine"


def numbers(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full((2, 3), value, np.float32), "scale": np.array([value], np.float32)}


REFUSED = [
    ({}, "is missing"),
    ({"w": np.zeros((2, 3), np.float32)}, "'scale'"),
    ({**numbers(1), "nobody": np.zeros(1, np.float32)}, "nobody"),
    ({**numbers(1), "w": np.zeros((3, 2), np.float32)}, "wrong shape or type"),
    ({**numbers(1), "w": np.zeros((2, 3), np.float64)}, "wrong shape or type"),
    ({**numbers(1), "w": np.full((2, 3), np.nan, np.float32)}, "NaN or infinity"),
    ({**numbers(1), "scale": np.array([np.inf], np.float32)}, "NaN or infinity"),
    ({**numbers(1), "w": None}, "not an array"),
    ({**numbers(1), "w": "text"}, "not an array"),
    ([1, 2], "not a mapping"),
    (None, "not a mapping"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused_and_nothing_changed(store: Path, value: object, message: str) -> None:
    with tw.Publisher(NAME, Model(affine())) as publisher:
        publisher.publish(numbers(5), version=5)
        with tw.attach(NAME) as actor:
            before = [a.copy() for a in actor(X)]
            info = weights.info(NAME)
            with pytest.raises(tw.errors.WeightError) as caught:
                publisher.publish(value)  # type: ignore[arg-type]
            assert message in str(caught.value)
            assert publisher.version == actor.version == 5
            assert weights.info(NAME) == info or weights.info(NAME).version == 5
            assert all((a == b).all() for a, b in zip(actor(X), before, strict=True))
            assert publisher.publish(numbers(6)) == 6
            assert actor(X)[1][0] == 6


@pytest.mark.parametrize("version", [5, 4, 0, -1, True, 6.0, "6", 1 << 63, 1 << 80, None])
def test_versions_that_do_not_grow(store: Path, version: object) -> None:
    with tw.Publisher(NAME, Model(affine())) as publisher:
        publisher.publish(numbers(5), version=5)
        if version is None:
            assert publisher.publish(numbers(6)) == 6
            return
        with pytest.raises(tw.errors.WeightError, match="version"):
            publisher.publish(numbers(6), version=version)  # type: ignore[arg-type]
        assert publisher.version == 5
        with tw.attach(NAME) as actor:
            assert actor(X)[1][0] == 5
        # By force it may go back, but it must be a version at all.
        if version in (4, 0) and version is not False:
            assert publisher.publish(numbers(9), version=version, force=True) == version  # type: ignore[arg-type]
            assert tw.attach(NAME).version == version
        elif version != 5:
            with pytest.raises(tw.errors.WeightError, match="version"):
                publisher.publish(numbers(6), version=version, force=True)  # type: ignore[arg-type]


def test_rollback_for_self_play(store: Path) -> None:
    """Versions go back by force; actors follow at once, and versions grow from there again."""
    with tw.Publisher(NAME, Model(affine())) as publisher, tw.attach(NAME) as actor:
        for version in (3, 9, 27):
            publisher.publish(numbers(version), version=version)
        assert publisher.publish(numbers(3), version=3, force=True) == 3
        outputs, version = actor.versioned(X)
        assert version == actor.version == publisher.version == 3
        assert outputs[1][0] == 3
        assert publisher.publish(numbers(4)) == 4
        assert publisher.publish(numbers(4), version=4, force=True) == 4, "the same once more"
        assert actor(X)[1][0] == 4
        # An actor that waits for 27 waits for 27 again.
        assert not actor.wait(version=27, timeout=0.02)


def test_the_next_version_is_waited_for(store: Path) -> None:
    """Without a number it is the one after the present one, which is enough; the present one is not."""
    with tw.Publisher(NAME, Model(affine())) as publisher, tw.attach(NAME) as actor:
        for version in (3, 4):
            later = threading.Timer(0.05, publisher.publish, (numbers(version),), {"version": version})
            later.start()
            assert actor.wait(timeout=20) and actor.version == version
            later.join()
        assert not actor.wait(timeout=0.02)


def test_who_looks_for_a_store_is_told_which_there_are(store: Path) -> None:
    with pytest.raises(StoreError, match=r"no such store(.|\n)*got no stores at all in"):
        tw.attach(NAME)
    with tw.Publisher("one", Model(affine())), tw.Publisher("other", Model(affine())):
        with pytest.raises(StoreError, match=r"got the stores \['one', 'other'\] in"):
            tw.attach(NAME)


def test_nan_by_wish(store: Path) -> None:
    with tw.Publisher(NAME, Model(affine())) as publisher, tw.attach(NAME) as actor:
        publisher.publish(numbers(np.nan), finite=False)
        assert np.isnan(actor(X)[1][0])


def test_the_passed_arrays_may_change_after(store: Path) -> None:
    with tw.Publisher(NAME, Model(affine())) as publisher, tw.attach(NAME) as actor:
        inputs = numbers(2)
        publisher.publish(inputs)
        inputs["w"][:] = -1
        inputs["scale"][:] = -1
        assert actor(X)[1][0] == 2
        np.testing.assert_allclose(actor(X)[0], affine_reference(X, numbers(2)["w"]), rtol=1e-5)


def test_two_publishers(store: Path) -> None:
    """The second is refused while the first lives, stands by if told to, and continues the versions."""
    first = tw.Publisher(NAME, Model(affine()))
    first.publish(numbers(11), version=11)
    with pytest.raises(tw.Error) as caught:
        tw.Publisher(NAME, Model(affine()))
    assert NAME in str(caught.value)
    start = time.monotonic()
    with pytest.raises(tw.Error):
        tw.Publisher(NAME, Model(affine()), wait=0.2)
    assert 0.15 < time.monotonic() - start < 5
    heirs: list[tw.Publisher] = []
    thread = threading.Thread(target=lambda: heirs.append(tw.Publisher(NAME, Model(affine()), wait=20.0)))
    thread.start()
    time.sleep(0.1)
    first.publish(numbers(12), version=12)
    assert not heirs
    first.close()
    thread.join(20)
    assert heirs[0].version == 12
    assert heirs[0].publish(numbers(13)) == 13
    with pytest.raises(tw.Error):
        first.publish(numbers(14))
    heirs[0].close()
    heirs[0].close()
    assert tw.attach(NAME)(X)[1][0] == 13


def test_threads_publish(store: Path) -> None:
    """Publishes from several threads come one after another: every version once."""
    with tw.Publisher(NAME, Model(affine())) as publisher:
        first = publisher.version
        inputs: list[int] = []

        def work() -> None:
            for _ in range(50):
                inputs.append(publisher.publish(numbers(1)))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(inputs) == list(range(first + 1, first + 201))


def test_waiting(store: Path) -> None:
    with tw.Publisher(NAME, Model(affine())) as publisher, tw.attach(NAME) as actor:
        version = publisher.publish(numbers(1))
        start = time.monotonic()
        assert actor.wait(version=version, timeout=0) is True
        assert actor.wait(version=version + 1, timeout=0) is False
        assert actor.wait(version=version + 1, timeout=0.1) is False
        assert 0.09 < time.monotonic() - start < 5
        timer = threading.Timer(0.1, lambda: publisher.publish(numbers(2)))
        timer.start()
        assert actor.wait(version=version + 1, timeout=20) is True
        assert time.monotonic() - start < 10
        timer.join()
        assert actor.version == version + 1
        assert 0 <= actor.age < 10


def test_attach_waits_for_a_store(store: Path) -> None:
    start = time.monotonic()
    with pytest.raises(tw.Error):
        tw.attach(NAME, timeout=0.15)
    assert 0.1 < time.monotonic() - start < 5
    result: list[tw.Publisher] = []
    timer = threading.Timer(0.1, lambda: result.append(tw.Publisher(NAME, Model(affine()))))
    timer.start()
    with tw.attach(NAME, timeout=20) as actor:
        assert actor(X)[1].shape == (1,)
    timer.join()
    result[0].close()


def test_use_after_close(store: Path) -> None:
    with tw.Publisher(NAME, Model(affine())) as publisher:
        actor = tw.attach(NAME)
        actor.close()
        actor.close()
        for action in (lambda: actor(X), lambda: actor.versioned(X), lambda: actor.run({"x": X})):
            with pytest.raises(tw.Error, match=r"closed|detached"):
                action()
    with pytest.raises(tw.Error, match=r"closed|detached"):
        publisher.publish(numbers(1))


def test_a_call_that_is_wrong_is_explained_and_frees_its_slot(store: Path) -> None:
    with tw.Publisher(NAME, Model(affine())) as publisher, tw.attach(NAME) as actor:
        for _ in range(20):
            with pytest.raises(tw.errors.CallError):
                actor(np.zeros((2, 2), np.float64))
            with pytest.raises(tw.errors.CallError):
                actor.versioned(np.zeros((2, 2), np.float64))
            publisher.publish(numbers(1))
        assert actor(X)[1][0] == 1


def damage(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))


@pytest.mark.parametrize("at_once", [1 << 40, 0], ids=["at once", "in a thread"])
def test_checksums_tell_damage(store: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(sums, "AT_ONCE", at_once)
    with tw.Publisher(NAME, Model(affine())) as publisher:
        for version in range(1, 20):
            publisher.publish(numbers(version), version)
            assert weights.info(NAME, verify=True).problem is None
    result = weights.info(NAME, verify=True)
    assert result.problem is None and result.version == 19
    segments = result.path / "current" / "segments"
    for at in range(0, segments.stat().st_size, 4096):
        damage(segments, at)
    assert weights.info(NAME).problem is None
    assert weights.info(NAME, verify=True).problem == "version 19 does not match its checksum"


def test_a_version_without_a_checksum_is_said_to_have_none(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums.Sums, "add", lambda *_: None)
    monkeypatch.setattr(sums, "AT_ONCE", 0)
    monkeypatch.setattr(sums, "WAIT_SECONDS", 0.0)
    with tw.Publisher(NAME, Model(affine())):
        assert "has no checksum" in (weights.info(NAME, verify=True).problem or "")


def test_a_checksum_that_comes_after_time_is_dropped(store: Path) -> None:
    """The slot was written again while its former contents were summed up."""
    with tw.Publisher(NAME, Model(affine())) as publisher:
        control = publisher._epoch.control  # type: ignore[union-attr]
        publisher.publish(numbers(1), 1)
        old = control.newest()
        while control.newest().index != old.index or control.newest().version == 1:
            publisher.publish(numbers(2))
        new = control.newest()
        control.set_checksum(old, 12345)
        assert control.newest() == new and weights.info(NAME, verify=True).problem is None


def test_everything_that_is_wrong_is_said_at_once(store: Path) -> None:
    with tw.Publisher(NAME, Model(affine())) as publisher, pytest.raises(tw.errors.WeightError) as caught:
        publisher.publish({"w": np.full((2, 3), np.inf, np.float32), "other": np.zeros(1, np.float32)})
    assert all(text in str(caught.value) for text in ("NaN or infinity", "'scale'", "is missing", "'other'"))


def test_publishing_goes_on_where_no_thread_is_to_be_had(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sums, "AT_ONCE", 0)
    monkeypatch.setattr(sums, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(sums.threading.Thread, "start", refuse)
    with tw.Publisher(NAME, Model(affine())) as publisher:
        assert publisher.publish(numbers(7), 7) == 7
        with tw.attach(NAME) as actor:
            assert actor(X)[1][0] == 7
        assert "has no checksum" in (weights.info(NAME, verify=True).problem or "")
