"""Things that operators look at and set: metrics, dashboard, access log, limits, TLS, a configuration's check."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import tilewright as tw
from tilewright.serve import config
from tilewright.serve.log import AccessLog
from tilewright.serve.models import Served
from tilewright.serve.protocol.generated import inference_pb2
from tilewright.serve.protocol.grpc_server import _answering, _streaming
from tilewright.serve.protocol.http import Limits
from tilewright.serve.server import Server, Settings
from tilewright.serve.tokens import Tokens

from .conftest import echo, expected
from .test_rest import ask

pb: Any = inference_pb2
X = np.random.default_rng(7).standard_normal((3, 4)).astype(np.float32)


def test_metrics_and_dashboard(layer: tw.Model) -> None:
    tokens = Tokens({"all-may-infer-here": ["infer"], "operators-of-this": ["metrics"]})
    served = Served("layer", "1", layer, promise=0.5)
    with Server(Settings(http_port=0, tokens=tokens), [served]) as server:
        with tw.client.Client(server.url, token="all-may-infer-here") as client:
            for _ in range(5):
                client.infer("layer", {"x": X})
            with pytest.raises(tw.Error):
                client.infer("layer", {"x": X[0]})
            with pytest.raises(tw.Error):
                client.infer("layer", {"x": X}, timeout=1e-6)
        assert ask(server, "GET", "/metrics")[0] == 401
        headers = {"Authorization": "Bearer operators-of-this"}
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
        connection.request("GET", "/metrics", headers=headers)
        text = connection.getresponse().read().decode()
        samples = {
            (s.name, s.labels.get("result", s.labels.get("le", ""))): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }
        assert samples["tilewright_requests_total", "answered"] == 5
        assert samples["tilewright_requests_total", "400"] == 1
        assert samples["tilewright_requests_total", "dropped: deadline"] == 1
        assert samples["tilewright_rows_total", ""] == 15
        assert (
            samples["tilewright_latency_seconds_bucket", "+Inf"] == samples["tilewright_latency_seconds_count", ""] == 5
        )
        assert samples["tilewright_batch_rows_bucket", "3"] == 5
        status, data, _ = ask(server, "GET", "/dashboard/data", headers=headers)
        [model] = data["models"]
        assert status == 200 and (model["answered"], model["failed"], model["dropped"]) == (5, 1, {"deadline": 1})
        assert 0 < model["latency"]["0.5"] <= model["latency"]["0.999"] and model["promise"] == 0.5
        connection.request("GET", "/dashboard")
        answer = connection.getresponse()
        page = answer.read()
        assert answer.getheader("Content-Type") == "text/html; charset=utf-8" and b"/dashboard/data" in page
        connection.close()


def test_access_log() -> None:
    log = io.StringIO()
    with Server(Settings(http_port=0, access_log=log), [echo()]) as server:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        ask(server, "GET", "/v2", headers={"traceparent": trace, "X-Request-Id": "mine"})
        ask(server, "GET", "/v2/models/none", headers={"traceparent": 'forged"\n'.strip()})
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(e["path"], e["status"]) for e in lines] == [("/v2", 200), ("/v2/models/none", 404)]
    assert (lines[0]["id"], lines[0]["traceparent"]) == ("mine", trace)
    assert lines[1]["id"] and "traceparent" not in lines[1]


def closes_within(server: Server, seconds: float, *parts: bytes, pause: float = 0.1) -> bytes:
    """The bytes that the server sends to a client that sends these parts slowly, until it closes."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=seconds) as sock:
        for part in parts:
            sock.sendall(part)
            time.sleep(pause)
        answer = b""
        while data := sock.recv(65536):
            answer += data
        return answer


def test_slow_clients_are_cut_off() -> None:
    limits = Limits(header_seconds=0.3, body_seconds=0.4, idle_seconds=0.5, connections=3)
    with Server(Settings(http_port=0, limits=limits), [echo()]) as server:
        assert closes_within(server, 5, b"GET /v2 HT", b"TP/1.1\r\n", b"a: ").startswith(b"HTTP/1.1 408")
        body = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"
        assert closes_within(server, 5, body).startswith(b"HTTP/1.1 408")
        assert closes_within(server, 5, b"") == b""  # one that says nothing
        several = [socket.create_connection(("127.0.0.1", server.http_port)) for _ in range(3)]
        time.sleep(0.1)
        assert closes_within(server, 5, b"").startswith(b"HTTP/1.1 503")
        for sock in several:
            sock.close()


def test_tls(tmp_path: Path, layer: tw.Model) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl makes the certificate")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    command = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )  # fmt: skip
    settings = Settings(http_port=0, grpc_port=0, certificate=(certificate, key))
    with Server(settings, [Served("layer", "1", layer)]) as server:
        trusted = ssl.create_default_context(cafile=str(certificate))
        with tw.client.Client(server.url, tls=trusted) as client:
            np.testing.assert_allclose(client.infer("layer", {"x": X})["y"], expected(X), rtol=1e-5, atol=1e-6)
        with tw.client.Client(server.url) as client, pytest.raises(tw.Error, match="does not answer"):
            client.server()
        with tw.client.Client(server.url.replace("https", "http")) as client, pytest.raises(tw.Error):
            client.server()
    with Server(Settings(http_port=0, certificate=(certificate, key), clients=certificate), [echo()]) as server:
        with tw.client.Client(server.url, tls=trusted) as client, pytest.raises(tw.Error, match="does not answer"):
            client.server()
        trusted.load_cert_chain(certificate, key)
        with tw.client.Client(server.url, tls=trusted) as client:
            assert client.server()["name"] == "tilewright"
    with pytest.raises(tw.Error, match="cannot be used for TLS"):
        Server(Settings(http_port=0, certificate=(key, key))).start()
    settings = Settings(http_port=None, grpc_port=0, certificate=(certificate, key), clients=certificate)
    with Server(settings, [echo()]) as server:
        root, pair = (
            certificate.read_bytes(),
            {"private_key": key.read_bytes(), "certificate_chain": certificate.read_bytes()},
        )
        for shown, answered in (({}, False), (pair, True)):
            credentials = grpc.ssl_channel_credentials(root, **shown)
            with grpc.secure_channel(f"127.0.0.1:{server.grpc_port}", credentials) as channel:
                live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
                if answered:
                    assert live(b"", timeout=20) == b"\x08\x01"
                else:
                    with pytest.raises(grpc.RpcError):
                        live(b"", timeout=20)


def test_access_log_of_grpc() -> None:
    log = io.StringIO()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Server(Settings(http_port=None, grpc_port=0, access_log=log), [echo()]) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            live(b"", metadata=[("traceparent", trace), ("x-request-id", "mine")])
            with pytest.raises(grpc.RpcError):
                channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")(b"\x0a\x04none")
            list(channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([b""])))
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(e["path"].rpartition("/")[2], e["status"]) for e in lines] == [
        ("ServerLive", "OK"), ("ModelMetadata", "NOT_FOUND"), ("ModelStreamInfer", "OK")
    ]  # fmt: skip
    assert (lines[0]["id"], lines[0]["traceparent"], lines[0]["out"]) == ("mine", trace, 2)


@pytest.mark.parametrize(
    ("error", "status"), [(asyncio.CancelledError(), "CANCELLED"), (ValueError("a defect"), "UNKNOWN")]
)
def test_the_access_log_says_how_a_call_of_grpc_ended(error: BaseException, status: str) -> None:
    context = SimpleNamespace(code=lambda: None, invocation_metadata=lambda: ())

    async def ModelLive(*_: object) -> None:
        raise error

    async def ModelStreamInfer(*_: object) -> AsyncIterator[None]:
        raise error
        yield

    async def calls() -> None:
        with pytest.raises(type(error)):
            await _answering(ModelLive, log.write)(pb.ModelReadyRequest(), context)
        with pytest.raises(type(error)):
            [answer async for answer in _streaming(ModelStreamInfer, log.write)(None, context)]

    lines = io.StringIO()
    log = AccessLog(lines)
    asyncio.run(calls())
    assert [json.loads(line)["status"] for line in lines.getvalue().splitlines()] == [status, status]


GOOD = """
http_port = 0
grpc_port = 8001
lanes = 2
workers = 2
access_log = "access.jsonl"
shared_memory = true
[limits]
body = 1024
header_seconds = 2.5
[tokens]
"a-token-that-is-long" = ["infer", "metrics"]
[models.layer]
path = "layer.onnx"
promise_ms = 20
max_batch = 16
[models."layer@2"]
path = "layer.onnx"
version = "2"
share = 0.1
[models.policy]
store = "policy"
"""


def test_configuration(tmp_path: Path, layer_path: Path) -> None:
    shutil.copy(layer_path, tmp_path / "layer.onnx")
    path = tmp_path / "serve.toml"
    path.write_text(GOOD)
    read = config.read(path)
    assert (read.settings.http_port, read.settings.grpc_port, read.workers) == (0, 8001, 2)
    assert (read.settings.core.lanes, read.settings.limits.body, read.settings.limits.header_seconds) == (2, 1024, 2.5)
    assert [(s.name, s.version, s.promise, s.max_batch, s.share) for s in read.sources] == [
        ("layer", "1", 0.02, 16, 1.0),
        ("layer", "2", None, 64, 0.1),
        ("policy", "1", None, 64, 1.0),
    ]
    assert read.sources[0].path == tmp_path / "layer.onnx" and read.sources[2].store == "policy"


def test_all_that_is_wrong_with_a_configuration_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        'http_port = 70000\ncolour = "red"\nlanes = 0\nmetrics = 1\n[limits]\nbody = "large"\n'
        '[tokens]\nshort = ["infer"]\n'
        '[models.a]\npath = "missing.onnx"\n[models.b]\n[models.c]\nstore = "s"\npromise_ms = -1\nshare = 2\n'
    )
    with pytest.raises(tw.Error) as error:
        config.read(path)
    text = str(error.value)
    for part in ("http_port", "colour", "lanes", "metrics", "limits.body", "too short", "models.a.path", "models.b",
                 "models.c.promise_ms", "models.c.share"):  # fmt: skip
        assert part in text
    path.write_text("a = ")
    with pytest.raises(tw.Error, match="is no TOML"):
        config.read(path)
    path.write_text("")
    with pytest.raises(tw.Error, match="names no model"):
        config.read(path)
    with pytest.raises(tw.Error, match="cannot be read"):
        config.read(tmp_path / "missing.toml")


def test_an_address_that_cannot_be_had() -> None:
    with Server(Settings(http_port=0), [echo()]) as server:
        with pytest.raises(tw.Error, match=f"127.0.0.1:{server.http_port}: HTTP cannot listen"):
            Server(Settings(http_port=server.http_port), [echo()]).start()
