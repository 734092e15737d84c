"""Sizes of a layer's tiles on VTA: which fit into its memories, and their estimated cycles.

A tile is a number of blocks of output channels by a number of lines, summed over chunks of the input's blocks.
Estimates follow the cycle model (`targets/vta/timing.py`), with whole tiles in place of instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Literal

from tilewright.plans.vta.layers import Convolution, Product
from tilewright.support.classes import dataclass
from tilewright.targets.vta.config import DEFAULT, Memory
from tilewright.targets.vta.timing import DEFAULT_TIMING, Timing

Weights = Literal["all", "tile", "chunk"]
START, BIAS, END, EVEN = 1, 2, 3, 10
"""Cycles of the ALU and the GEMM core for a row of results besides its products: to clear it; to add the bias; to shift
and clip; and for rounding to even. If biases are the first values of sums, nothing is cleared."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The extents that tiles divide: blocks of output channels, lines, rows of accumulators and of inputs in a line,
    blocks of input channels, taps, lines of input for a line of results, and those that neighbours share; the number of
    phases; whether each line of inputs is a separate transfer; whether sums start with their biases, and whether they
    are read twice."""

    outputs: int
    lines: int
    line: int
    read: int
    reduced: int
    taps: int
    step: int
    halo: int
    separate: bool = False
    times: int = 1
    pieces: bool = False
    biased: bool = False
    even: bool = False


def shape_of(layer: Convolution | Product) -> Shape:
    """The extents of a layer that its tiles divide, in the accelerator's blocks."""
    biased, even = layer.requantised.offset > 0, layer.requantised.looks_twice
    if isinstance(layer, Product):
        return Shape(layer.columns, layer.rows, 1, 1, layer.depth, 1, 1, 0, biased=biased, even=even)
    high, wide = layer.rows
    kh, kw = layer.kernel
    if (kh, kw) == (1, 1) and not any(layer.pads):
        strided = layer.stride > 1
        return Shape(layer.outputs, high, wide, wide, layer.reduced, 1, 1, 0, layer.separate, 1, strided, biased, even)
    read = layer.width + layer.pads[1] + layer.pads[3]
    halo = kh - layer.stride
    taps, times = kh * kw, layer.phases**2
    return Shape(
        layer.outputs,
        high,
        wide,
        read,
        layer.reduced,
        taps,
        layer.stride,
        halo,
        layer.separate,
        times,
        biased=biased,
        even=even,
    )


@dataclass(frozen=True, slots=True)
class Tile:
    """The sizes of a tile, which are knobs.

    Args:
        outputs, lines: blocks of output channels and lines of a tile.
        chunk: blocks of input channels that are loaded at once.
        threads: the number of virtual threads, each with its own tile; 1 or 2.
        doubled: whether inputs and weights are double-buffered.
        weights: whether all weights are in their memory at once, or those of a tile's outputs, or those of a chunk.
    """

    outputs: int
    lines: int
    chunk: int
    threads: int = 1
    doubled: bool = False
    weights: Weights = "chunk"

    @property
    def knobs(self) -> tuple[tuple[str, int], ...]:
        """The sizes by name, for a decision."""
        weights = ("chunk", "tile", "all").index(self.weights)
        return (
            ("outputs", self.outputs), ("lines", self.lines), ("chunk", self.chunk), ("threads", self.threads),
            ("doubled", int(self.doubled)), ("weights", weights),
        )  # fmt: skip


def tiles(shape: Shape, overlap: bool = True) -> Iterator[Tile]:
    """The tiles for a layer of `shape` that fit into the memories. `overlap`: also tiles with two virtual threads and
    double buffers."""
    for outputs in _sizes(shape.outputs):
        for lines in _sizes(shape.lines):
            for chunk in _divisors(shape.reduced):
                for threads, doubled in ((1, False), (1, True), (2, False), (2, True)) if overlap else ((1, False),):
                    for weights in ("all", "tile", "chunk"):
                        tile = Tile(outputs, lines, chunk, threads, doubled, weights)
                        if fits(tile, shape):
                            yield tile


def fits(t: Tile, s: Shape) -> bool:
    """Whether a tile's buffers fit into the memories; and whether each of its threads has something to do."""
    tiles_of_lines = ceil(s.lines / t.lines)
    if t.threads > 1 and tiles_of_lines < t.threads:
        return False
    if t.weights == "chunk" and t.chunk == s.reduced and not t.doubled and t.threads == 1 and s.outputs == t.outputs:
        return False  # the same as "tile"
    places = 2 if t.doubled else 1
    inputs = (t.outputs if s.separate else t.chunk) * _input_lines(t, s) * s.read * t.threads * places
    sums = t.outputs * t.lines * s.line * t.threads * (2 if s.even else 1) + s.outputs
    weights = {
        "all": s.outputs * s.reduced * s.taps * s.times,
        "tile": t.outputs * s.reduced * s.taps * places,
        "chunk": t.outputs * t.chunk * s.taps * t.threads * places,
    }[t.weights]
    if s.times > 1 and t.weights == "tile":
        return False
    rows = DEFAULT.rows
    return inputs <= rows(Memory.INP) and sums <= rows(Memory.ACC) and weights <= rows(Memory.WGT)


def cycles(t: Tile, s: Shape, timing: Timing = DEFAULT_TIMING) -> float:
    """The estimated cycles of the layer `s` with the tiles `t`: the three queues, tile by tile and chunk by chunk, in
    the order of issue; a transfer waits until the old content of its place has been read."""
    parts = _parts(t, s, timing)
    places = 2 if t.doubled else 1
    chunks, groups = s.reduced // t.chunk, ceil(ceil(s.lines / t.lines) / t.threads) * s.times
    load = parts.begin if t.weights == "all" else 0.0
    compute = store = 0.0
    free = [[0.0] * places for _ in range(t.threads)]
    stored = [0.0] * t.threads
    weights = [0.0] * places
    count = 0
    for o in range(ceil(s.outputs / t.outputs)):
        if t.weights == "tile":
            load = max(load, weights[o % places]) + parts.begin
        for _ in range(groups):
            for thread in range(t.threads):
                compute = max(compute, stored[thread]) + parts.clear
            for _ in range(chunks):
                for thread in range(t.threads):
                    half = count // t.threads % places
                    load = max(load, free[thread][half]) + parts.load
                    compute = max(compute, load) + parts.products
                    free[thread][half] = compute
                    count += 1
            for thread in range(t.threads):
                compute += parts.rest
                store = stored[thread] = max(store, compute) + parts.store
        weights[o % places] = compute
    return max(compute, store)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The cycles of the parts of a tile: the transfer of weights that are loaded before it, the load of a chunk of
    input, the products of a chunk, and then clearing the tile's sums, its arithmetic after the products, and its
    store."""

    begin: float
    load: float
    products: float
    clear: float
    rest: float
    store: float


def _parts(t: Tile, s: Shape, timing: Timing) -> _Parts:
    port, latency = timing.port_bytes, timing.latency + timing.decode
    row, block = DEFAULT.dram_bytes(Memory.INP) / port, DEFAULT.dram_bytes(Memory.WGT) / port
    lines = _input_lines(t, s)
    transfers = lines if s.pieces else 1
    load = (t.outputs if s.separate else t.chunk) * (transfers * latency + lines * s.read * row)
    own = {"all": s.outputs * s.times, "tile": t.outputs, "chunk": 0}[t.weights]
    begin = latency + own * s.reduced * s.taps * block
    if t.weights == "chunk":
        load += latency + t.outputs * t.chunk * s.taps * block
    sums = t.outputs * t.lines * s.line
    each = timing.fill + timing.decode
    products = t.chunk * s.taps * sums + each
    start, rest = (BIAS * sums, END * sums + 3 * each) if s.biased else (START * sums, (BIAS + END) * sums + 4 * each)
    if s.even:
        rest += EVEN * sums + 7 * each
    return _Parts(begin, load, products, start + each, rest, latency + sums * row)


def _input_lines(t: Tile, s: Shape) -> int:
    return max(1, t.lines * s.step + s.halo)


def _sizes(extent: int) -> list[int]:
    """Sizes of parts to consider: the divisors of the extent, and the least size for each number of parts."""
    return sorted({*_divisors(extent), *(ceil(extent / n) for n in range(1, min(extent, 32) + 1))})


def _divisors(extent: int) -> list[int]:
    return [n for n in range(1, extent + 1) if extent % n == 0]
