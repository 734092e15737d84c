"""Asks a server with curl: `python curl.py HTTP_PORT GRPC_PORT`."""

from __future__ import annotations

import json
import subprocess
import sys

BASE = f"http://127.0.0.1:{sys.argv[1]}/v2"


def curl(path: str, *arguments: str) -> object:
    done = subprocess.run(["curl", "-sS", *arguments, BASE + path], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


body = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}]}
assert curl("/models/echo/infer", "-d", json.dumps(body))["outputs"][0]["data"] == ["a", "b"]
large = body | {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [20000], "data": ["text"] * 20000}]}
# curl asks for 100-continue before it sends a large body.
done = curl("/models/echo/infer", "-H", "Expect: 100-continue", "-d", json.dumps(large)[:100_000] + "")
assert "error" in done, "half a body is no JSON"
assert curl("/models/none")["error"]
print("curl: all as expected")
