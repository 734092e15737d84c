"""The protocol as OpenAPI 3.1, for tools that make requests from a description (schemathesis).

`python openapi.py HTTP_PORT GRPC_PORT` in the environment of the clients runs schemathesis: no answer may be a server's
error, and each must be of the form that is described. It runs in parts, so that 10,000 cases can be had in pieces: the
variables CASES, SEED (of the first part) and SECONDS_AT_MOST say which.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CASES = 10_000
EXAMPLES = 40
"""Cases of an operation in one part."""
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


def run_part(path: Path, url: str, seed: int, examples: int, phases: str) -> tuple[int, int]:
    """Run schemathesis once; its exit code and how many cases it number."""
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "run", str(path), "--url", url, "--mode", "all",
        "--phases", phases, "--max-examples", str(examples), "--seed", str(seed), "--generation-database", "none",
        "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance",
        "--suppress-health-check", "all", "--request-timeout", "30", "--no-shrink", "--no-color",
    ]  # fmt: skip
    start, used = time.monotonic(), os.times()
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)
    generated = re.search(r"(\d+) generated", result.stdout)
    cases = int(generated[1]) if generated else 0
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    text = f"seed {seed}, {phases}: {cases} cases in {time.monotonic() - start:.0f} s, {cpu:.0f} s of a core"
    print(text if result.returncode == 0 else f"{text}\n{result.stdout[-6000:]}\n{result.stderr[-2000:]}", flush=True)
    return result.returncode, cases


def main() -> int:
    """Parts of few cases with seeds of their own, until there are enough: what one part costs grows with the cases that
    it keeps, and a part that fails says which seed repeats it."""
    port, cases = int(sys.argv[1]), int(os.environ.get("CASES", CASES))
    first, limit = int(os.environ.get("SEED", 1)), float(os.environ.get("SECONDS_AT_MOST", 1700))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "openapi.json"
        path.write_text(json.dumps(described()))
        url, total, start, seed, failed = f"http://127.0.0.1:{port}", 0, time.monotonic(), first, []
        while total < cases and time.monotonic() - start < limit:
            phases = "examples,coverage,fuzzing" if seed == 1 else "fuzzing"  # the first two are the same for each seed
            code, number = run_part(path, url, seed, EXAMPLES, phases)
            failed += [seed] * (code != 0)
            if number == 0:
                break
            total, seed = total + number, seed + 1
    print(f"schemathesis: {total} of {cases} cases with the seeds {first} to {seed - 1}, failed: {failed or 'none'}")
    return 1 if failed or total < cases else 0


if __name__ == "__main__":
    sys.exit(main())
