"""Errors of convolutions by Winograd's transforms against double precision: `python -m benchmarks.bench_accuracy`.

Each layer is computed directly and with every tile. An error is relative to the largest output of the layer in
magnitude; the mean is also given as a multiple of the direct single-precision convolution's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from benchmarks import harness
from tilewright import ops
from tilewright.compiler import compile_graph
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.runtime.model import Model
from tilewright.targets.target import Target

CHANNELS = (16, 64, 128, 256, 512)
FILTERS, SIZE, IMAGES = 64, 28, 2
TILES = {1: (None, 2, 4, 5, 6), 2: (None, 2, 3, 4, 5)}
"""By stride; None is the direct convolution."""
INPUTS = ("normal", "after ReLU", "positive weights")


def layer(channels: int, tile: int | None, stride: int, target: Target) -> Graph:
    """A 3x3 convolution in the form that layout assignment gives it; tile None: computed directly."""
    b, block = GraphBuilder("layer"), target.vector_bits // 32
    x = b.input("x", _type(IMAGES, channels, SIZE, SIZE))
    w = b.param("w", _type(FILTERS, channels, 3, 3))
    if tile is None:
        y = ops.emit1(b, "conv", x, w, pads=(1, 1, 1, 1), strides=(stride, stride), dilations=(1, 1), groups=1)
        return b.finish((y,))
    packed = ops.emit1(b, "lowered.pack_winograd", w, tile=tile, stride=stride, block=block, width=2 * block, panels=1)
    blocked = ops.emit1(b, "lowered.block_channels", x, block=block)
    attrs = {
        "tile": tile,
        "window": 3,
        "stride": stride,
        "dilation": 1,
        "pads": (1, 1, 1, 1),
        "out_block": block,
    }
    y = ops.emit1(b, "lowered.conv_winograd", blocked, packed, channels=FILTERS, input_channels=channels, **attrs)
    return b.finish((ops.emit1(b, "lowered.unblock_channels", y, channels=FILTERS),))


def _type(*shape: int) -> TensorType:
    return TensorType(f32, tuple(map(const, shape)))


def numbers(channels: int, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Input and filters of He's scale."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((IMAGES, channels, SIZE, SIZE)).astype(np.float32)
    w = (rng.standard_normal((FILTERS, channels, 3, 3)) * np.sqrt(2 / (9 * channels))).astype(np.float32)
    if kind != INPUTS[0]:
        x = np.maximum(x, 0)
    return x, np.abs(w) if kind == INPUTS[2] else w


def reference(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    """The convolution in double precision, one tap after the other."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = np.zeros((x.shape[0], w.shape[0], SIZE // stride, SIZE // stride))
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + SIZE : stride, j : j + SIZE : stride]
            y += np.einsum("nchw,kc->nkhw", window, w[:, :, i, j].astype(np.float64), optimize=True)
    return y


def errors(seeds: int) -> Iterator[dict[str, object]]:
    for stride in TILES:
        for channels in CHANNELS:
            for kind in INPUTS:
                yield from _errors(stride, channels, kind, seeds)


def _errors(stride: int, channels: int, kind: str, seeds: int) -> Iterator[dict[str, object]]:
    """The errors of one kind of layer, a row for each tile."""
    target = Target.host()
    worst: dict[int | None, float] = {}
    mean: dict[int | None, float] = {}
    for seed in range(seeds):
        x, w = numbers(channels, kind, seed)
        want = reference(x, w, stride)
        scale = np.abs(want).max()
        for tile in TILES[stride]:
            model = Model(compile_graph(_graph(channels, tile, stride, target), {"w": w}, target))
            error = np.abs(np.asarray(model(x)) - want) / scale
            worst[tile] = max(worst.get(tile, 0.0), float(error.max()))
            mean[tile] = mean.get(tile, 0.0) + float(error.mean()) / seeds
    for tile in TILES[stride]:
        yield {
            "stride": stride,
            "channels": channels,
            "input": kind,
            "tile": tile,
            "largest": worst[tile],
            "mean": mean[tile],
            "times direct": mean[tile] / mean[None],
        }


def _graph(channels: int, tile: int | None, stride: int, target: Target) -> Graph:
    graph = layer(channels, tile, stride, target)
    if tile is not None:
        return graph
    from tilewright.compiler import graph_passes
    from tilewright.transform.graph.options import Options

    for _, run in graph_passes(target, Options(fast="exact")):
        graph = run(graph)
    return graph


def _table(rows: list[dict[str, object]], stride: int) -> str:
    names = ["direct" if tile is None else f"F({tile},3)" for tile in TILES[stride]]
    lines = []
    for channels in CHANNELS:
        for kind in INPUTS:
            cells = [r for r in rows if (r["stride"], r["channels"], r["input"]) == (stride, channels, kind)]
            lines.append([str(channels), kind, *(f"{r['largest']:.1e} ({r['times direct']:.1f}x)" for r in cells)])
    return f"Stride {stride}:\n\n" + harness.markdown_table(["channels", "input", *names], lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="random layers of each kind")
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    rows = list(errors(options.seeds))
    text = "\n".join(_table(rows, stride) for stride in TILES)
    text += (
        f"\nLargest error of {IMAGES} images of {SIZE}x{SIZE} with {FILTERS} filters, relative to the largest output; "
    )
    text += "in brackets the mean error as a multiple of the direct convolution's.\n"
    print(text)
    if not options.no_report:
        print(
            f"wrote {harness.write_report('accuracy', 'Errors of convolutions against double precision', rows, text)}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
