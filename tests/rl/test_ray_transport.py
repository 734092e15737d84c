"""Weights across a Ray cluster of two nodes on this machine, each with stores of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'tilewright[rl]'")

from ray.cluster_utils import Cluster  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

import tilewright as tw  # noqa: E402
from tests.live.store.lab import DEPTH, INITIAL, ONES, WIDTHS, telling_model, telling_weights, value  # noqa: E402
from tilewright.support.errors import TransportError, WeightError  # noqa: E402

NODES = 2
NBYTES = DEPTH * WIDTHS[0] * 4
ROOT = Path(__file__).resolve().parents[2]


class Machines:
    """A cluster, its nodes in order, and where each has its stores."""

    def __init__(self, cluster: Cluster, base: Path) -> None:
        self.cluster = cluster
        self.base = base
        self.nodes: list[Any] = []

    def add(self) -> str:
        """One more node; gives its id."""
        folder = self.base / f"node{len(self.nodes)}"
        folder.mkdir()
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        node = self.cluster.add_node(
            num_cpus=4,
            object_store_memory=200 << 20,
            env_vars={"TILEWRIGHT_STORE_DIR": str(folder), "PYTHONPATH": paths},
        )
        self.nodes.append(node)
        return str(node.node_id)

    @property
    def ids(self) -> list[str]:
        return [str(node.node_id) for node in self.nodes]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with tempfile.TemporaryDirectory(prefix="tilewright-ray-", dir="/dev/shm") as folder:
        os.environ["TILEWRIGHT_STORE_DIR"] = str(Path(folder) / "driver")
        result = Machines(Cluster(), Path(folder))
        try:
            for _ in range(NODES):
                result.add()
            result.cluster.wait_for_nodes()
            ray.init(address=result.cluster.address, log_to_driver=False)
            yield result
        finally:
            ray.shutdown()
            result.cluster.shutdown()
            del os.environ["TILEWRIGHT_STORE_DIR"]


class Worker:
    """A rollout worker: it knows the store's name and nothing of Ray's part in it."""

    def __init__(self, name: str) -> None:
        self.actor = tw.attach(name, timeout=120)

    def call(self) -> tuple[Any, int, str]:
        outputs, version = self.actor.versioned(ONES)
        return np.asarray(outputs), version, str(self.actor.store)

    def wait(self, version: int) -> bool:
        return self.actor.wait(version, 60)


def workers(machines: Machines, name: str, each: int = 2) -> dict[str, list[Any]]:
    """Some on each node."""
    kind = ray.remote(Worker)
    return {
        node: [
            kind.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(name)
            for _ in range(each)
        ]
        for node in machines.ids
    }


def on_all(result: dict[str, list[Any]], ask: Callable[[Any], Any]) -> list[Any]:
    return ray.get([ask(worker) for group in result.values() for worker in group], timeout=120)


def test_versions_reach_every_node_once(machines: Machines) -> None:
    with tw.ray_weights("policy", telling_model()) as weights:
        assert weights.wait(120)
        crew = workers(machines, "policy")
        for outputs, version, _ in on_all(crew, lambda w: w.call.remote()):
            assert version == 0 and (outputs == DEPTH * INITIAL).all()
        versions = [1, 2, 5, 9]
        for version in versions:
            assert weights.publish(telling_weights(version), version) == version
            assert weights.wait(60)
            assert all(on_all(crew, lambda w, v=version: w.wait.remote(v)))
            for outputs, candidate, _ in on_all(crew, lambda w: w.call.remote()):
                assert candidate == version and (outputs == DEPTH * value(version)).all()
        assert len({store for _, _, store in on_all(crew, lambda w: w.call.remote())}) == NODES, "a store for each"
        stats = weights.stats()
        assert sorted(stats) == sorted(machines.ids)
        for node in stats.values():
            assert node["updates"] == node["published"] == 1 + len(versions), "once per node, for all its workers"
            assert node["programs"] == node["structures"] == 1
            assert (1 + len(versions)) * NBYTES <= node["bytes_received"] < (2 + len(versions)) * NBYTES
            assert node["error"] is None
        for group in crew.values():
            for worker in group:
                ray.kill(worker)


def test_a_new_program_and_a_step_back(machines: Machines) -> None:
    with tw.ray_weights("moving", telling_model()) as weights:
        assert weights.wait(120)
        crew = workers(machines, "moving", 1)
        on_all(crew, lambda w: w.call.remote())
        weights.replace(telling_model(WIDTHS[1]), 4)
        assert weights.wait(60)
        for outputs, version, _ in on_all(crew, lambda w: w.call.remote()):
            assert version == 4 and outputs.shape == (1, WIDTHS[1])
        weights.publish(telling_weights(2, WIDTHS[1]), 2, force=True)
        assert weights.wait(60)
        for outputs, version, _ in on_all(crew, lambda w: w.call.remote()):
            assert version == 2 and (outputs == DEPTH * value(2)).all()
        with pytest.raises(WeightError):
            weights.publish(telling_weights(3), 3)
        assert weights.version == 2
        assert [node["programs"] for node in weights.stats().values()] == [2] * NODES


def test_an_agent_dies_and_a_node_joins(machines: Machines) -> None:
    """Ray starts the agent again, which goes on; a node that joins gets one, and the newest weights."""
    with tw.ray_weights("steady", telling_model()) as weights:
        assert weights.wait(120)
        weights.publish(telling_weights(1), 1)
        assert weights.wait(60)
        before = weights.stats()
        victim = machines.ids[1]
        os.kill(before[victim]["process"], 9)
        weights.publish(telling_weights(2), 2)
        deadline = time.monotonic() + 60
        while weights.stats().get(victim, before[victim])["version"] != 2:
            assert time.monotonic() < deadline, "the agent does not come back"
            time.sleep(0.1)
        assert weights.stats()[victim]["process"] != before[victim]["process"]
        joined = machines.add()
        machines.cluster.wait_for_nodes()
        assert joined in weights.refresh()
        assert weights.wait(120)
        assert weights.stats()[joined]["version"] == 2


def test_ray_must_run() -> None:
    code = (
        "import tilewright as tw, sys\n"
        "from tests.live.store.lab import telling_model\n"
        "assert 'ray' not in sys.modules\n"
        "try: tw.ray_weights('policy', None)\n"
        "except tw.Error as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "Ray is not initialised" in done.stdout
    assert issubclass(TransportError, tw.Error)
