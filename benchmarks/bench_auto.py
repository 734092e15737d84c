"""`tw.quantize(precision="auto")` on many small models: `make bench-auto`, or `python -m benchmarks.bench_auto`.

Models are made here: networks of products, convolutions, both with residuals, transformers' layers, each of several
sizes and seeds. Bars: no model is slower than in f32, none loses more than `max_drop` of the metric on 64 calls that
were not among its 8 samples.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from benchmarks.harness import markdown_table, write_markdown
from tilewright.quantization.compare import closeness, in_turns

MAX_DROP = 0.01
SAMPLES, FRESH = 8, 64
"""Calls that calibrate, and others on which the loss is measured."""
SLOWER = 0.97
"""The median of the paired ratios below which a model counts as slower: chosen f32 itself has 1 ± 0.03 here. Where all
objects are equal byte for byte the two models are one program, and the ratio says only how noisy the machine is."""


class Builder:
    """A network that is written layer by layer."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attrs))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        fan = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        self.weights[name] = (self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)
        return name

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(inputs, outputs)), self.bias(outputs))

    def bias(self, count: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = (self.rng.standard_normal(count) / 10).astype(np.float32)
        return name

    def model(self, y: str, shape: list[int]) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        ends = [info("x", TensorProto.FLOAT, shape)], [info(y, TensorProto.FLOAT, None)]
        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", *ends, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def products(seed: int, rows: int, width: int, activation: str) -> tuple[onnx.ModelProto, list[int]]:
    b = Builder(seed)
    h = b.op(activation, b.dense("x", 32, width))
    h = b.op(activation, b.dense(h, width, width))
    return b.model(b.dense(h, width, 8), [rows, 32]), [rows, 32]


def convolutions(seed: int, channels: int, size: int, residual: bool) -> tuple[onnx.ModelProto, list[int]]:
    b = Builder(seed)
    h = b.op("Relu", b.op("Conv", "x", b.weight(channels, 3, 3, 3), pads=[1] * 4))
    y = b.op("Conv", h, b.weight(channels, channels, 3, 3), pads=[1] * 4)
    h = b.op("Relu", b.op("Add", y, h) if residual else y)
    h = b.op("Flatten", b.op("GlobalAveragePool", h))
    return b.model(b.dense(h, channels, 10), [1, 3, size, size]), [1, 3, size, size]


def attention(seed: int, tokens: int, width: int) -> tuple[onnx.ModelProto, list[int]]:
    b = Builder(seed)
    q, k, v = (b.dense("x", width, width) for _ in range(3))
    scores = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[1, 0])), axis=-1)
    h = b.op("Add", b.dense(b.op("MatMul", scores, v), width, width), "x")
    return b.model(b.dense(b.op("Relu", b.dense(h, width, 2 * width)), 2 * width, width), [tokens, width]), [
        tokens,
        width,
    ]


def models() -> list[tuple[str, Callable[[], tuple[onnx.ModelProto, list[int]]]]]:
    """Names and makers of 60 models."""
    named: list[tuple[str, Callable[[], tuple[onnx.ModelProto, list[int]]]]] = []
    for rows in (1, 4, 64):
        for width in (32, 128, 512):
            for activation in ("Relu", "Tanh", "Sigmoid"):
                name = f"products {rows} x {width} {activation}"
                named.append((name, lambda r=rows, w=width, a=activation: products(len(a), r, w, a)))
    for channels in (8, 16, 32, 48):
        for size in (8, 16, 28):
            for residual in (False, True):
                name = f"convolutions {channels} of {size}" + " residual" * residual
                named.append((name, lambda c=channels, s=size, r=residual: convolutions(c, c, s, r)))
    for tokens in (1, 16, 64):
        for width in (32, 64, 128):
            named.append((f"attention {tokens} x {width}", lambda t=tokens, w=width: attention(t, t, w)))
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1e9, help="models begun later than that are left out")
    parser.add_argument("--every", type=int, default=1, help="one of so many models")
    parser.add_argument("--only", nargs="*", default=None, help="models by name")
    parser.add_argument("--begin", type=int, default=0, help="models before this one are left out")
    args = parser.parse_args()
    rows, start = [], time.monotonic()
    wanted = models()[args.begin :: args.every]
    for name, make in [m for m in wanted if args.only is None or m[0] in args.only]:
        if time.monotonic() - start > args.seconds:
            break
        model, shape = make()
        rng = np.random.default_rng(7)
        samples = [rng.standard_normal(shape).astype(np.float32) for _ in range(SAMPLES + FRESH)]
        exact = tw.compile(model)
        chosen = tw.quantize(model, calibrate=samples[:SAMPLES], precision="auto", max_drop=MAX_DROP)
        (key,) = [v.name for v in exact.inputs]
        fresh = [{key: x} for x in samples[SAMPLES:]]
        score = closeness(chosen, fresh, [exact.run(feed) for feed in fresh])
        ratio, low, high = times_as_fast(exact, chosen, fresh[0])
        report = chosen.report
        same = dict(exact.program.objects) == dict(chosen.program.objects)
        good = (same or ratio >= SLOWER) and 1 - score <= MAX_DROP
        times = f"{ratio:.2f} [{low:.2f}, {high:.2f}]"
        bar = "" if good else "missed"
        rows.append([name, report.chosen, "yes" if same else "", times])
        rows[-1] += [f"{report.drop:.4f}", f"{report.drop_at_most:.4f}", f"{1 - score:.4f}", bar]
        print(rows[-1], flush=True)
    head = ["model", "chosen", "machine code of f32", "times as fast"]
    head += ["drop", "at most", f"on {FRESH} others", "bar"]
    write_markdown("auto", "`auto` on small models, 1 thread", markdown_table(head, rows))


def times_as_fast(exact: tw.Model, chosen: tw.Model, feed: dict[str, Any]) -> tuple[float, float, float]:
    """The median of the paired ratios of two models that take turns, and their quartiles."""
    pairs = in_turns(exact, chosen, feed)
    ratios = np.asarray(pairs.first) / np.asarray(pairs.second)
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float(middle), float(low), float(high)


if __name__ == "__main__":
    main()
