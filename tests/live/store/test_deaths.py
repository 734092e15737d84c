"""Workers are killed at random points: nothing reads half a version or waits for the dead, nothing is left over."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tilewright as tw
from tests.live.store.lab import (
    BACK,
    CALLS,
    FAILED,
    ONES,
    PUBLISHED,
    TORN,
    VERSION,
    Board,
    Nursery,
    is_whole,
    telling_weights,
    wait_until,
)
from tilewright.live import store as weights

ROUNDS = 2000 if os.environ.get("TILEWRIGHT_FUZZ") else 25
READERS = 3
PUBLISHER = READERS
NAME = "telling"


@dataclass
class Scene:
    """A store with a publisher and readers, each of which is replaced when it was killed."""

    nursery: Nursery
    board: Board
    models: tuple[Path, Path]
    model: Path
    pids: dict[int, int] = field(default_factory=dict)

    def start(self, row: int) -> None:
        board = [str(self.board.path), self.board.rows]
        if row == PUBLISHER:
            pid = self.nursery.start("publish", board=board, row=row, name=NAME, model=str(self.model), wait=60.0)
        else:
            pid = self.nursery.start("read", board=board, row=row, name=NAME)
        self.pids[row] = pid

    def kill(self, row: int) -> None:
        self.nursery.kill(self.pids.pop(row))

    def works_on(self, row: int) -> bool:
        """Whether a worker makes calls (or publishes) from now on."""
        before = self.board[row, CALLS]
        return wait_until(lambda: self.board[row, CALLS] > before + 2)

    def failures(self) -> str:
        path = Path(f"{self.board.path}.failures")
        return path.read_text() if path.exists() else ""

    def check(self) -> None:
        assert not self.failures(), self.failures()
        for row in range(READERS):
            assert self.board[row, TORN] == 0, "a reader saw half a version"
            assert self.board[row, BACK] == 0, "a reader saw an older version after a newer one"
        assert self.board[PUBLISHER, FAILED] == 0


@pytest.fixture
def scene(store: Path, telling: tuple[Path, Path], tmp_path: Path) -> Iterator[Scene]:
    with Nursery(store) as nursery:
        scene = Scene(nursery, Board(tmp_path / "board", READERS + 1), telling, telling[0])
        for row in range(READERS + 1):
            scene.start(row)
        yield scene


def files(store: Path) -> dict[str, int]:
    """Bytes in memory of each file of the stores, by its path in their folder."""
    return {str(p.relative_to(store)): p.stat().st_blocks * 512 for p in store.rglob("*") if p.is_file()}


def test_killed_at_random_points(scene: Scene, store: Path) -> None:
    source = random.Random(4)
    for row in range(READERS + 1):
        assert scene.works_on(row), scene.failures()
    for number in range(ROUNDS):
        row = source.choice([PUBLISHER, PUBLISHER, *range(READERS)])
        # Soon after its start a worker is attaching or creating; later it is anywhere in its loop.
        time.sleep(source.choice([0.0, 0.001, 0.005, 0.02]) * source.random())
        scene.kill(row)
        surely = scene.board[PUBLISHER, PUBLISHED]
        if row == PUBLISHER and source.random() < 0.2:
            scene.model = source.choice(scene.models)
        if number % 10 == 9:
            weights.sweep()
        scene.start(row)
        if source.random() < 0.25:
            assert scene.works_on(row), f"round {number}: {scene.failures()}"
            if row == PUBLISHER:
                assert scene.board[row, VERSION] >= surely, "the next publisher does not continue the versions"
        scene.check()
    for row in range(READERS + 1):
        assert scene.works_on(row), f"worker {row} is stuck: {scene.failures()}"
    scene.check()
    for row in list(scene.pids):
        scene.kill(row)
    newest = scene.board[PUBLISHER, PUBLISHED]
    actor = tw.attach(NAME)
    y, version = actor.versioned(ONES)
    assert version >= newest
    assert is_whole(y, version)
    model = tw.load(scene.model)
    with tw.Publisher(NAME, model) as publisher:
        assert publisher.version >= newest
        inputs = publisher.publish(telling_weights(publisher.version + 1, model.params[0].shape[1]))
        assert inputs == actor.version
        weights.sweep()
        # One structure is left, with at most as many slots as there were versions in use at once.
        left = files(store)
        left = [name for name in left if "/support/" not in str(name)]
        assert sorted(Path(name).name for name in left) == ["control", "lock", "program.tw", "segments"], left
    actor.close()
    weights.sweep()
    assert not list(store.iterdir()), "nobody publishes, nobody reads: nothing stays"


def test_readers_that_die_in_a_call_give_their_slots_back(scene: Scene) -> None:
    """Each kill may leave a pin; more of them than there are slots must not stop the publisher."""
    for _ in range(6):
        for row in range(READERS):
            assert scene.works_on(row)
            scene.kill(row)
        for row in range(READERS):
            scene.start(row)
    assert scene.works_on(PUBLISHER)
    scene.check()


def test_a_dead_publisher_leaves_the_last_version(scene: Scene) -> None:
    assert scene.works_on(PUBLISHER)
    scene.kill(PUBLISHER)
    surely = scene.board[PUBLISHER, PUBLISHED]
    for row in range(READERS):
        assert scene.works_on(row)
        assert scene.board[row, VERSION] in (surely, surely + 1)
    scene.check()
