"""A share of the hostile requests of `make serve`."""

from __future__ import annotations

from typing import Any

import tilewright as tw
from tilewright.serve.models import Served
from tilewright.serve.server import Server, Settings

from . import hostile_grpc
from .conftest import echo
from .hostile import attack


def test_hostile_requests(server: Server) -> None:
    assert server.http_port is not None
    seen = attack(server.http_port, 1500, seed=7)
    assert seen[200] > 50 and seen[400] > 300  # both good and bad ones were read to their end


def test_hostile_messages(layer: tw.Model) -> None:
    models: list[Any] = [Served("layer", "1", layer), echo()]
    with Server(Settings(http_port=None, grpc_port=0, shared_memory=True), models) as server:
        assert server.grpc_port is not None
        seen = hostile_grpc.attack(server.grpc_port, 700, seed=5)
    assert seen["OK"] > 10 and seen["INVALID_ARGUMENT"] > 200
