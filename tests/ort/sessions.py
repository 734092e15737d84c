"""Opens and closes sessions on the execution provider and says what stays of them: `python -m tests.ort.sessions`
(or `make ort-sessions`).

Each session compiles its model (from the cache of programs), runs, and is closed; every eighth has a node that is left
to ONNX Runtime, every eighth a size that needs a program of its own. What must not grow is counted after a collection:
memory of the process, open files, mapped regions, threads, and the provider's own records.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tilewright.ort
from tilewright.ort.registration import _providers

MAX_KB = 0.5
"""Kilobytes a session by which memory may seem to grow, by the slope of the second half: fragments of the heap. ONNX
Runtime's own sessions leave 0.1 to 0.2 (`RssAnon` over 8,000 of them, 29 November 2026)."""


def model(lacking: bool) -> bytes:
    """A product and a maximum, with a node between that Tilewright lacks."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["b" if lacking else "a"], ["y"])]
    if lacking:
        nodes.insert(1, helper.make_node("Inverse", ["a"], ["b"], domain="com.microsoft"))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4, 4]) for name in "xy"]
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    graph = helper.make_graph(nodes, "graph", infos[:1], infos[1:], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def session(data: bytes, sizes: tuple[int, ...]) -> None:
    """Open, run, close."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_provider_for_devices(tilewright.ort.register(), {"threads": "1"})
    opened = onnxruntime.InferenceSession(data, options)
    for n in sizes:
        x = np.random.default_rng(n).standard_normal((n, 4, 4)).astype(np.float32)
        (y,) = opened.run(None, {"x": x})
        assert y.shape == x.shape


def counted() -> dict[str, int]:
    """Measure what must not grow with the sessions: memory in kilobytes, open files, mapped regions, objects."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    (provider,) = _providers
    return {
        "memory": int(status["RssAnon"].split()[0]),
        "files": len(os.listdir("/proc/self/fd")),
        "regions": len(Path("/proc/self/maps").read_text().splitlines()),
        "threads": int(status["Threads"]),
        "sessions": len(provider.sessions),
        "nodes": len(provider.nodes),
        "objects": len(gc.get_objects()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    count: int = parser.parse_args().count
    onnxruntime.set_default_logger_severity(4)
    tilewright.ort.register()
    whole, cut = model(False), model(True)
    seen: list[tuple[int, dict[str, Any]]] = []
    start = time.perf_counter()
    for k in range(count + 1):
        if k % max(1, count // 20) == 0:
            seen.append((k, counted()))
            print(f"{k:6}  {time.perf_counter() - start:6.1f} s  {seen[-1][1]}", flush=True)
        session(cut if k % 8 == 3 else whole, (2, 0) if k % 8 == 5 else (2,))
    later = seen[len(seen) // 2 :]
    slope = float(np.polyfit([k for k, _ in later], [row["memory"] for _, row in later], 1)[0])
    print(f"memory grows by {slope:.3f} KB a session")
    grown = [n for n in later[0][1] if n not in ("memory", "regions", "objects") and later[-1][1][n] > later[0][1][n]]
    grown += [n for n in ("regions", "objects") if later[-1][1][n] - later[0][1][n] > 50 + count // 100]
    if slope > MAX_KB or grown:
        print(f"something stays of sessions: {', '.join(grown) or 'memory'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
