"""The load generator over both ways to a server, and beside servers that end or talk nonsense."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.serve.load import Http, Local, Target, offer, request_bytes
from tilewright.serve.models import Served
from tilewright.serve.protocol.frames import LENGTH
from tilewright.serve.server import Server, Settings

X = {"x": np.ones((2, 4), np.float32)}


def test_each_way_counts_what_the_server_has_answered(layer: tw.Model, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    served = Served("layer", "1", layer)
    with Server(Settings(http_port=0, local=path), [served]) as server:
        targets: list[Target] = [
            Local(path, "layer", X, 30.0),
            Http(server.url, request_bytes(server.url, "layer", X, 30.0)),
        ]
        for number, target in enumerate(targets, 1):
            point = asyncio.run(offer(target, 400.0, 30.0, seconds=0.2, connections=4))
            (count,) = (point.statuses[status] for status in point.statuses if status == 200)
            assert set(point.statuses) == {200} and point.goodput == pytest.approx(count / 0.2)
            assert served.statistics.success.count == count * number
        point = asyncio.run(offer(Local(path, "layer", X, 1e-9), 400.0, 30.0, seconds=0.2, connections=4))
        assert set(point.statuses) == {429} and point.goodput == 0


def test_no_server(tmp_path: Path) -> None:
    for target in (Http("http://127.0.0.1:1", b""), Local(str(tmp_path / "none"), "layer", X)):
        with pytest.raises(tw.Error, match="does not answer"):
            asyncio.run(offer(target, 10.0, 1.0, seconds=0.1))


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", LENGTH.pack(1 << 31) + bytes(1 << 10)])
def test_a_server_that_ends_or_talks_nonsense(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.recv(1 << 16)
                connection.sendall(answer)
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        point = asyncio.run(
            offer(Http(url, request_bytes(url, "layer", X, None)), 100.0, 0.1, seconds=0.2, connections=2)
        )
        thread.join()
        assert set(point.statuses) == {0} and point.goodput == 0
