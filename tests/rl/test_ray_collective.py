"""The backend of `ray.util.collective`, between actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")
ROOT = Path(__file__).resolve().parents[2]


def member() -> type:
    """A class of actors that take part in a group; made here, Ray sends it to them as it is."""

    class Member:
        """An actor that takes part in a group."""

        def begin(self, rank: int) -> None:
            import ray.util.collective as collective

            from tilewright.collective import ray_backend

            ray_backend.register()
            collective.init_collective_group(2, rank, "TILEWRIGHT", "a group: any name")
            self.rank = rank

        def results(self) -> list[Any]:
            import ray.util.collective as collective

            name, own = "a group: any name", np.arange(4, dtype=np.float32) + 10 * self.rank
            total = own.copy()
            collective.allreduce(total, name)
            first = own.copy()
            collective.broadcast(first, 1, name)
            rows = [np.zeros_like(own) for _ in range(2)]
            collective.allgather(rows, own, name)
            part = np.zeros(4, np.float32)
            collective.reducescatter(part, [own, own + 1], name)
            collective.barrier(name)
            other = np.zeros(4, np.float32)
            if self.rank:
                collective.recv(other, 0, name)
            else:
                collective.send(own, 1, name)
            collective.destroy_collective_group(name)
            return [total, first, np.stack(rows), part, other]

    return Member


def test_actors_reduce_through_shared_memory() -> None:
    environment = {"env_vars": {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        actor = ray.remote(member())
        members = [actor.remote() for _ in range(2)]
        ray.get([m.begin.remote(r) for r, m in enumerate(members)], timeout=120)
        results = ray.get([m.results.remote() for m in members], timeout=120)
    finally:
        ray.shutdown()
    own = [np.arange(4, dtype=np.float32) + 10 * r for r in range(2)]
    for rank, (total, first, rows, part, other) in enumerate(results):
        np.testing.assert_array_equal(total, own[0] + own[1])
        np.testing.assert_array_equal(first, own[1])
        np.testing.assert_array_equal(rows, np.stack(own))
        np.testing.assert_array_equal(part, own[0] + own[1] + 2 * rank)
        np.testing.assert_array_equal(other, own[0] if rank else 0)
