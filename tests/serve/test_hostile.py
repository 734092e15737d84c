"""A share of the hostile requests of `make serve`."""

from __future__ import annotations

from tilewright.serve.server import Server

from .hostile import attack


def test_hostile_requests(server: Server) -> None:
    assert server.http_port is not None
    seen = attack(server.http_port, 1500, seed=7)
    assert seen[200] > 50 and seen[400] > 300  # both good and bad ones were read to their end
