"""The protocol as OpenAPI 3.1, for tools that make requests from a description (schemathesis).

`python openapi.py HTTP_PORT GRPC_PORT [CASES]` in the environment of the clients runs schemathesis: no answer may be a
server's error, and each must be of the form that is described.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CASES = 10_000
_STRING, _OBJECT = {"type": "string"}, {"type": "object"}
_DATATYPES = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16 BYTES".split()


def of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


PARAMETERS = of({
    "timeout": {"type": "integer"}, "priority": {"type": "integer"}, "binary_data_output": {"type": "boolean"},
    "binary_data_size": {"type": "integer"}, "shared_memory_region": _STRING,
})  # fmt: skip
TENSOR = {
    "name": {"type": "string", "examples": ["x", "y"]},
    "datatype": {"type": "string", "enum": _DATATYPES},
    "shape": array({"type": "integer"}),
    "parameters": PARAMETERS,
    "data": array({"anyOf": [{"type": "number"}, _STRING, {"type": "boolean"}, {"type": "array"}]}),
}
WANTED = of({"name": TENSOR["name"], "parameters": of({"binary_data": {"type": "boolean"}})}, "name")
REQUEST = of(
    {
        "id": _STRING,
        "parameters": PARAMETERS,
        "inputs": array(of(TENSOR, "name", "datatype", "shape")),
        "outputs": array(WANTED),
    },
    "inputs",
)
ANSWER = of({"model_name": _STRING, "model_version": _STRING, "id": _STRING, "outputs": array(of(TENSOR, "name"))},
            "model_name", "outputs")  # fmt: skip
METADATA = of({"name": _STRING, "versions": array(_STRING), "platform": _STRING, "inputs": array(_OBJECT),
               "outputs": array(_OBJECT)}, "name", "platform", "inputs", "outputs")  # fmt: skip
ERROR = {"description": "refused", "content": {"application/json": {"schema": of({"error": _STRING}, "error")}}}
GOOD = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}],
    "outputs": [{"name": "y"}],
}


def operation(
    answer: dict[str, Any] | None, *names: str, body: dict[str, Any] | None = None, example: Any = None
) -> Any:
    """An operation at a path with these parameters; an answer of None has no body."""
    done: dict[str, Any] = {"description": "done"}
    if answer is not None:
        done["content"] = {"application/json": {"schema": answer}}
    operation: dict[str, Any] = {
        "responses": {"200": done, "default": ERROR},
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
             "examples": {"good": {"value": {"model": "layer", "version": "1"}.get(name, "r")}}}
            for name in names
        ],
    }  # fmt: skip
    if body is not None:
        operation["requestBody"] = {
            "content": {"application/json": {"schema": body, "examples": {"good": {"value": example}}}}
        }
        operation["parameters"].append({"name": "X-Timeout-Ms", "in": "header", "schema": {"type": "integer"}})
    return operation


def described() -> dict[str, Any]:
    """The whole description."""
    model, version = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
    region = of({"key": _STRING, "offset": {"type": "integer"}, "byte_size": {"type": "integer"}}, "key")
    paths: dict[str, Any] = {
        "/v2": {"get": operation(of({"name": _STRING, "extensions": array(_STRING)}, "name"))},
        "/v2/health/live": {"get": operation(_OBJECT)},
        "/v2/health/ready": {"get": operation(_OBJECT)},
        "/v2/models/stats": {"get": operation(_OBJECT)},
        "/v2/repository/index": {
            "post": operation(array(_OBJECT), body=of({"ready": {"type": "boolean"}}), example={})
        },
        "/v2/repository/models/{name}/load": {"post": operation(None, "name", body=_OBJECT, example={})},
        "/v2/systemsharedmemory/status": {"get": operation(array(_OBJECT))},
        "/v2/systemsharedmemory/region/{name}/register": {
            "post": operation(None, "name", body=region, example={"key": "/none", "offset": 0, "byte_size": 64})
        },
        "/v2/systemsharedmemory/region/{name}/unregister": {"post": operation(None, "name")},
    }
    for prefix, names in ((model, ("model",)), (version, ("model", "version"))):
        paths[prefix] = {"get": operation(METADATA, *names)}
        for part in ("ready", "config", "stats"):
            paths[f"{prefix}/{part}"] = {"get": operation(_OBJECT, *names)}
        paths[f"{prefix}/infer"] = {"post": operation(ANSWER, *names, body=REQUEST, example=GOOD)}
    return {"openapi": "3.1.0", "info": {"title": "Open Inference Protocol", "version": "2"}, "paths": paths}


def main() -> int:
    port, cases = int(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else CASES
    document = described()
    # Of paths without parameters there are few cases.
    operations = sum(len(methods) for path, methods in document["paths"].items() if "{" in path)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "openapi.json"
        path.write_text(json.dumps(document))
        url = f"http://127.0.0.1:{port}"
        command = [
            str(Path(sys.executable).parent / "schemathesis"), "run", str(path), "--url", url, "--mode", "all",
            "--phases", "examples,coverage,fuzzing", "--max-examples", str(-(-cases // operations)), "--seed", "1",
            "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance",
            "--suppress-health-check", "all", "--request-timeout", "30", "--no-color",
        ]  # fmt: skip
        start = time.monotonic()
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    print(result.stdout[-6000:], result.stderr[-2000:])
    generated = re.search(r"(\d+) generated", result.stdout)
    print(f"schemathesis: {generated[1] if generated else '?'} cases in {time.monotonic() - start:.0f} s")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
