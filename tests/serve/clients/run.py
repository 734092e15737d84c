"""Other people's clients against a server of ours: `make serve`. Each runs in the environment that holds them all."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

import tilewright as tw
from tests.serve.conftest import echo, layer_model
from tilewright.serve.models import Served
from tilewright.serve.server import Server, Settings

CLIENTS = ("triton", "open_inference_client", "kserve_client", "curl", "manifests", "openapi")


def main() -> None:
    """`python -m tests.serve.clients.run PYTHON [CLIENT]...`: PYTHON has the clients."""
    python, *names = sys.argv[1:]
    here = Path(__file__).parent
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(layer_model(), Path(folder) / "another.onnx")
        layer = tw.Model(tw.compile_program(Path(folder) / "another.onnx"))
        models = [Served("layer", "1", layer), echo(), echo("echo-bf16", "bf16")]
        settings = Settings(http_port=0, grpc_port=0, repository=Path(folder), shared_memory=True)
        with Server(settings, models) as server:
            for name in names or CLIENTS:
                command = [python, str(here / f"{name}.py"), str(server.http_port), str(server.grpc_port)]
                if subprocess.run(command, timeout=1800, check=False).returncode:
                    failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
