"""Single layers with symbols of random ranges against a compile for each size: `make bench-symbolic-layers`.

Kinds, sizes and ranges come from a seed. The layer compiled once, with symbols, and one compiled for a size alone run
in turns in one process on one thread, at both ends of the range and at a size between. Ratios are static time by
dynamic time: 1.0 is no loss. Nothing is said of likely values. A row for each kind; with `--rows` one for each size.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks.bench_dynamic import geomean
from benchmarks.harness import markdown_table, write_report
from benchmarks.onnx_builder import Builder

HEADER = ["layer", "sizes", "static / dynamic time", "least", "of", "at", "us"]
TURNS = 7
SECONDS = 0.004
"""Seconds of one turn, about."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer whose dimensions "a" and "b" are symbols, and the largest value that they are given."""

    kind: str
    name: str
    model: onnx.ModelProto
    most: int


@dataclass(frozen=True, slots=True)
class Row:
    """A layer at a size: the ratio, and microseconds of the dynamic program."""

    layer: str
    kind: str
    size: int
    ratio: float
    us: float


Maker = Callable[[random.Random, Builder], tuple[str, int]]


def product(rng: random.Random, b: Builder) -> tuple[str, int]:
    k, n = rng.choice([32, 64, 96, 128, 300, 512]), rng.choice([8, 33, 64, 100, 256, 512])
    x = b.linear(b.input("x", ["a", k]), "w", k, n)
    b.output(b.op(rng.choice(["Relu", "Tanh"]), [x]), "y", ["a", n])
    return f"{k} to {n}", 400


def convolution(rng: random.Random, b: Builder) -> tuple[str, int]:
    c_in, c_out, k, stride = (rng.choice(x) for x in ([3, 16, 32, 48], [16, 32, 64], [1, 3, 5], [1, 2]))
    x = b.conv(b.input("x", [1, c_in, "a", "b"]), "w", c_in, c_out, k, stride=stride, pad=k // 2)
    b.output(b.relu(x), "y", [1, c_out, "rows", "columns"])
    return f"{c_in} to {c_out}, {k}x{k}, stride {stride}", 64


def images(rng: random.Random, b: Builder) -> tuple[str, int]:
    c_in, c_out, k, size = (rng.choice(x) for x in ([3, 16, 32, 48], [16, 32, 64], [1, 3, 5], [7, 14, 28]))
    x = b.conv(b.input("x", ["a", c_in, size, size]), "w", c_in, c_out, k, pad=k // 2)
    b.output(b.relu(x), "y", ["a", c_out, size, size])
    return f"{c_in} to {c_out}, {k}x{k} at {size}", 12


def depthwise(rng: random.Random, b: Builder) -> tuple[str, int]:
    channels, k, stride = rng.choice([16, 33, 64]), rng.choice([3, 5]), rng.choice([1, 2])
    w = b.weight("w", b.normal([channels, 1, k, k], 0.1))
    x = b.input("x", [1, channels, "a", "b"])
    x = b.op("Conv", [x, w], pads=[k // 2] * 4, strides=[stride] * 2, group=channels)
    b.output(x, "y", [1, channels, "rows", "columns"])
    return f"{channels}, {k}x{k}, stride {stride}", 64


def line(rng: random.Random, b: Builder) -> tuple[str, int]:
    c_in, c_out, k, stride = (rng.choice(x) for x in ([16, 40, 80], [16, 64, 128], [3, 5], [1, 2]))
    w = b.weight("w", b.normal([c_out, c_in, k], 0.1))
    x = b.op("Conv", [b.input("x", [1, c_in, "a"]), w], pads=[k // 2] * 2, strides=[stride])
    b.output(x, "y", [1, c_out, "steps"])
    return f"{c_in} to {c_out}, {k}, stride {stride}", 400


def transposed(rng: random.Random, b: Builder) -> tuple[str, int]:
    c_in, c_out = rng.choice([16, 32]), rng.choice([8, 16])
    w = b.weight("w", b.normal([c_in, c_out, 2, 2], 0.1))
    x = b.op("ConvTranspose", [b.input("x", [1, c_in, "a", "b"]), w], strides=[2, 2])
    b.output(x, "y", [1, c_out, "rows", "columns"])
    return f"{c_in} to {c_out}", 48


def pooling(rng: random.Random, b: Builder) -> tuple[str, int]:
    channels, k, kind = rng.choice([8, 32]), rng.choice([2, 3]), rng.choice(["MaxPool", "AveragePool"])
    x = b.op(kind, [b.input("x", [1, channels, "a", "b"])], kernel_shape=[k, k], strides=[2, 2], pads=[k // 2] * 4)
    b.output(x, "y", [1, channels, "rows", "columns"])
    return f"{kind} {channels}, {k}x{k}", 96


def softmax(rng: random.Random, b: Builder) -> tuple[str, int]:
    rows = rng.choice([1, 7, 64, 200])
    b.output(b.op("Softmax", [b.input("x", [rows, "a"])], axis=-1), "y", [rows, "a"])
    return f"{rows} rows", 400


def norm(rng: random.Random, b: Builder) -> tuple[str, int]:
    width = rng.choice([17, 64, 384, 768])
    b.output(b.layer_norm(b.input("x", ["a", width]), "norm", width), "y", ["a", width])
    return f"of {width}", 400


def attention(rng: random.Random, b: Builder) -> tuple[str, int]:
    heads, depth = rng.choice([2, 4, 8]), rng.choice([16, 32, 64])
    q, v = b.input("q", [1, heads, "a", depth]), b.input("v", [1, heads, "a", depth])
    scores = b.op("MatMul", [q, b.input("k", [1, heads, depth, "a"])])
    scores = b.op("Mul", [scores, b.constant(np.float32(depth**-0.5))])
    b.output(b.op("MatMul", [b.op("Softmax", [scores], axis=-1), v]), "y", [1, heads, "a", depth])
    return f"{heads} heads of {depth}", 400


def batched(rng: random.Random, b: Builder) -> tuple[str, int]:
    count, depth = rng.choice([2, 6]), rng.choice([16, 32, 64])
    x = b.op("MatMul", [b.input("x", [count, "a", depth]), b.input("z", [count, depth, "a"])])
    b.output(x, "y", [count, "a", "a"])
    return f"{count} of depth {depth}", 400


def transpose(rng: random.Random, b: Builder) -> tuple[str, int]:
    width = rng.choice([16, 100, 256])
    b.output(b.op("Transpose", [b.input("x", ["a", width])], perm=[1, 0]), "y", [width, "a"])
    return f"by {width}", 400


def concatenation(rng: random.Random, b: Builder) -> tuple[str, int]:
    width = rng.choice([16, 100])
    x = b.op("Concat", [b.input("x", ["a", width]), b.input("z", ["b", width])], axis=0)
    b.output(b.relu(x), "y", ["rows", width])
    return f"rows of {width}", 400


def resize(rng: random.Random, b: Builder) -> tuple[str, int]:
    channels, mode = rng.choice([8, 32]), rng.choice(["nearest", "linear"])
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    x = b.op("Resize", [b.input("x", [1, channels, "a", "b"]), "", scales], mode=mode)
    b.output(x, "y", [1, channels, "rows", "columns"])
    return f"{mode}, {channels}", 48


MAKERS: tuple[Maker, ...] = (
    *(product, convolution, convolution, images, depthwise, line, transposed, pooling, pooling, softmax, norm),
    *(attention, batched, transpose, concatenation, resize),
)


def random_layer(rng: random.Random, seed: int) -> Layer:
    maker, b = rng.choice(MAKERS), Builder("layer", seed=seed)
    name, most = maker(rng, b)
    return Layer(maker.__name__, name, b.build(), most)


def random_range(rng: random.Random, most: int) -> tuple[int, int, int]:
    """(least, most, what divides all) of a symbol."""
    low = rng.choice([1, 1, 2, 3, 8, rng.randint(1, most)])
    high = min(most, max(low, rng.choice([low + 1, low + 3, 2 * low, low + 30, most, most])))
    multiple = rng.choice([1, 1, 1, 2, 8])
    low = max(multiple, low // multiple * multiple)
    return low, max(low, high // multiple * multiple), multiple


def measure(seed: int) -> Iterator[Row]:
    """A random layer at three sizes."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    layer = random_layer(rng, seed)
    low, high, multiple = random_range(rng, layer.most)
    shapes = [[d.dim_value or d.dim_param for d in item.type.tensor_type.shape.dim] for item in layer.model.graph.input]
    symbols = {d for shape in shapes for d in shape if isinstance(d, str)}
    name = f"{layer.name}, {low} to {high}" + (f" by {multiple}" if multiple > 1 else "")
    dynamic: Any = tw.compile(
        layer.model, dims={s: tw.dim(low, high, multiple=multiple) for s in symbols}, records=None
    )
    for size in sorted({low, rng.randrange(low, high + 1, multiple), high}):
        static: Any = tw.compile(layer.model, dims=dict.fromkeys(symbols, size), records=None)
        args = [
            numbers.standard_normal([size if isinstance(d, str) else d for d in s]).astype(np.float32) for s in shapes
        ]
        np.testing.assert_allclose(dynamic(*args), static(*args), rtol=5e-4, atol=5e-4)
        yield Row(name, layer.kind, size, *_timed(dynamic, static, args))


def _timed(dynamic: Any, static: Any, args: Sequence[Any]) -> tuple[float, float]:
    calls = max(1, int(SECONDS / max(1e-7, min(_seconds(static, args, 1) for _ in range(3)))))
    turns = []
    for _ in range(TURNS):
        a, b, c, d = (_seconds(f, args, calls) for f in (dynamic, static, static, dynamic))
        turns.append(((b + c) / (a + d), (a + d) / 2 * 1e6))
    return statistics.median(ratio for ratio, _ in turns), statistics.median(us for _, us in turns)


def _seconds(call: Any, args: Sequence[Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call(*args)
    return (time.perf_counter() - start) / calls


def table(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each kind, the worst first, and one for all."""
    kinds = {kind: [row for row in rows if row.kind == kind] for kind in {row.kind for row in rows}}
    lines = []
    for kind, own in sorted(kinds.items(), key=lambda item: geomean([row.ratio for row in item[1]])):
        worst = min(own, key=lambda row: row.ratio)
        ratio = geomean([row.ratio for row in own])
        lines.append([kind, str(len(own)), f"{ratio:.3f}", f"{worst.ratio:.3f}", worst.layer, str(worst.size)])
        lines[-1].append(f"{worst.us:.1f}")
    ratios = [row.ratio for row in rows]
    low = f"{sum(r < 0.5 for r in ratios)} below 0.5, {sum(r < 0.8 for r in ratios)} below 0.8"
    return [*lines, ["all", str(len(rows)), f"{geomean(ratios):.3f}", f"{min(ratios):.3f}", low, "", ""]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150, help="layers")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--rows", action="store_true", help="print a line for each size")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for seed in range(options.seed, options.seed + options.count):
        for row in measure(seed):
            rows.append(row)
            if options.rows:
                print(
                    f"{row.ratio:.3f}  {row.kind} {row.layer} at {row.size}: {row.us:.1f} us (seed {seed})", flush=True
                )
    lines = table(rows)
    print(markdown_table(HEADER, lines))
    if not options.no_report:
        title = "Single layers with symbols of random ranges against a compile for each size, one thread"
        write_report("symbolic-layers", title, lines, markdown_table(HEADER, lines))


if __name__ == "__main__":
    main()
