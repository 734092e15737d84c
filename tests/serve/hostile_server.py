"""The server that `hostile.py` attacks, in a process of its own; prints its port."""

from __future__ import annotations

import tempfile
from pathlib import Path

import tilewright as tw
from tests.serve.conftest import echo, layer_model
from tilewright.serve.models import Served
from tilewright.serve.server import Server, Settings, run


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        layer = Served("layer", "1", tw.Model(tw.compile_program(layer_model())))
        settings = Settings(http_port=0, repository=Path(folder), shared_memory=True)
        server = Server(settings, [layer, echo()])
        server.on_start = lambda: print(server.http_port, flush=True)
        run(server)


if __name__ == "__main__":
    main()
