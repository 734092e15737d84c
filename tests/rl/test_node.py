"""A store that any process of a node may make and feed: one compiles, one packs each version, the last removes it."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.runtime.programs import affine, affine_reference
from tilewright.live.store import files
from tilewright.rl import node
from tilewright.rl.node import NodeStore, publisher_of, sweep_forgotten
from tilewright.runtime.model import Model

PROCESSES = 5
VERSIONS = 4


def weights(version: int) -> Callable[[], dict[str, Any]]:
    rest = {name: value for name, value in Model(affine(lo=0, hi=5000)).weights.items() if name != "w"}
    return lambda: {"w": np.full(Model(affine(lo=0, hi=5000)).weights["w"].shape, version + 1, np.float32), **rest}


def run(name: str, barrier: Any, results: Any, kill: bool) -> None:
    """One of the processes: opens, publishes every version at the same time as the others, calls, closes."""
    store = NodeStore(name)
    compiled = []

    def compile() -> Model:
        compiled.append(1)
        time.sleep(0.2)
        return Model(affine(lo=0, hi=5000))

    x = np.linspace(-1, 1, 20, dtype=np.float32)
    seen = []
    barrier.wait()
    store.open(compile, weights(1), 1)
    for version in range(2, VERSIONS + 1):
        barrier.wait()
        store.publish(weights(version), version)
        (y, _), used = store.call(x)
        seen.append(used)
        np.testing.assert_allclose(y, affine_reference(x, weights(used)()["w"]), rtol=1e-5)
    results.put((len(compiled), store.published, seen))
    results.close()
    results.join_thread()
    barrier.wait()
    if kill:
        os._exit(1)
    store.close()


@pytest.mark.parametrize("kill", [False, True])
def test_processes_share_the_work(store: str, kill: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(PROCESSES), spawn.Queue()
    workers = [spawn.Process(target=run, args=(store, barrier, results, kill)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    result = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert sum(compiled for compiled, _, _ in result) == 1
    assert sum(published for _, published, _ in result) == VERSIONS
    # No actor goes back, and none acts on less than it was sent.
    for _, _, seen in result:
        assert all(used >= sent for used, sent in zip(seen, range(2, VERSIONS + 1), strict=True))
    if not kill:
        assert all(worker.exitcode == 0 for worker in workers)
    assert files.store_folder(store).exists() == kill
    sweep_forgotten(store)
    assert files.store_folder(store).exists() == kill, "what is young may be about to be used"
    monkeypatch.setattr(node, "_FORGOTTEN_SECONDS", 0.0)
    sweep_forgotten("other")
    assert files.store_folder(store).exists() == kill
    sweep_forgotten(store)
    assert not files.store_folder(store).exists()


def test_versions_that_are_forced(store: str) -> None:
    one = NodeStore(store)
    one.open(lambda: Model(affine(lo=0, hi=5000)), weights(3), 3)
    x = np.ones(20, np.float32)

    def now() -> tuple[float, int]:
        (y, _), version = one.call(x)
        return float(y.sum()), version

    before = now()
    assert before[1] == 3
    one.publish(weights(9), 3)
    one.publish(weights(9), 2)
    assert now() == before, "what is known or older changes nothing"
    one.publish(weights(5), None)
    assert now()[1] == 3 and now()[0] != before[0], "without a number: in the place of the newest"
    one.publish(weights(3), 4)
    assert now() == (before[0], 4), "and the learner's next one is newer"
    one.publish(weights(1), 0)
    assert now()[1] == 0, "a run begins again"
    one.publish(weights(8), 0)
    assert one.published == 4, "once, whoever else says so"
    one.publish(weights(6), 6)
    for sent in ((), (weights(0), 0), (weights(5), 5)):
        deferred = NodeStore(store)
        deferred.open(pytest.fail, *sent)
        assert now()[1] == 6 and deferred.published == 0, "who comes late takes nobody back"
        deferred.close()
    one.close()
    one.close()


def test_a_publisher_starts_with_its_own_weights(store: str) -> None:
    for version in range(3):
        model = Model(affine(lo=0, hi=5000))
        model.update(weights(version)())
        with publisher_of(store, model) as publisher, tw.attach(store) as actor:
            x = np.ones(20, np.float32)
            np.testing.assert_allclose(actor(x)[0], affine_reference(x, weights(version)()["w"]), rtol=1e-5)
            assert publisher.version >= version


def test_damaged_folders_are_left_to_others(store: str) -> None:
    folder = Path(os.environ["TILEWRIGHT_STORE_DIR"])
    (folder / "rllib-x").mkdir(mode=0o700)
    sweep_forgotten("rllib-")
    assert (folder / "rllib-x").exists()
