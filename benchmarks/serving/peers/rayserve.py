"""Ray Serve with `serve.batch`, taking the binary form of the protocol."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import threading
from typing import Any

import numpy as np
import onnxruntime
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(max_ongoing_requests=256)
class Nat:
    """An ONNX model in ONNX Runtime."""

    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options)
        self._name = self._session.get_inputs()[0].name

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.002)
    async def compute(self, inputs: list[Any]) -> list[bytes]:
        results = self._session.run(None, {self._name: np.concatenate(inputs)})
        ends = np.cumsum([len(x) for x in inputs])[:-1]
        parts = zip(*(np.split(r, ends) for r in results), strict=True)
        return [b"".join(array.tobytes() for array in part) for part in parts]

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        length = int(request.headers["inference-header-content-length"])
        shape = json.loads(body[:length])["inputs"][0]["shape"]
        data = await self.compute(np.frombuffer(body, np.uint8, offset=length).reshape(shape))
        return Response(data, media_type="application/octet-stream")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--file")
    options = parser.parse_args()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Nat.bind(options.file), route_prefix="/v2/models/nat/infer", name="nat")
    print(json.dumps({"ports": {"http": port}}), flush=True)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
