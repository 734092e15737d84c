"""Asks a server with the protocol's own generated clients: `python open_inference_client.py HTTP_PORT GRPC_PORT`."""

from __future__ import annotations

import json
import sys

import grpc
import numpy as np
from open_inference.grpc import protocol
from open_inference.grpc.service import GRPCInferenceServiceStub
from open_inference.openapi.client import OpenInferenceClient
from open_inference.openapi.types import InferenceRequest

X = np.random.default_rng(5).standard_normal((2, 4)).astype(np.float32)
W = np.random.default_rng(0).standard_normal((4, 3), np.float32)
B = np.random.default_rng(1).standard_normal(3, np.float32)
EXPECTED = np.maximum(X @ W + B, 0)

http_port, grpc_port = sys.argv[1:]
rest = OpenInferenceClient(base_url=f"http://127.0.0.1:{http_port}")
rest.check_server_readiness()
rest.check_server_liveness()
rest.check_model_readiness("layer")
rest.check_model_version_readiness("layer", "1")
assert rest.read_server_metadata().name == "tilewright"
assert rest.read_model_metadata("layer").inputs[0].shape == [-1, 4]
tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": X.reshape(-1).tolist()}
answer = rest.model_infer("layer", request=InferenceRequest.parse_obj({"id": "a", "inputs": [tensor]}))
data = json.loads(answer.json())["outputs"][0]["data"]
np.testing.assert_allclose(np.reshape(data, (2, 3)), EXPECTED, rtol=1e-5, atol=1e-6)
stub = GRPCInferenceServiceStub(grpc.insecure_channel(f"127.0.0.1:{grpc_port}"))
request = protocol.ModelInferRequest(model_name="layer", raw_input_contents=[X.tobytes()])
request.inputs.add(name="x", shape=[2, 4], datatype="FP32")
got = stub.ModelInfer(request)
y = np.frombuffer(got.raw_output_contents[0], np.float32).reshape(2, 3)
np.testing.assert_allclose(y, EXPECTED, rtol=1e-5, atol=1e-6)
print("open-inference: REST and gRPC: all as expected")
