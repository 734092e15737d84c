"""Asks a server as users of Triton do, with their unmodified client: `python triton.py HTTP_PORT GRPC_PORT`.

Run by `make serve` in an environment that has tritonclient, in a process of its own.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm

X = np.random.default_rng(5).standard_normal((2, 4)).astype(np.float32)
W = np.random.default_rng(0).standard_normal((4, 3), np.float32)
B = np.random.default_rng(1).standard_normal(3, np.float32)
EXPECTED = np.maximum(X @ W + B, 0)


def layer_input(kind: Any, **options: Any) -> Any:
    created = kind.InferInput("x", list(X.shape), "FP32")
    created.set_data_from_numpy(X, **options)
    return created


def check(result: Any) -> None:
    np.testing.assert_allclose(result.as_numpy("y"), EXPECTED, rtol=1e-5, atol=1e-6)


def texts(kind: Any) -> tuple[Any, np.ndarray]:
    array = np.array([b"\xff\x00", b"", "äß".encode()], object)
    created = kind.InferInput("x", [3], "BYTES")
    created.set_data_from_numpy(array)
    return created, array


def bf16_input(kind: Any) -> tuple[Any, np.ndarray]:
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    created = kind.InferInput("x", [2], "BF16")
    created.set_data_from_numpy(array)
    return created, array


def common(client: Any, kind: Any, **options: Any) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("layer")
    assert not client.is_model_ready("none")
    client.get_server_metadata()
    client.get_model_metadata("layer")
    client.get_model_config("layer")
    check(client.infer("layer", [layer_input(kind, **options)], request_id="1"))
    check(
        client.infer(
            "layer", [layer_input(kind)], outputs=[kind.InferRequestedOutput("y")], priority=1, timeout=9_000_000
        )
    )
    created, array = texts(kind)
    assert client.infer("echo", [created]).as_numpy("y").tolist() == array.tolist()
    created, array = bf16_input(kind)
    np.testing.assert_array_equal(client.infer("echo-bf16", [created]).as_numpy("y"), array)
    client.get_inference_statistics("layer")
    try:
        client.infer("layer", [texts(kind)[0]])
    except kind.InferenceServerException as error:
        assert "wrong datatype" in str(error), error
    else:
        raise AssertionError("an error was expected")
    repository(client)
    memory(client, kind)


def repository(client: Any) -> None:
    client.get_model_repository_index()
    client.load_model("another")
    assert client.is_model_ready("another")
    client.unload_model("another")
    assert not client.is_model_ready("another")


def memory(client: Any, kind: Any) -> None:
    region = shm.create_shared_memory_region("r", "/tilewright-triton-test", 4096)
    try:
        shm.set_shared_memory_region(region, [X])
        client.register_system_shared_memory("r", "/tilewright-triton-test", 4096)
        client.get_system_shared_memory_status()
        supplied = kind.InferInput("x", list(X.shape), "FP32")
        supplied.set_shared_memory("r", X.nbytes)
        wanted = kind.InferRequestedOutput("y")
        wanted.set_shared_memory("r", 24, offset=1024)
        client.infer("layer", [supplied], outputs=[wanted])
        y = shm.get_contents_as_numpy(region, np.float32, [2, 3], offset=1024)
        np.testing.assert_allclose(y, EXPECTED, rtol=1e-5, atol=1e-6)
        client.unregister_system_shared_memory("r")
    finally:
        shm.destroy_shared_memory_region(region)


def http(port: int) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}", concurrency=4) as client:
        common(client, tritonclient.http, binary_data=False)
        pending = [client.async_infer("layer", [layer_input(tritonclient.http)]) for _ in range(20)]
        for request in pending:
            check(request.get_result())
        for algorithm in ("gzip", "deflate"):
            check(client.infer("layer", [layer_input(tritonclient.http)], request_compression_algorithm=algorithm))


def grpc(port: int) -> None:
    kind = tritonclient.grpc
    with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
        common(client, kind)
        got: list[Any] = []
        client.start_stream(callback=lambda result, error: got.append((result, error)))
        for _ in range(5):
            client.async_stream_infer("layer", [layer_input(kind)])
        client.stop_stream()
        assert len(got) == 5
        for result, error in got:
            assert error is None
            check(result)


async def http_aio(port: int) -> None:
    kind = tritonclient.http.aio
    async with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert await client.is_server_live() and await client.is_model_ready("layer")
        for result in await asyncio.gather(*(client.infer("layer", [layer_input(kind)]) for _ in range(20))):
            check(result)


async def grpc_aio(port: int) -> None:
    kind = tritonclient.grpc.aio
    async with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert await client.is_server_live() and await client.is_model_ready("layer")
        for result in await asyncio.gather(
            *(client.infer("layer", [layer_input(tritonclient.grpc)]) for _ in range(20))
        ):
            check(result)

        async def requests() -> Any:
            for _ in range(3):
                yield {"model_name": "layer", "inputs": [layer_input(tritonclient.grpc)]}

        async for result, error in client.stream_infer(requests()):
            assert error is None
            check(result)


def main() -> None:
    http_port, grpc_port = map(int, sys.argv[1:])
    http(http_port)
    grpc(grpc_port)
    asyncio.run(http_aio(http_port))
    asyncio.run(grpc_aio(grpc_port))
    print("tritonclient: http, grpc, http.aio, grpc.aio: all as expected")


if __name__ == "__main__":
    main()
