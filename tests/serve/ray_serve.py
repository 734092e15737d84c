"""Ray Serve with two replicas on one node: `make serve-ray`. One copy of the weights, the right answers, autoscaling.

Not named `test_*`: it needs Ray in an environment of its own, and a minute.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import ray
from ray import serve

import tilewright as tw
from tests.serve.conftest import WEIGHTS, expected, layer_model
from tilewright.serve.ray import Replica, deployment


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    os.environ["TILEWRIGHT_STORE_DIR"] = str(folder / "stores")
    onnx.save(layer_model(), folder / "layer.onnx")
    tw.Model(tw.compile_program(folder / "layer.onnx")).save(folder / "layer.tw")
    path = os.pathsep.join(sys.path)
    environment = {"TILEWRIGHT_STORE_DIR": os.environ["TILEWRIGHT_STORE_DIR"], "PYTHONPATH": path}
    ray.init(num_cpus=4, runtime_env={"env_vars": environment}, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")  # requests come by handles; `over_http` hands a body to a replica itself
    try:
        over_http(folder)
        replicas(folder)
        a_store(folder)
        autoscaling(folder)
    finally:
        serve.shutdown()
        ray.shutdown()
    print("Ray Serve: replicas, a store, autoscaling: all as expected")


class Body:
    """A request of Starlette, as a replica sees it."""

    def __init__(self, data: bytes) -> None:
        self.headers: dict[str, str] = {}
        self._data = data

    async def body(self) -> bytes:
        return self._data


def over_http(folder: Path) -> None:
    replica = Replica((folder / "layer.tw").read_bytes())
    good = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}'
    for data, status in ((good, 200), (b"no JSON", 400)):
        answer = asyncio.run(replica(Body(data)))
        assert answer.status_code == status, answer.body
    assert replica.statistics()["publishes"] and replica.statistics()["answered"] == 1
    replica._publisher.close(remove=True)  # type: ignore[union-attr]


def replicas(folder: Path) -> None:
    created = deployment(str(folder / "layer.tw"), promise=5.0, num_replicas=2, ray_actor_options={"num_cpus": 0.5})
    handle = serve.run(created.bind(), name="layer", route_prefix=None)
    source = np.random.default_rng(3)
    for rows in (1, 4, 2) * 20:
        x = source.standard_normal((rows, 4)).astype(np.float32)
        y = handle.remote({"x": x}).result()["y"]
        np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
    seen = {str(s): s for s in (handle.statistics.remote().result() for _ in range(40))}
    assert {s["publishes"] for s in seen.values()} == {True, False}, "one replica publishes, the other attaches"
    assert len(list((folder / "stores").iterdir())) == 1, "one copy of the weights"
    serve.delete("layer")


def a_store(folder: Path) -> None:
    model = tw.Model(tw.compile_program(folder / "layer.onnx"))
    with tw.Publisher("policy", model) as publisher:
        handle = serve.run(deployment(store="policy", num_replicas=2).bind(), name="policy", route_prefix=None)
        x = np.ones((1, 4), np.float32)
        for version in range(1, 6):
            weights = {name: array * np.float32(version) for name, array in WEIGHTS.items()}
            publisher.publish(weights, version)
            for _ in range(4):
                np.testing.assert_allclose(handle.remote({"x": x}).result()["y"], expected(x, weights), rtol=1e-5)
        serve.delete("policy")


def autoscaling(folder: Path) -> None:
    policy = {
        "min_replicas": 1, "max_replicas": 3, "target_ongoing_requests": 2, "upscale_delay_s": 0.5,
        "downscale_delay_s": 600, "metrics_interval_s": 0.2, "look_back_period_s": 0.5,
    }  # fmt: skip
    created = deployment(
        str(folder / "layer.tw"),
        autoscaling_config=policy,
        ray_actor_options={"num_cpus": 0.5},
        max_ongoing_requests=100,
    )
    handle = serve.run(created.bind(), name="scaled", route_prefix=None)
    x = {"x": np.ones((1, 4), np.float32)}
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for response in [handle.remote(x) for _ in range(60)]:
            response.result()
        running = serve.status().applications["scaled"].deployments["Replica"].replica_states.get("RUNNING", 0)
        if running > 1:
            return
    raise AssertionError("Ray started no second replica")


if __name__ == "__main__":
    main()
