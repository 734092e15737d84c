"""Requests that look like the one before them are parsed once: whatever follows whatever, each gets its own answer."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import grpc
import httptools
import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.specs import InputSpec, OutputSpec
from tilewright.serve.models import Function, Served
from tilewright.serve.protocol.generated import inference_pb2
from tilewright.serve.protocol.http import Limits
from tilewright.serve.server import Server, Settings
from tilewright.serve.tensors import binary_request

from .conftest import expected

pb: Any = inference_pb2


def request(source: random.Random) -> tuple[bytes, np.ndarray, str]:
    """Bytes of a request for the layer, its input and its id: of few kinds, so that many are alike."""
    x = np.random.default_rng(source.randrange(1 << 30)).standard_normal((source.choice((1, 1, 1, 3)), 4), np.float32)
    identity = source.choice(("", "", "", "a", 'b"\\'))
    extra = source.choice(("", "", "X-Timeout-Ms: 10000\r\n", "Content-Type: application/octet-stream\r\n"))
    if source.random() < 0.1:
        tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.reshape(-1).tolist()}
        head, tail = json.dumps({"inputs": [tensor], "id": identity}).encode(), b""
    else:
        outputs = source.choice((None, None, ["y"]))
        head, tail = binary_request({"x": x}, outputs=outputs, id=identity)
        extra += f"Inference-Header-Content-Length: {len(head)}\r\n"
    lines = f"POST /v2/models/layer/infer HTTP/1.1\r\nHost: x\r\n{extra}Content-Length: {len(head + tail)}\r\n\r\n"
    return lines.encode() + head + tail, x, identity


class Answers:
    """Answers of a connection, as httptools reads them."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes, int]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._length = b"", 0
        self.feed = self._parser.feed_data

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"inference-header-content-length":
            self._length = int(value)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.messages.append((self._parser.get_status_code(), self._body, self._length))
        self._body, self._length = b"", 0


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_on_one_connection(server: Server, seed: int) -> None:
    source = random.Random(seed)
    asked, sent = [], b""
    answers = Answers()
    with socket.create_connection(("127.0.0.1", server.http_port or 0), timeout=20) as sock:
        for k in range(150):
            data, x, identity = request(source)
            asked.append((x, identity))
            sent += data
            if k < 149 and source.random() < 0.15 and len(asked) - len(answers.messages) < 8:
                continue  # the next one comes with it
            while sent:
                size = len(sent) if source.random() < 0.8 else source.randrange(1, len(sent) + 1)
                sock.sendall(sent[:size])
                sent = sent[size:]
            while len(answers.messages) < len(asked):
                answers.feed(sock.recv(1 << 16))
    for (x, identity), (status, body, length) in zip(asked, answers.messages, strict=True):
        assert status == 200, body
        message = json.loads(body[:length] if length else body)
        y = np.frombuffer(body[length:], np.float32) if length else np.array(message["outputs"][0]["data"], np.float32)
        assert message.get("id", "") == identity
        np.testing.assert_allclose(y.reshape(message["outputs"][0]["shape"]), expected(x), rtol=1e-5, atol=1e-6)


def test_a_header_that_closes_is_not_mistaken_for_the_one_before(server: Server) -> None:
    source = random.Random(1)
    data, _, _ = request(source)
    with socket.create_connection(("127.0.0.1", server.http_port or 0), timeout=20) as sock:
        for _ in range(3):
            sock.sendall(data)
            assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
        sock.sendall(data.replace(b"Host: x\r\n", b"Connection: close\r\n"))
        answer = b""
        while part := sock.recv(1 << 16):
            answer += part
        assert b"Connection: close" in answer


def test_grpc_with_inputs_alike(layer: tw.Model) -> None:
    with Server(Settings(http_port=None, grpc_port=0), [Served("layer", "1", layer)]) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            method = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelInferResponse.FromString,
            )
            for k in range(30):
                x = np.random.default_rng(k).standard_normal((1 + k % 3, 4), np.float32)
                message = pb.ModelInferRequest(
                    model_name="layer", id=str(k % 2 or ""), raw_input_contents=[x.tobytes()]
                )
                message.inputs.add(name="x", datatype="FP32", shape=x.shape)
                answer = method(message)
                assert answer.id == message.id and list(answer.outputs[0].shape) == [len(x), 3]
                y = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(-1, 3)
                np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
                message.raw_input_contents[0] += b"\0"
                with pytest.raises(grpc.RpcError, match="wrong number of bytes"):
                    method(message)


def test_a_server_that_spins(layer: tw.Model) -> None:
    x = np.ones((1, 4), np.float32)
    settings = Settings(http_port=0, spin=0.01)
    with Server(settings, [Served("layer", "1", layer)]) as server, tw.client.Client(server.url) as client:
        for _ in range(20):
            np.testing.assert_allclose(client.infer("layer", {"x": x})["y"], expected(x), rtol=1e-5)


LARGE_SHAPE = (64, 300)


def large(source: random.Random, kind: int) -> tuple[bytes, np.ndarray]:
    """Bytes of a request of 77 KB, and its input; of three kinds of headers, whose requests are of three lengths."""
    x = np.random.default_rng(source.randrange(1 << 30)).standard_normal(LARGE_SHAPE, np.float32)[kind:]
    head, tail = binary_request({"x": x})
    lines = (
        f"POST /v2/models/sums/infer HTTP/1.1\r\nHost: {'x' * kind}\r\nInference-Header-Content-Length: {len(head)}\r\n"
    )
    return f"{lines}Content-Length: {len(head + tail)}\r\n\r\n".encode() + head + tail, x


def test_large_requests_in_pieces_and_among_others() -> None:
    """Requests that are read to where their tensors stay: in pieces of any size, after each other, with others between
    them, and with a header that begins like the one before it."""
    source = random.Random(3)
    spec = InputSpec("x", "f32", ("rows", LARGE_SHAPE[1])), OutputSpec("y", "f32", ("rows",))
    seen: list[np.ndarray] = []

    def sums(x: np.ndarray) -> np.ndarray:
        assert x.flags.aligned
        seen.append(x)  # which must stay as it is, whatever comes after
        return x.sum(1)

    served = Served("sums", "1", Function(sums, spec[:1], spec[1:]))
    with (
        Server(Settings(http_port=0), [served]) as server,
        socket.create_connection(("127.0.0.1", server.http_port)) as c,
    ):
        inputs = []
        for _ in range(40):
            data, x = large(source, source.choice((0, 0, 0, 1, 2)))
            inputs.append(x)
            if source.random() < 0.3:
                data = b"GET /v2/health/live HTTP/1.1\r\nHost: \r\n\r\n" + data
            answers, wanted = Answers(), 1 + data.startswith(b"GET")
            at = 0
            while at < len(data):
                size = source.choice((7, 150, 5_000, 65_536, len(data)))
                c.sendall(data[at : at + size])
                at += size
            while len(answers.messages) < wanted:
                answers.feed(c.recv(1 << 16))
            status, body, length = answers.messages[-1]
            assert status == 200
            np.testing.assert_allclose(np.frombuffer(body[length:], np.float32), x.sum(1), rtol=1e-5)
    for got, x in zip(seen, inputs, strict=True):
        np.testing.assert_array_equal(got, x)


def test_a_large_request_that_does_not_end_is_cut_off() -> None:
    source = random.Random(4)
    spec = InputSpec("x", "f32", ("rows", LARGE_SHAPE[1])), OutputSpec("y", "f32", ("rows",))
    served = Served("sums", "1", Function(lambda x: x.sum(1), spec[:1], spec[1:]))
    settings = Settings(http_port=0, limits=Limits(body_seconds=0.3, header_seconds=0.3))
    with Server(settings, [served]) as server, socket.create_connection(("127.0.0.1", server.http_port)) as c:
        for cut in (0, 40_000):
            data, _ = large(source, 0)
            answers = Answers()
            c.sendall(data[: len(data) - cut])
            c.settimeout(20.0)
            while not answers.messages:
                answers.feed(c.recv(1 << 16))
            assert answers.messages[0][0] == (408 if cut else 200)
        assert c.recv(10) == b""
