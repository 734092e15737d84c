"""MLServer with its adaptive batching: `python -m benchmarks.serving.peers.mlserver`. Its REST takes JSON alone."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from typing import Any

import numpy as np
import onnxruntime
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse


class Nat(MLModel):
    """An ONNX model in ONNX Runtime."""

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(self.settings.parameters.uri, options)
        self._names = [o.name for o in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0]).astype(np.uint8)
        results = self._session.run(self._names, {payload.inputs[0].name: x})
        outputs = [NumpyCodec.encode_output(n, r) for n, r in zip(self._names, results, strict=True)]
        return InferenceResponse(model_name=self.name, outputs=outputs)


async def serve(path: str) -> None:
    ports: dict[str, Any] = {name: free_port() for name in ("http_port", "grpc_port", "metrics_port")}
    server = MLServer(Settings(host="127.0.0.1", parallel_workers=0, **ports))
    model = ModelSettings(
        name="nat", implementation=Nat, max_batch_size=64, max_batch_time=0.002, parameters=ModelParameters(uri=path)
    )
    task = asyncio.ensure_future(server.start([model]))
    while not await answers(ports["http_port"]):
        if task.done():
            task.result()
            raise SystemExit("the server has ended")
        await asyncio.sleep(0.2)
    print(json.dumps({"ports": {"http": ports["http_port"]}}), flush=True)
    await task


async def answers(port: int) -> bool:
    """Whether the server is ready."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.write(b"GET /v2/models/nat/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = await reader.read(64)
    writer.close()
    return b" 200 " in head


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--file")
    asyncio.run(serve(parser.parse_args().file))
