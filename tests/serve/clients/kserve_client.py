"""Asks a server with KServe's unmodified clients: `python kserve_client.py HTTP_PORT GRPC_PORT`."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

X = np.random.default_rng(5).standard_normal((2, 4)).astype(np.float32)
W = np.random.default_rng(0).standard_normal((4, 3), np.float32)
B = np.random.default_rng(1).standard_normal(3, np.float32)
EXPECTED = np.maximum(X @ W + B, 0)


def request(binary: bool) -> InferRequest:
    created = InferInput("x", list(X.shape), "FP32")
    created.set_data_from_numpy(X, binary_data=binary)
    return InferRequest("layer", [created])


async def main() -> None:
    http_port, grpc_port = sys.argv[1:]
    url = f"http://127.0.0.1:{http_port}"
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert (
        await rest.is_server_live(url) and await rest.is_server_ready(url) and await rest.is_model_ready(url, "layer")
    )
    for binary in (False, True):
        answer = await rest.infer(url, request(binary), model_name="layer")
        np.testing.assert_allclose(answer.outputs[0].as_numpy(), EXPECTED, rtol=1e-5, atol=1e-6)
    grpc = InferenceGRPCClient(f"127.0.0.1:{grpc_port}")
    assert await grpc.is_server_live() and await grpc.is_server_ready() and await grpc.is_model_ready("layer")
    for binary in (False, True):
        answer = await grpc.infer(request(binary))
        np.testing.assert_allclose(answer.outputs[0].as_numpy(), EXPECTED, rtol=1e-5, atol=1e-6)
    await grpc.close()
    await rest.close()
    print("kserve: REST and gRPC: all as expected")


asyncio.run(main())
