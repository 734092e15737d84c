"""Untrusted StableHLO is parsed in a separate process, because MLIR's parser aborts the process on some damaged input.

    python -m tilewright.frontend.stablehlo.child < module > data

The answer is JSON, then the arrays one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.stablehlo.module import Block, Function, Module, Operation, Splat, Type
from tilewright.frontend.stablehlo.read import EXTENSIONS, numpy_type, parse_module
from tilewright.support.errors import Error, ModelError, UnsupportedError

SECONDS = 120
"""The time limit of the reader, in seconds."""
MEMORY = 16 << 30
"""The limit of the reader's address space, in bytes."""
MAX_BYTES = 1 << 31
"""The largest module in bytes."""


def read_outside(data: bytes) -> Module:
    """Parse text or bytecode in a separate process. Raises ModelError, also if that process dies."""
    if len(data) > MAX_BYTES:
        raise ModelError("the module is too large", expected=f"at most {MAX_BYTES} bytes", got=len(data))
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TILEWRIGHT_PLUGINS": "0"}
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError("reading the module takes too long", expected=f"at most {SECONDS} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = next((line for line in said if "LLVM ERROR" in line or "Error" in line), said[-1] if said else "")
        raise ModelError("this is no StableHLO that jaxlib can read", got=why[:300] or f"exit {done.returncode}")
    return unpacked(done.stdout)


def answer(data: bytes) -> bytes:
    """Parse text or bytecode, and serialise the module, or the error, as `unpacked` reads it."""
    try:
        return packed(parse_module(data))
    except Error as error:
        said = {"error": error.what, "expected": error.expected, "got": error.got, "hint": error.hint}
        said["unsupported"] = isinstance(error, UnsupportedError)  # type: ignore[assignment]
        head = json.dumps(said).encode()
        return len(head).to_bytes(8, "little") + head


# --- the wire -------------------------------------------------------------------------------------------------------


def packed(module: Module) -> bytes:
    """A module serialised to bytes."""
    arrays: list[np.ndarray[Any, Any]] = []

    def attribute(value: Any) -> Any:
        if isinstance(value, Splat):
            return {"splat": attribute(value.value), "shape": value.shape}
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {"array": len(arrays) - 1}
        if isinstance(value, dict):
            return {"dict": {k: attribute(v) for k, v in value.items()}}
        return [attribute(v) for v in value] if isinstance(value, list) else value

    def operation(op: Operation) -> list[Any]:
        types = [[t.element, t.shape] for t in op.types]
        attributes = {k: attribute(v) for k, v in op.attributes.items()}
        return [op.name, op.operands, op.results, types, attributes, [block(b) for b in op.regions], op.where]

    def block(b: Block) -> list[Any]:
        return [b.arguments, [[t.element, t.shape] for t in b.types], [operation(op) for op in b.operations]]

    functions = [[f.name, block(f.body), f.names, f.results, f.symbols] for f in module.functions.values()]
    content = {"name": module.name, "main": module.main, "functions": functions}
    about = [[_spelled(a.dtype), a.shape, a.nbytes] for a in arrays]
    head = json.dumps({"module": content, "arrays": about}).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *(a.tobytes() for a in arrays)])


def unpacked(data: bytes) -> Module:
    """The module that `packed` wrote."""
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    if "error" in head:
        kind = UnsupportedError if head["unsupported"] else ModelError
        raise kind(head["error"], expected=head["expected"], got=head["got"], hint=head["hint"])
    arrays: list[Any] = []
    at = 8 + size
    for element, shape, nbytes in head["arrays"]:
        arrays.append(np.frombuffer(data, numpy_type(element), offset=at, count=_count(shape)).reshape(shape))
        at += nbytes

    def attribute(value: Any) -> Any:
        if isinstance(value, list):
            return [attribute(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return arrays[value["array"]]
        if "splat" in value:
            return Splat(attribute(value["splat"]), tuple(value["shape"]))
        return {k: attribute(v) for k, v in value["dict"].items()}

    def types(value: Any) -> tuple[Type, ...]:
        return tuple(Type(element, None if shape is None else tuple(shape)) for element, shape in value)

    def operation(value: Any) -> Operation:
        name, operands, results, kinds, attributes, regions, where = value
        result = {k: attribute(v) for k, v in attributes.items()}
        inner = tuple(block(b) for b in regions)
        return Operation(name, tuple(operands), tuple(results), types(kinds), result, inner, where)

    def block(value: Any) -> Block:
        arguments, kinds, operations = value
        return Block(tuple(arguments), types(kinds), tuple(operation(op) for op in operations))

    functions = {
        name: Function(name, block(body), tuple(names), tuple(results), tuple(symbols))
        for name, body, names, results, symbols in head["module"]["functions"]
    }
    return Module(head["module"]["name"], functions, head["module"]["main"])


def _count(shape: list[int]) -> int:
    total = 1
    for d in shape:
        total *= d
    return total


def _spelled(t: np.dtype[Any]) -> str:
    """MLIR's name of the element type for which `numpy_type` returns `t`."""
    special = {"bool": "i1", **{name: element for element, name in EXTENSIONS.items()}}
    if t.name in special:
        return special[t.name]
    return {"i": "i", "u": "ui", "f": "f"}[t.kind] + str(t.itemsize * 8)


def main() -> None:
    """Read a module from the standard input."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    data = sys.stdin.buffer.read()
    out = os.fdopen(os.dup(1), "wb")
    out.write(answer(data))
    out.close()
    os._exit(0)  # MLIR's own end takes its time


if __name__ == "__main__":
    main()
