"""A product of matrices for an accelerator that is described here, step by step: `make example-accelerator`.

The accelerator has three memories of its own and four instructions on tiles of 16 x 16. No such machine is there: its
instructions run as the interpreter and C have them, and what a step is worth is counted, not timed.
`docs/course/accelerator.md` says what each step does and why.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.builder import BuiltFunction
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.expr import as_int
from tilewright.ir.loops import For, Intrinsic, Stmt
from tilewright.schedule.stages import Stage, StageSchedule

Array = np.ndarray[Any, np.dtype[Any]]

TILE, BLOCK = 16, 64
"""Rows and columns of a tile, and of a block of results that is summed up at a time."""

BYTES_PER_CYCLE, GEMM_CYCLES = 16, 16
"""The elements that a transfer moves in a cycle, and how long the product of two tiles takes."""

INPUTS, WEIGHTS, SUMS = te.scope("npu_inp", 4 << 10), te.scope("npu_wgt", 4 << 10), te.scope("npu_acc", 16 << 10)
"""The memories: for 16 tiles of inputs, 16 of weights, 16 of sums."""

LOAD = """static void tw_intrin_npu_load(const int8_t *from, int64_t from_row, int8_t *to, int64_t to_row) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[i * to_row + j] = from[i * from_row + j];
}"""
"""A simulation; a driver has the encoding of an instruction with these addresses and strides here."""


def describe() -> None:
    """The instructions: what each computes is a stage."""
    shape = (TILE, TILE)
    data, acc = te.placeholder(shape, "int8", name="data"), te.placeholder(shape, "int32", name="acc")
    x, w = te.placeholder(shape, "int8", name="x"), te.placeholder(shape, "int8", name="w")
    k = te.reduce_axis((0, TILE), name="k")
    zero = te.const(0, "int32")
    te.intrinsic("npu_load", te.compute(shape, lambda i, j: data[i, j], name="loaded"), [data], c=LOAD)
    te.intrinsic("npu_zero", te.compute(shape, lambda i, j: zero, name="zeroed"), [])
    te.intrinsic("npu_gemm", te.compute(shape, lambda i, j: dot(x[i, k], w[j, k], k), name="sums"), [x, w])
    te.intrinsic("npu_store", te.compute(shape, lambda i, j: narrow(acc[i, j]), name="stored"), [acc])


def dot(x: Any, w: Any, k: te.IterVar) -> Any:
    """A sum of products in 32 bits."""
    return te.sum(te.cast(x, "int32") * te.cast(w, "int32"), axis=k)


def narrow(x: Any) -> Any:
    """A sum as int8: shifted by 8 bits and clipped."""
    return te.cast(te.minimum(te.maximum(x >> 8, -128), 127), "int8")


def product(n: int) -> tuple[te.Tensor, te.Tensor, te.Tensor, te.Tensor]:
    """Y = narrow(X W^T) for int8 matrices of n x n: X, W, the sums, Y."""
    x, w = te.placeholder((n, n), "int8", name="X"), te.placeholder((n, n), "int8", name="W")
    k = te.reduce_axis((0, n), name="k")
    sums = te.compute((n, n), lambda i, j: dot(x[i, k], w[j, k], k), name="sums")
    return x, w, sums, te.compute((n, n), lambda i, j: narrow(sums[i, j]), name="Y")


def schedule(
    tensors: Sequence[te.Tensor], block: int = TILE, strip: bool = False, prefetch: bool = False
) -> StageSchedule:
    """One schedule of the product; each step of the lesson changes an argument.

    Args:
        tensors: what `product` gave.
        block: rows and columns of the results that are summed up at a time.
        strip: inputs are loaded once for a row of blocks, not for each product.
        prefetch: loads go one step ahead of the products.
    """
    s = te.create_schedule(tensors[3])
    y, sums = s[tensors[3]], s[tensors[2]]
    sums.set_scope(SUMS)
    inputs, weights = sums.cache_read(tensors[0], INPUTS), sums.cache_read(tensors[1], WEIGHTS)

    i, j, _, _ = y.tile(*y.loops, block, block)
    sums.compute_at(y, j)
    k = _by_tiles(sums)[0]
    inputs.compute_at(*((y, i) if strip else (sums, k)))
    weights.compute_at(sums, k)
    if prefetch:
        for loads in (inputs, weights):
            loads.double_buffer()

    zero = sums.decompose_reduction(k)
    for stage, instruction in ((zero, "npu_zero"), (inputs, "npu_load"), (weights, "npu_load"), (y, "npu_store")):
        row, column = stage.loops[-2:]
        stage.tensorize(stage.tile(row, column, TILE, TILE)[2], instruction)
    sums.tensorize(sums.loops[-3], "npu_gemm")
    return s


def _by_tiles(sums: Stage) -> tuple[Any, ...]:
    """Split each loop of a product into tiles, and let the sum's tiles come first."""
    pairs = [sums.split(loop, factor=TILE) for loop in sums.loops[-3:]]
    (i, row), (j, column), (k, depth) = pairs
    sums.reorder(k, i, j, row, column, depth)
    return k, i, j


STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "naive": ("each product of two tiles loads both of them", {}),
    "rows stay": ("a strip of X is loaded once, and meets all of W", {"strip": True}),
    "blocks": ("a block of 4 x 4 tiles is summed up: each tile that is loaded serves four products", {"block": BLOCK}),
    "loads ahead": ("tiles are loaded while those before them are multiplied", {"block": BLOCK, "prefetch": True}),
}
"""A step's name, why it is taken, and what it asks of `schedule`."""


def count(s: Stmt) -> Counter[str]:
    """How often each instruction runs in a statement without branches."""
    times = (as_int(s.extent) or 0) if isinstance(s, For) else 1
    result = Counter({s.name: 1}) if isinstance(s, Intrinsic) else Counter[str]()
    for child in s.children:
        result.update(count(child))
    return Counter({name: n * times for name, n in result.items()})


def cycles(calls: Counter[str], prefetch: bool) -> tuple[int, int, int]:
    """Cycles of transfers, of products, and of the program: they take turns unless loads go ahead, when the longer of
    the two hides the other."""
    transfers = TILE * TILE * (calls["npu_load"] + calls["npu_store"]) // BYTES_PER_CYCLE
    products = GEMM_CYCLES * calls["npu_gemm"]
    return transfers, products, max(transfers, products) if prefetch else transfers + products


def call_c(text: str, name: str, arrays: Sequence[Array]) -> None:
    """Compile a C text and call its function."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("the lesson needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.c"), Path(folder, "kernel.so")
        source.write_text(text)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        getattr(ctypes.CDLL(str(library)), name)(*(a.ctypes.data_as(ctypes.c_void_p) for a in arrays))


def check(built: BuiltFunction, n: int) -> None:
    """Run a program for n x n matrices as C and natively, a small one on the interpreter too; compare with NumPy."""
    x, w = np.random.default_rng(0).integers(-128, 128, (2, n, n), np.int8)
    wanted = np.clip((x.astype(np.int32) @ w.T.astype(np.int32)) >> 8, -128, 127)
    runs = {"C": lambda *arrays: call_c(built.source("c"), built.func.name, arrays), "native": built}
    if n <= BLOCK:
        runs["interpreter"] = lambda *arrays: interpret(built.func, list(arrays))
    for where, run in runs.items():
        result = np.zeros((n, n), np.int8)
        run(x, w, result)
        assert np.array_equal(result, wanted), f"{where} is wrong"


SMALL = ("--size", "64")
"""Arguments that make it quick."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="a multiple of 64, default 256")
    parser.add_argument("--rounds", type=int, help="nothing is timed here")
    n = parser.parse_args(arguments).size
    describe()
    x, w, _, y = tensors = product(n)
    rows = []
    for name, (why, options) in STEPS.items():
        built = tw.build(schedule(tensors, **options), [x, w, y], name=name.replace(" ", "_"))
        print(f"\n=== {name}: {why}\n\n{built.source('loops')}")
        check(built, n)
        calls = count(built.func.body)
        rows.append((name, calls["npu_load"], *cycles(calls, "prefetch" in options)))
    print(f"\n{'step':12}{'loads':>8}{'transfers':>12}{'products':>12}{'cycles':>10}{'times naive':>13}")
    for name, loads, transfers, products, spent in rows:
        print(f"{name:12}{loads:8}{transfers:12}{products:12}{spent:10}{rows[0][-1] / spent:13.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
