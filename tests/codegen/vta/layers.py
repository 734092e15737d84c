"""Layers with data, and what they are by NumPy's integers: what the tests of VTA's programs compare with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.codegen.vta.emit import VtaProgram, emit_vta
from tilewright.plans.vta.layers import Addition, Convolution, Layer, MaxPool, Product, Requantised, with_offset
from tilewright.plans.vta.schedules import schedule
from tilewright.plans.vta.tiles import Tile
from tilewright.targets.vta.simulator import Machine
from tilewright.transform.loops.placed import placed_loops

Array = np.ndarray[Any, Any]

RESNET: dict[str, tuple[int, int, int, int, int, int]] = {
    "C2": (56, 64, 64, 3, 1, 1), "C3": (56, 64, 64, 1, 0, 1),
    "C4": (56, 64, 128, 3, 1, 2), "C5": (56, 64, 128, 1, 0, 2),
    "C6": (28, 128, 128, 3, 1, 1), "C7": (28, 128, 256, 3, 1, 2), "C8": (28, 128, 256, 1, 0, 2),
    "C9": (14, 256, 256, 3, 1, 1), "C10": (14, 256, 512, 3, 1, 2), "C11": (14, 256, 512, 1, 0, 2),
}  # fmt: skip
"""ResNet-18's layers as VTA's papers number them: size, channels in and out, kernel, pad, stride."""


def resnet(name: str) -> Convolution:
    size, cin, cout, kernel, pad, stride = RESNET[name]
    layer = Convolution(
        cin // 16, size, size, cout // 16, (kernel, kernel), stride, (pad,) * 4, requantised=Requantised(10)
    )
    return with_offset(layer)


def compiled(layer: Layer, tile: Tile | None = None) -> VtaProgram:
    floor = layer.requantised.floor if isinstance(layer, Convolution | Product) else None
    return emit_vta(placed_loops(schedule(layer, tile)), floor)


def run(program: VtaProgram, arrays: list[Array], result: Array, first: int = 0) -> Array:
    memory = dict(zip(program.addresses, [*arrays, result], strict=True))
    Machine().run(program.words, {**memory, program.uop_address: program.uops}, first)
    return result


def requantised(total: Array, q: Requantised) -> Array:
    """int64 sums as the accumulators wrap them, shifted and clipped; without the offset of their biases."""
    if q.even:
        half = 1 << q.shift >> 1
        return np.clip(np.rint((total - half) / (1 << q.shift)), q.low, q.high).astype(np.int8)
    return np.clip((total - q.offset).astype(np.int32) >> q.shift, q.low, q.high).astype(np.int8)


def operands(layer: Layer, seed: int = 0) -> list[Array]:
    """Random operands of a layer, in the order of its program's parameters."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> Array:
        return rng.integers(-128, 128, shape, np.int8)

    match layer:
        case Convolution():
            taps = layer.kernel if layer.phases == 1 else (layer.phases, layer.phases, *layer.kernel)
            w = numbers(layer.outputs, layer.reduced, *taps, 16, 16)
            if layer.separate:
                w = w * np.eye(16, dtype=np.int8)
            bias = rng.integers(-(10**5), 10**5, (layer.outputs, 16)).astype(np.int32) + layer.requantised.offset
            return [numbers(layer.inputs, layer.height, layer.width, 16), w, bias]
        case Product():
            bias = rng.integers(-(10**5), 10**5, (layer.columns, 16)).astype(np.int32) + layer.requantised.offset
            return [numbers(layer.rows, layer.depth, 16), numbers(layer.columns, layer.depth, 16, 16), bias]
        case Addition():
            return [numbers(layer.rows, 16), numbers(layer.rows, 16)]
        case MaxPool():
            x = numbers(layer.blocks, layer.height, layer.width, 16)
            return [np.maximum(x, 0) if any(layer.pads) else x]


def wanted(layer: Layer, arrays: list[Array]) -> Array:
    """The result by NumPy. Floats of 64 bits hold the sums of small integers exactly."""
    match layer:
        case Convolution():
            x, w, bias = arrays
            top, left, bottom, right = layer.pads
            x = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
            if layer.phases > 1:
                return _phases(layer, x, w, bias)
            (high, wide), s = layer.rows, layer.stride
            total = np.zeros((layer.outputs, high, wide, 16))
            for ky in range(layer.kernel[0]):
                for kx in range(layer.kernel[1]):
                    part = x[:, ky : ky + (high - 1) * s + 1 : s, kx : kx + (wide - 1) * s + 1 : s]
                    taps = w[:, :, ky, kx].astype(np.float64)
                    if layer.separate:
                        total += part * np.diagonal(taps[:, 0], axis1=1, axis2=2)[:, None, None]
                    else:
                        total += np.einsum("cyxk,ocjk->oyxj", part, taps, optimize=True)
            return requantised(total.astype(np.int64) + bias[:, None, None], layer.requantised)
        case Product():
            x, w, bias = (a.astype(np.float64) for a in arrays)
            total = np.einsum("mck,ncjk->mnj", x, w, optimize=True)
            return requantised(total.astype(np.int64) + bias.astype(np.int64), layer.requantised)
        case Addition():
            a, b = (x.astype(np.int64) * m for x, m in zip(arrays, layer.scales, strict=True))
            return requantised(a + b + layer.offset, layer.requantised)
        case MaxPool():
            top, left, bottom, right = layer.pads
            x = np.pad(arrays[0], ((0, 0), (top, bottom), (left, right), (0, 0)))
            (high, wide), s = layer.rows, layer.stride
            return np.stack([
                x[:, ky : ky + (high - 1) * s + 1 : s, kx : kx + (wide - 1) * s + 1 : s]
                for ky in range(layer.kernel[0])
                for kx in range(layer.kernel[1])
            ]).max(0)  # fmt: skip


def _phases(layer: Convolution, x: Array, w: Array, bias: Array) -> Array:
    """A transposed convolution, phase by phase."""
    (high, wide), n = layer.rows, layer.phases
    result = np.zeros((layer.outputs, high, n, wide, n, 16), np.int8)
    for r in range(n):
        for t in range(n):
            total = np.zeros((layer.outputs, high, wide, 16))
            down, across = (r + layer.shifted[0]) // n, (t + layer.shifted[1]) // n
            for ky in range(layer.kernel[0]):
                for kx in range(layer.kernel[1]):
                    part = x[:, down + ky : down + ky + high, across + kx : across + kx + wide]
                    total += np.einsum("cyxk,ocjk->oyxj", part, w[:, :, r, t, ky, kx].astype(np.float64), optimize=True)
            result[:, :, r, :, t] = requantised(total.astype(np.int64) + bias[:, None, None], layer.requantised)
    return result


def check(layer: Layer, tile: Tile | None = None, seed: int = 0) -> VtaProgram:
    """A layer's program leaves what NumPy says, whichever queue begins."""
    program, arrays = compiled(layer, tile), operands(layer, seed)
    expected = np.ascontiguousarray(wanted(layer, arrays))
    for first in (0, 2):
        assert np.array_equal(run(program, arrays, np.zeros(expected.shape, np.int8), first), expected)
    return program


def transposed(weights: Array, pad: int) -> tuple[Array, tuple[int, int]]:
    """Weights [in][out][k][k] of a transposed convolution of stride 2 as [out][in][phase][phase][taps][taps], and the
    pads of the input before and after it."""
    cin, cout, k, _ = weights.shape
    taps = k // 2
    out = np.zeros((cout, cin, 2, 2, taps, taps), weights.dtype)
    for r in range(2):
        for t in range(2):
            rows, columns = ((p + pad) % 2 + 2 * np.arange(taps)[::-1] for p in (r, t))
            out[:, :, r, t] = weights.transpose(1, 0, 2, 3)[:, :, rows[:, None], columns]
    return out, (taps - 1, taps - 1)


def as_before(tile: Tile) -> Tile:
    """A tile without virtual threads and loads ahead."""
    return replace(tile, threads=1, doubled=False)
