"""A Unix socket with shared memory: right answers, and clients that do not keep to the rules."""

from __future__ import annotations

import os
import random
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.serve.core import Options
from tilewright.serve.errors import Status
from tilewright.serve.local_client import LocalModel
from tilewright.serve.models import Served
from tilewright.serve.protocol.frames import CALL, LENGTH, TENSOR
from tilewright.serve.server import Server, Settings
from tilewright.serve.tokens import Tokens

from .conftest import echo, expected

X = np.random.default_rng(6).standard_normal((2, 4)).astype(np.float32)


@pytest.fixture
def path(layer: tw.Model, tmp_path: Path) -> Iterator[str]:
    where = str(tmp_path / "local.sock")
    models = [Served("layer", "1", layer), *(echo(f"echo-{t}", t) for t in ("bool", "bf16", "string"))]
    with Server(Settings(http_port=None, local=where), models):
        yield where
    assert not Path(where).exists()


def test_calls(path: str) -> None:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with tw.client.local(path, "layer") as layer:
        for rows in (1, 5, 2):
            x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
            np.testing.assert_allclose(layer(x), expected(x), rtol=1e-5, atol=1e-6)
        with pytest.raises(tw.Error, match="wrong rank"):
            layer(X[0])
        with pytest.raises(tw.Error, match="wrong datatype"):
            layer(X.astype(np.float64))
        with pytest.raises(tw.Error, match="number of inputs"):
            layer()
        with pytest.raises(tw.Error, match="does not fit the memory"):
            layer(np.zeros((1 << 18, 4), np.float32))
        with pytest.raises(tw.Error, match="deadline") as error:
            layer(X, timeout=1e-9)
        assert error.value.status is Status.DROPPED  # type: ignore[attr-defined]
        np.testing.assert_allclose(layer(X), expected(X), rtol=1e-5, atol=1e-6)
    with tw.client.local(path, "echo-bool") as model:
        assert model(np.array([True, False])).tolist() == [True, False]
    with pytest.raises(tw.Error, match="no model 'none'"):
        tw.client.local(path, "none")


@pytest.mark.parametrize("inline", [0.0, 1.0])
def test_a_client_that_writes_while_its_call_is_computed(tmp_path: Path, inline: float) -> None:
    """The model sees what was there when its batch began, on a lane and on the loop's thread."""
    seen: list[np.ndarray] = []
    clients: list[LocalModel] = []

    def call(x: np.ndarray) -> np.ndarray:
        clients[0]._memory[:] = 255  # of the other side of the mapping
        seen.append(x)
        return x

    where = str(tmp_path / "local.sock")
    settings = Settings(http_port=None, local=where, core=Options(inline=inline))
    with Server(settings, [echo("f", "f32", call)]):
        with LocalModel(where, "f") as model:
            clients.append(model)
            assert model(np.arange(5, dtype=np.float32)).tolist() == [0, 1, 2, 3, 4]
    assert seen[0].tolist() == [0, 1, 2, 3, 4]


def test_an_interrupted_call_ends_the_session(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that is still to come is not given to the next call."""

    def interrupted() -> bytes:
        raise KeyboardInterrupt

    with tw.client.local(path, "layer") as layer:
        with monkeypatch.context() as patch:
            patch.setattr(layer, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                layer(X)
        with pytest.raises(tw.Error, match="does not answer"):
            layer(2 * X)
    with tw.client.local(path, "echo-string") as model, pytest.raises(tw.Error, match="BYTES do not go"):
        model(np.array([b"a"], object))


def test_the_client_loads_neither_compiler_nor_server() -> None:
    code = "import sys, tilewright as tw; tw.client.local; print(*(m for m in sys.modules if 'tilewright' in m))"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "compiler" not in names and "runtime" not in names and "serve.core" not in names


def test_tokens(layer: tw.Model, tmp_path: Path) -> None:
    path = str(tmp_path / "local.sock")
    tokens = Tokens({"a-token-that-is-long": ["infer"]})
    with Server(Settings(http_port=None, local=path, tokens=tokens), [Served("layer", "1", layer)]):
        with pytest.raises(tw.Error, match="token"):
            tw.client.local(path, "layer")
        with tw.client.local(path, "layer", token="a-token-that-is-long") as model:
            np.testing.assert_allclose(model(X), expected(X), rtol=1e-5, atol=1e-6)


def greet(path: str, greeting: bytes, *files: int) -> tuple[socket.socket, bytes]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(5)
    sock.connect(path)
    socket.send_fds(sock, [LENGTH.pack(len(greeting)) + greeting], list(files))
    return sock, sock.recv(1 << 16)


@pytest.mark.parametrize("kind", ["none", "not sealed", "no memory", "empty"])
def test_memory_that_could_go_away_is_refused(path: str, kind: str) -> None:
    file = os.open("/dev/null", os.O_RDWR) if kind == "no memory" else os.memfd_create("m", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 4096) if kind == "not sealed" else None
    sock, answer = greet(path, b'{"model": "layer"}', *([] if kind == "none" else [file]))
    assert b'"error"' in answer
    sock.close()
    os.close(file)


def test_hostile_messages(path: str) -> None:
    """Whatever comes after the greeting, the session answers or ends, and others go on."""
    import fcntl

    source = random.Random(8)
    file = os.memfd_create("m", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 4096)
    fcntl.fcntl(file, 1033, 2)
    good = CALL.pack(1, 0.0, 0, 1, 1024, 3072) + TENSOR.pack(0, 2, 0) + struct.pack("<2q", 2, 4)
    for _ in range(300):
        message = bytearray(good)
        for _ in range(source.choice((1, 3, 9))):
            message[source.randrange(len(message))] = source.choice((0, 1, 127, 255, source.randrange(256)))
        if source.random() < 0.2:
            del message[source.randrange(len(message)) :]
        sock, answer = greet(path, b'{"model": "layer"}', file)
        assert b'"inputs"' in answer
        sock.sendall(LENGTH.pack(len(message)) + message)
        assert len(sock.recv(1 << 16)) > LENGTH.size
        sock.close()
    for greeting in (b"", b"[]", b"\xff", b"[" * 60_000, b'{"model": 7}'):
        sock, answer = greet(path, greeting, file)
        assert b'"error"' in answer or not answer
        sock.close()
    os.close(file)
    test_calls(path)
