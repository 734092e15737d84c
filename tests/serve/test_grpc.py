"""The protocol over gRPC, asked with messages of its own; `make serve` asks with Triton's clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

import tilewright as tw
from tilewright.serve.models import Served
from tilewright.serve.protocol.generated import inference_pb2 as pb
from tilewright.serve.protocol.grpc_server import SERVICE
from tilewright.serve.server import Server, Settings

from .conftest import echo, expected

X = np.random.default_rng(3).standard_normal((2, 4)).astype(np.float32)


class Stub:
    """The methods of the service by their names."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def __call__(self, method: str, request: Any = None, **options: Any) -> Any:
        kind = getattr(pb, f"{method}Response")
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", lambda m: m.SerializeToString(), kind.FromString)
        return call(request if request is not None else getattr(pb, f"{method}Request")(), timeout=20, **options)


@pytest.fixture
def stub(layer: tw.Model) -> Iterator[Stub]:
    models = [Served("layer", "1", layer), echo(), echo("echo-bf16", "bf16"), echo("echo-i64", "i64")]
    with Server(Settings(http_port=None, grpc_port=0), models) as server:
        assert server.grpc_port is not None
        created = Stub(server.grpc_port)
        yield created
        created.channel.close()


def infer(name: str, array: np.ndarray, datatype: str, **fields: Any) -> Any:
    message = pb.ModelInferRequest(model_name=name, **fields)
    message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    return message


def test_health_and_metadata(stub: Stub) -> None:
    assert stub("ServerLive").live and stub("ServerReady").ready
    assert stub("ServerMetadata").name == "tilewright"
    assert stub("ModelReady", pb.ModelReadyRequest(name="layer")).ready
    assert not stub("ModelReady", pb.ModelReadyRequest(name="none")).ready
    model = stub("ModelMetadata", pb.ModelMetadataRequest(name="layer"))
    assert [(t.name, t.datatype, list(t.shape)) for t in (*model.inputs, *model.outputs)] == [
        ("x", "FP32", [-1, 4]),
        ("y", "FP32", [-1, 3]),
    ]
    config = stub("ModelConfig", pb.ModelConfigRequest(name="layer")).config
    assert config.input[0].data_type == 11


def test_raw_and_typed_contents(stub: Stub) -> None:
    answer = stub("ModelInfer", infer("layer", X, "FP32", id="7"))
    assert answer.id == "7"
    y = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(answer.outputs[0].shape)
    np.testing.assert_allclose(y, expected(X), rtol=1e-5, atol=1e-6)
    message = pb.ModelInferRequest(model_name="layer")
    message.inputs.add(name="x", datatype="FP32", shape=X.shape).contents.fp32_contents.extend(X.reshape(-1).tolist())
    assert stub("ModelInfer", message).raw_output_contents == answer.raw_output_contents
    stats = stub("ModelStatistics", pb.ModelStatisticsRequest(name="layer")).model_stats[0]
    assert (stats.inference_count, stats.inference_stats.success.count) == (4, 2)


def test_texts_and_bf16(stub: Stub) -> None:
    message = pb.ModelInferRequest(model_name="echo")
    message.inputs.add(name="x", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"\xff", b""])
    assert stub("ModelInfer", message).raw_output_contents[0] == b"\x01\0\0\0\xff\0\0\0\0"
    bits = np.array([0x3F80, 0xFF80, 0x7FC0], np.uint16)  # one, minus infinity, NaN
    assert stub("ModelInfer", infer("echo-bf16", bits, "BF16")).raw_output_contents[0] == bits.tobytes()


def parameters(**values: int) -> dict[str, Any]:
    return {"parameters": {k: pb.InferParameter(int64_param=v) for k, v in values.items()}}


@pytest.mark.parametrize(
    ("request_of", "code", "text"),
    [
        (lambda: infer("none", X, "FP32"), "NOT_FOUND", "no model"),
        (lambda: infer("layer", X[0], "FP32"), "INVALID_ARGUMENT", "wrong rank"),
        (lambda: infer("layer", X, "INT32"), "INVALID_ARGUMENT", "wrong datatype"),
        (lambda: infer("layer", X, "INT4"), "INVALID_ARGUMENT", "no such datatype"),
        (lambda: infer("layer", X.astype(np.float64), "FP32"), "INVALID_ARGUMENT", "wrong number of bytes"),
        (lambda: infer("layer", X, "FP32", raw_input_contents=[b""]), "INVALID_ARGUMENT", "wrong number of bytes"),
        (lambda: infer("layer", X, "FP32", **parameters(priority=-3)), "INVALID_ARGUMENT", "no priority"),
        (lambda: infer("layer", X, "FP32", **parameters(timeout=1)), "RESOURCE_EXHAUSTED", "deadline"),
        (lambda: pb.ModelInferRequest(model_name="layer"), "INVALID_ARGUMENT", "other inputs"),
    ],
)
def test_what_is_wrong_is_said(stub: Stub, request_of: Any, code: str, text: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        stub("ModelInfer", request_of())
    assert error.value.code().name == code and text in error.value.details()


def test_extensions_are_off(stub: Stub) -> None:
    for method in ("RepositoryIndex", "RepositoryModelUnload", "SystemSharedMemoryStatus"):
        with pytest.raises(grpc.RpcError) as error:
            stub(method)
        assert error.value.code().name == "PERMISSION_DENIED"
