"""Weights over Ray, with a stand-in for it: what is put, posted, fetched and given up. `tests/rl` has the real one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tests.live.store.lab import DEPTH, ONES, WIDTHS, telling_weights, value
from tests.live.transport.ray_stand_in import Ray, RayError, ray_in_this_process
from tilewright.live.transport import ray_nodes
from tilewright.live.transport.messages import Mark
from tilewright.live.transport.ray_nodes import Board, Posted, RaySource
from tilewright.live.transport.wire import HostileError, LostError
from tilewright.runtime.model import Model
from tilewright.support.errors import TransportError, WeightError

RUN = bytes(range(16))


@pytest.fixture
def ray() -> Iterator[Ray]:
    with ray_in_this_process() as result:
        yield result


def posted(number: int, version: int = 3) -> Posted:
    return Posted(RUN, number, version, b"a structure", [], [], True)


def test_every_version_reaches_the_store_and_the_program_once(
    ray: Ray, store: Path, models: tuple[Model, Model]
) -> None:
    with tw.ray_weights("policy", models[0], threads=1, mode=0o660) as weights:
        assert weights.wait(60) and weights.version == 0
        with tw.attach("policy", timeout=60) as actor:
            for version in (1, 2, 7):
                assert weights.publish(telling_weights(version), version) == version
                assert weights.wait(60) and weights.version == version
                assert actor.wait(version, 60)
                outputs, result = actor.versioned(ONES)
                assert result == version and (outputs == DEPTH * value(version)).all()
            with pytest.raises(WeightError):
                weights.publish(telling_weights(8), 3)
            assert weights.publish(telling_weights(4), 4, force=True) == 4
            assert weights.wait(60)
        assert oct((store / "policy" / "lock").stat().st_mode & 0o777) == "0o660"
        (node, stats), *others = weights.stats().items()
        assert (node, others) == ("one", [])
        assert (stats["version"], stats["updates"], stats["published"], stats["programs"]) == (4, 5, 5, 1)
        assert (stats["process"], stats["store"]) == (os.getpid(), str(store / "policy"))
        code, *images = ray.puts
        assert stats["bytes_received"] == len(code) + sum(image.nbytes for image in images)
        assert weights.replace(models[1], 9) == 9
        assert weights.wait(60) and weights.stats()["one"]["programs"] == 2
        assert weights.publish(telling_weights(10, WIDTHS[1])) == 10
        board, agent = ray.actors
        assert agent.options["scheduling_strategy"] == ("one", False)
    assert not board.alive and not agent.alive
    with tw.Publisher("policy", models[0]):
        pass  # its agent holds the store no more


def test_nodes_come_and_go(ray: Ray, store: Path, models: tuple[Model, Model]) -> None:
    ray.alive = {"one": True, "two": False}
    with tw.ray_weights("policy", models[0]) as weights:
        assert weights.refresh() == ["one"]
        ray.alive = {"one": True, "two": True}
        assert weights.refresh() == ["one", "two"]
        assert len(ray.actors) == 3, "one of them is the board"
        ray.alive = {"one": False, "two": True}
        assert weights.refresh() == ["two"]
    with tw.ray_weights("other", models[0], nodes=["one"]) as weights:
        assert weights.refresh() == [] and weights.wait(0.0)
        ray.alive = {"one": True, "two": True}
        assert weights.refresh() == ["one"]
        assert weights.wait(60)
        ray.actors[-1].alive = False
        assert not weights.wait(0.0) and weights.stats() == {}


def test_waiting_for_stores_ends(ray: Ray, store: Path, models: tuple[Model, Model]) -> None:
    with tw.Publisher("policy", models[0]), tw.ray_weights("policy", models[0]) as weights:
        assert not weights.wait(0.05), "somebody else publishes to the store"


def test_nodes_that_join_are_looked_for_now_and_then(
    ray: Ray, store: Path, models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tw.ray_weights("policy", models[0]) as weights:
        ray.alive = {"one": True, "two": True}
        weights.publish(telling_weights(1))
        assert list(weights.stats()) == ["one"], "not with every version"
        monkeypatch.setattr(ray_nodes, "_LOOK_FOR_NODES", 0.0)
        weights.publish(telling_weights(2))
        assert list(weights.stats()) == ["one", "two"]


def test_the_board_has_the_newest_and_wakes_who_waits() -> None:
    async def scene() -> None:
        board = Board()
        assert await board.newer(None, 0.0) is None
        waiting = asyncio.create_task(board.newer(None, 60.0))
        await asyncio.sleep(0)
        await board.post(posted(1))
        assert await waiting == posted(1)
        waiting = asyncio.create_task(board.newer(Mark(RUN, 1), 60.0))
        await asyncio.sleep(0)
        await board.post(posted(2))
        assert await waiting == posted(2)
        assert await board.newer(Mark(RUN, 2), 0.01) is None
        assert await board.newer(Mark(bytes(16), 9), 0.0) == posted(2), "another run"

    asyncio.run(scene())


class Silent:
    """A board that answers nothing newer, or not at all."""

    def __init__(self, waited: list[float]) -> None:
        self.waited = waited

    def newer(self, after: Mark | None, wait: float) -> Any:
        self.waited.append(wait)
        if wait == 0.5:
            raise RayError("lost\nand more")
        return posted(1) if wait == 0.25 else None


def test_a_source_asks_short_questions_and_says_what_is_lost(ray: Ray) -> None:
    waited: list[float] = []
    source = RaySource(ray.remote(Silent).remote(waited), "here")
    assert source.newer(None, None, 20.0) is None
    with pytest.raises(LostError, match=r"Ray does not deliver: lost$"):
        source.newer(None, None, 0.5)
    assert waited == [1.0, 0.5]
    assert source.stats() == {"bytes_received": 0, "updates": 0, "programs": 0}
    source.close()
    with pytest.raises(TransportError, match="the source is closed"):
        source.newer(None, None, 0.0)


def test_a_program_that_is_not_the_one_announced_is_not_run(ray: Ray, models: tuple[Model, Model]) -> None:
    code = tw.live.transport.structure.encode(models[0].program)[1]  # type: ignore[attr-defined]
    with pytest.raises(HostileError, match="not the one announced"):
        RaySource(None, "here")._program(bytes(code), posted(1))


def test_without_ray(ray: Ray, models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    ray.alive = {}
    with pytest.raises(TransportError, match="not initialised"):
        tw.ray_weights("policy", models[0])
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TransportError, match="not installed"):
        tw.ray_weights("policy", models[0])
