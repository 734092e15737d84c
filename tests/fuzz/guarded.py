"""Arrays between pages that nobody may touch, and random symbolic models called on them, in a process of their own.

python -m tests.fuzz.guarded SEED PROGRAMS       prints each seed before it is tried; ends by a signal where a
                                                 program reads or writes outside of an input or an output
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.support.errors import CallError, ModelError

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_kept: list[mmap.mmap] = []


def guarded(array: Any, at_end: bool = True) -> Any:
    """A copy of an array that ends (or begins) at a page which cannot be read or written; so does the other side's."""
    pages = max(1, -(-array.nbytes // PAGE))
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    _kept.append(memory)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        assert _libc.mprotect(base + page * PAGE, PAGE, 0) == 0
    start = PAGE * (pages + 1) - array.nbytes if at_end else PAGE
    copy = np.frombuffer(memory, array.dtype, array.size, start).reshape(array.shape)
    copy[...] = array
    return copy


def model(draw: random.Random) -> Any:
    """A chain of operators on [n, c] or [c, n] whose attributes may not fit small n."""
    c = draw.choice([1, 3, 4, 8, 17])
    nodes, weights, name = [], [], "x"
    first = draw.random() < 0.7
    shape = ["n", c] if first else [c, "n"]
    axis = 0 if first else 1
    for k in range(draw.randint(1, 4)):
        out, numbers = f"v{k}", lambda *v, k=k: _numbers(weights, f"w{k}_{len(weights)}", v)
        kind = draw.choice(["slice", "gather", "pad", "relu", "softmax", "sum", "concat", "split", "topk", "reverse"])
        match kind:
            case "slice":
                begin, end = draw.randint(-6, 6), draw.choice([1, 2, 5, -1, -3, 2**31])
                inputs = [name, numbers(begin), numbers(end), numbers(axis), numbers(draw.choice([1, 2, 3, -1, -2]))]
                nodes.append(helper.make_node("Slice", inputs, [out]))
            case "reverse":
                inputs = [name, numbers(-1), numbers(-(2**31)), numbers(axis), numbers(-1)]
                nodes.append(helper.make_node("Slice", inputs, [out]))
            case "gather":
                places = [draw.randint(-4, 4) for _ in range(draw.randint(1, 3))]
                nodes.append(helper.make_node("Gather", [name, numbers(*places)], [out], axis=axis))
            case "pad":
                mode = draw.choice(["constant", "edge", "reflect", "wrap"])
                pads = [0, 0, 0, 0]
                pads[axis], pads[2 + axis] = draw.randint(0, 3), draw.randint(0, 3)
                nodes.append(helper.make_node("Pad", [name, numbers(*pads)], [out], mode=mode))
            case "relu":
                nodes.append(helper.make_node("Relu", [name], [out]))
            case "softmax":
                nodes.append(helper.make_node("Softmax", [name], [out], axis=draw.choice([0, 1])))
            case "sum":
                nodes.append(helper.make_node("ReduceMax", [name, numbers(axis)], [out], keepdims=1))
            case "concat":
                nodes.append(helper.make_node("Concat", [name, "x"], [out], axis=axis))
            case "split":
                nodes.append(helper.make_node("Split", [name], [out, f"{out}_b"], axis=axis, num_outputs=2))
            case "topk":
                inputs = [name, numbers(draw.randint(1, 3))]
                nodes.append(helper.make_node("TopK", inputs, [out, f"{out}_i"], axis=axis))
        name = out
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info(name)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10), shape


def _numbers(weights: list[Any], name: str, values: tuple[int, ...]) -> str:
    weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
    return name


def tried(seed: int) -> tuple[int, int]:
    """Calls that ran, and calls that were refused, of the model of a seed at sizes from 0 up."""
    draw = random.Random(seed)
    proto, shape = model(draw)
    try:
        compiled = tw.compile(proto, dims={"n": tw.dim(0, None)} if draw.random() < 0.5 else None)
    except ModelError:
        return 0, 0
    if not hasattr(compiled, "empty_outputs"):  # parts of it are another runtime's
        return 0, 0
    ran = refused = 0
    for n in (*range(7), 15, 16, 17, 33, 64):
        x = np.random.default_rng(n).standard_normal([n if d == "n" else d for d in shape]).astype(np.float32)
        for at_end in (True, False):
            try:
                given = guarded(x, at_end)
                wanted = [guarded(a, at_end) for a in compiled.empty_outputs(given).values()]
                compiled(given, out=tuple(wanted) if len(wanted) > 1 else wanted[0])
                ran += 1
            except CallError:
                refused += 1
    _kept.clear()
    return ran, refused


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    totals = [0, 0]
    for seed in range(first, first + count):
        print("seed", seed, flush=True)
        for k, number in enumerate(tried(seed)):
            totals[k] += number
    print("ran", totals[0], "refused", totals[1], flush=True)


if __name__ == "__main__":
    main()
