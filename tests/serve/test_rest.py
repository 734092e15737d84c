"""The Open Inference Protocol over HTTP, as a client without our code sees it."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.serve.errors import Status
from tilewright.serve.server import Server

from .conftest import expected


def ask(
    server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, bytes]:
    """Status, the JSON of the answer, and the bytes after it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    connection.request(method, path, data, headers or {})
    answer = connection.getresponse()
    content = answer.read()
    length = int(answer.getheader("Inference-Header-Content-Length") or len(content))
    connection.close()
    return answer.status, json.loads(content[:length]) if length else None, content[length:]


def tensor(array: np.ndarray, datatype: str, name: str = "x", **fields: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(array.shape), **fields}


X = np.random.default_rng(2).standard_normal((2, 4)).astype(np.float32)
INFER = "/v2/models/layer/infer"


def test_health_and_metadata(server: Server) -> None:
    assert ask(server, "GET", "/v2/health/live")[:2] == (200, {"live": True})
    assert ask(server, "GET", "/v2/health/ready")[1]["ready"] is True
    assert ask(server, "GET", "/v2")[1]["name"] == "tilewright"
    status, model, _ = ask(server, "GET", "/v2/models/layer")
    assert status == 200
    assert model == {
        "name": "layer",
        "versions": ["1"],
        "platform": "tilewright",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }
    assert ask(server, "GET", "/v2/models/layer/versions/1")[1] == model
    assert ask(server, "GET", "/v2/models/layer/versions/1/ready")[1]["ready"] is True
    assert ask(server, "GET", "/v2/models/layer/config")[1]["input"][0]["data_type"] == "TYPE_FP32"


@pytest.mark.parametrize("nested", [True, False])
def test_json_tensors(server: Server, nested: bool) -> None:
    data = X.tolist() if nested else X.reshape(-1).tolist()
    body = {"id": "42", "inputs": [tensor(X, "FP32", data=data)]}
    status, answer, _ = ask(server, "POST", INFER, body)
    assert status == 200
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("42", "layer", "1")
    [y] = answer["outputs"]
    assert (y["name"], y["datatype"], y["shape"]) == ("y", "FP32", [2, 3])
    np.testing.assert_allclose(np.reshape(y["data"], (2, 3)), expected(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compress", [False, True])
def test_binary_tensors(server: Server, compress: bool) -> None:
    raw = X.tobytes()
    head = json.dumps({
        "inputs": [tensor(X, "FP32", parameters={"binary_data_size": len(raw)})],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip
    body, headers = head + raw, {"Inference-Header-Content-Length": str(len(head))}
    if compress:
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    status, answer, tail = ask(server, "POST", INFER, body, headers)
    assert status == 200
    assert answer["outputs"][0]["parameters"]["binary_data_size"] == len(tail) == 24
    np.testing.assert_allclose(np.frombuffer(tail, "<f4").reshape(2, 3), expected(X), rtol=1e-5, atol=1e-6)


def test_texts_in_both_forms(server: Server) -> None:
    texts = ["", "äß", "plain"]
    body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [3], "data": texts}]}
    assert ask(server, "POST", "/v2/models/echo/infer", body)[1]["outputs"][0]["data"] == texts
    raw = b"".join(struct.pack("<I", len(t)) + t for t in (b"\xff\x00", b""))
    head = json.dumps({
        "inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(raw)}}],
        "parameters": {"binary_data_output": True},
    }).encode()  # fmt: skip
    headers = {"Inference-Header-Content-Length": str(len(head))}
    assert ask(server, "POST", "/v2/models/echo/infer", head + raw, headers)[2] == raw


@pytest.mark.parametrize(
    ("datatype", "dtype"), [("FP16", np.float16), ("BF16", ml_dtypes.bfloat16), ("BOOL", np.bool_), ("INT64", np.int64)]
)
def test_element_types(server: Server, datatype: str, dtype: Any) -> None:
    x = np.array([0, 1, 1, 0], dtype)
    name = {"FP16": "f16", "BF16": "bf16", "BOOL": "bool", "INT64": "i64"}[datatype]
    with tw.client.Client(server.url) as client:
        y = client.infer(f"echo-{name}", {"x": x})["y"]
    assert y.dtype == x.dtype and np.array_equal(y, x)


def test_the_client(server: Server) -> None:
    with tw.client.Client(server.url) as client:
        assert client.is_ready() and client.server()["name"] == "tilewright"
        outputs = client.infer("layer", {"x": X}, timeout=5.0, priority=1, id="a")
        np.testing.assert_allclose(outputs["y"], expected(X), rtol=1e-5, atol=1e-6)
        assert client.statistics("layer")[0]["inference_count"] == 2
        with pytest.raises(tw.Error, match="no model 'missing'") as error:
            client.infer("missing", {"x": X})
        assert error.value.status is Status.NOT_FOUND  # type: ignore[attr-defined]
        with pytest.raises(tw.Error, match="expected x: FP32"):
            client.infer("layer", {"z": X})
    with pytest.raises(tw.Error, match="does not answer"):
        tw.client.Client("http://127.0.0.1:1", timeout=1).server()
    with pytest.raises(tw.Error, match="no address"):
        tw.client.Client("ftp://x").server()


GOOD = tensor(X, "FP32", data=X.tolist())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "no JSON"),
        (b"[1", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"inputs": [' + b"9" * 5000 + b"]}", "no JSON"),
        ([], "the body: is no object"),
        ({}, "inputs: is no list"),
        ({"inputs": []}, "other inputs are wanted"),
        ({"inputs": [1]}, "an input: is no object"),
        ({"inputs": [{}]}, "a tensor has no name"),
        ({"inputs": [{"name": "x"}]}, "no datatype"),
        ({"inputs": [GOOD, GOOD]}, "is there twice"),
        ({"inputs": [GOOD | {"datatype": "FP99"}]}, "no such datatype"),
        ({"inputs": [GOOD | {"datatype": "FP64"}]}, "wrong datatype"),
        ({"inputs": [GOOD | {"shape": [2, -4]}]}, "is no shape"),
        ({"inputs": [GOOD | {"shape": [True, 8]}]}, "is no shape"),
        ({"inputs": [GOOD | {"shape": [1 << 62, 1 << 62]}]}, "is no shape"),
        ({"inputs": [GOOD | {"shape": [1 << 30, 1 << 30]}]}, "too many elements"),
        ({"inputs": [GOOD | {"shape": [0, 1 << 30, 1 << 30]}]}, "too many elements"),
        ({"inputs": [GOOD | {"shape": [1] * 17}]}, "is no shape"),
        ({"inputs": [GOOD | {"shape": [8]}]}, "wrong rank"),
        ({"inputs": [GOOD | {"shape": [4, 2]}]}, "wrong shape"),
        ({"inputs": [GOOD | {"data": [1, 2]}]}, "wrong number of elements"),
        ({"inputs": [GOOD | {"data": [[1, 2], 3]}]}, "nested unevenly"),
        ({"inputs": [GOOD | {"data": ["1"] * 8}]}, "no FP32"),
        ({"inputs": [GOOD | {"data": [1e300] * 8}]}, "does not fit FP32"),
        ({"inputs": [GOOD | {"data": {}}]}, "data is no list"),
        ({"inputs": [GOOD | {"parameters": {"binary_data_size": 10**20}}]}, "no length within the body"),
        ({"inputs": [GOOD | {"parameters": {"shared_memory_region": "r"}}]}, "shared memory wants"),
        ({"inputs": [GOOD], "outputs": [{"name": "z"}]}, "no such output"),
        ({"inputs": [GOOD], "parameters": {"timeout": "soon"}}, "is no time"),
        ({"inputs": [GOOD], "parameters": {"priority": -1}}, "is no priority"),
        ({"inputs": [GOOD], "id": 7}, "id: is no string"),
    ],
)
def test_what_is_wrong_is_said(server: Server, body: Any, text: str) -> None:
    status, answer, _ = ask(server, "POST", INFER, body)
    assert status == 400
    assert text in answer["error"]


def test_json_without_a_form(server: Server) -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [NaN]}]}'
    assert "NaN is no JSON" in ask(server, "POST", "/v2/models/echo-f32/infer", body)[1]["error"]
    head = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]}
    )
    headers = {"Inference-Header-Content-Length": str(len(head))}
    raw = np.array([np.inf], np.float32).tobytes()
    status, answer, _ = ask(server, "POST", "/v2/models/echo-f32/infer", head.encode() + raw, headers)
    assert status == 400 and "JSON has no form for NaN" in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v3", 404),
        ("GET", "/v2/models/none", 404),
        ("GET", "/v2/models/layer/versions/9", 404),
        ("GET", "/v2/models/layer/other", 404),
        ("GET", INFER, 405),
        ("DELETE", "/v2", 405),
        ("POST", "/v2/repository/index", 403),
        ("GET", "/v2/systemsharedmemory/status", 403),
        ("GET", "/v2/models/%ff", 400),
        ("GET", "/v2/models/..%2f..%2fetc", 404),
    ],
)
def test_paths(server: Server, method: str, path: str, status: int) -> None:
    result, answer, _ = ask(server, method, path)
    assert result == status and answer["error"]


def raw_exchange(server: Server, data: bytes) -> bytes:
    """All that the server says to these bytes until it closes, or for half a second."""
    with socket.create_connection(("127.0.0.1", server.http_port)) as sock:
        sock.sendall(data)
        sock.settimeout(0.5)
        answer = b""
        try:
            while part := sock.recv(65536):
                answer += part
        except (TimeoutError, ConnectionResetError):
            pass
        return answer


def test_requests_after_each_other_are_answered_in_order(server: Server) -> None:
    first = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /v2/models/none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = raw_exchange(server, first * 20 + last)
    assert answer.count(b"HTTP/1.1 200") == 20 and answer.count(b"HTTP/1.1 404") == 1
    assert answer.rindex(b"200 OK") < answer.index(b"404 Not Found")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"POST /v2 HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /v2 HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", b"400"),
        (b"POST /v2 HTTP/1.1\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc", b"400"),
    ],
)
def test_limits(server: Server, data: bytes, status: bytes) -> None:
    answer = raw_exchange(server, data)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b'{"error"' in answer
