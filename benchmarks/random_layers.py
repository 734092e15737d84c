"""Random layers: every operator that models spend their time in, on any shapes, from a seed.

    for layer in layers(count=100, seed=0):
        model = tw.compile((layer.graph, layer.weights()))

Half of the sizes are what networks have (powers of two, multiples of eight), half are any: a plan must be right for
both. The tests count the work of such layers, `make audit` times them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.compiler import graph_passes, hoist_constants
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.loops import PrimFunc
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.conversions import absorbs
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.memory import is_alias
from tilewright.transform.graph.options import DEFAULTS, Options
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.lower import lower_group

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

LARGEST = 1 << 30
"""Multiply-adds of a layer, so that thousands can be timed."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A graph of one layer with its epilogue. `name` says kind and sizes, `kind` what it is to be grouped by."""

    kind: str
    name: str
    graph: Graph

    def inputs(self, seed: int = 0) -> list[Array]:
        return [_numbers(v, seed + k) for k, v in enumerate(self.graph.inputs)]

    def weights(self, seed: int = 1) -> dict[str, Array]:
        return {v.name: _numbers(v, seed + k) for k, v in enumerate(self.graph.params)}


def layers(count: int, seed: int = 0) -> Iterator[Layer]:
    """`count` layers; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.choice(MAKERS)(rng)


def lowered(layer: Layer, target: Target, options: Options = DEFAULTS) -> tuple[list[KernelCall], list[KernelCall]]:
    """The unscheduled kernels of a layer: those of a call, and those that pack its weights."""
    graph, _ = hoist_constants(layer.graph)
    for _, run in graph_passes(target, options):
        graph = run(graph)
    split = split_prepare(graph)
    parts = []
    for part, name in ((split.run, "run"), (split.prepare, "prepare")):
        groups = fuse(part, lambda *at: absorbs(*at, target=target))
        parts.append([lower_group(g, f"{name}{i}") for i, g in enumerate(groups) if not is_alias(g)])
    return parts[0], parts[1]


def kernels(layer: Layer, target: Target, options: Options = DEFAULTS) -> list[PrimFunc]:
    """The functions of all of a layer's kernels."""
    return [kernel.func for part in lowered(layer, target, options) for kernel in part]


def _numbers(value: Value, seed: int) -> Array:
    shape = [as_int(d) or 1 for d in value.shape]
    return np.random.default_rng(seed).uniform(0.1, 1.0, shape).astype(np.float32)


def _tensor(*shape: int) -> TensorType:
    return TensorType(f32, tuple(map(const, shape)))


def _size(rng: random.Random, most: int) -> int:
    """A size up to `most`, small ones as often as large ones; half of them are multiples of eight or powers of two."""
    value = round(most ** rng.random())
    match rng.randrange(4):
        case 0:
            return max(1, 1 << (value.bit_length() - 1))
        case 1 if most >= 8:
            return max(8, value // 8 * 8)
    return max(1, value)


def _dense(rng: random.Random) -> Layer:
    """A norm or none, a product with a weight, bias and activation, on rows of one sequence."""
    rows, depth, columns = _size(rng, 512), _size(rng, 2048), _size(rng, 4096)
    while rows * depth * columns > LARGEST:
        rows, columns = max(1, rows // 2), max(1, columns // 2)
    b = GraphBuilder("dense")
    x = b.input("x", _tensor(1, rows, depth))
    norm = rng.choice((None, "layer_norm", "rms_norm"))
    y = x if norm is None else ops.emit1(b, norm, x, b.param("scale", _tensor(depth)), axis=-1, epsilon=1e-5)
    y = ops.emit1(b, "matmul", y, b.param("w", _tensor(depth, columns)))
    y = ops.emit1(b, "add", y, b.param("bias", _tensor(columns)))
    act = rng.choice((None, "relu", "gelu", "tanh", "sigmoid"))
    y = y if act is None else ops.emit1(b, act, y)
    name = f"{norm or ''}+{rows}x{depth}x{columns}+{act or ''}"
    return Layer("dense" if norm is None else "normed dense", name, b.finish((y,)))


def _product(rng: random.Random) -> Layer:
    """A product of two inputs, several at once."""
    count, rows, depth, columns = _size(rng, 16), _size(rng, 256), _size(rng, 256), _size(rng, 256)
    transpose = rng.random() < 0.5
    b = GraphBuilder("product")
    x = b.input("x", _tensor(count, rows, depth))
    w = b.input("y", _tensor(count, *((columns, depth) if transpose else (depth, columns))))
    y = ops.emit1(b, "matmul", x, w, transpose_b=transpose)
    return Layer("product", f"{count}x{rows}x{depth}x{columns}{'t' * transpose}", b.finish((y,)))


def _conv(rng: random.Random) -> Layer:
    """A convolution with bias and an activation: any window, stride, dilation and groups; depthwise ones too."""
    kernel = rng.choice((1, 1, 3, 3, 3, 5, 7))
    stride, dilation = rng.choice((1, 1, 2)), rng.choice((1, 1, 1, 2, 3)) if kernel > 1 else 1
    groups = rng.choice((1, 1, 1, 2, 4))
    c, k, size = groups * _size(rng, 256 // groups), groups * _size(rng, 256 // groups), _size(rng, 128)
    if rng.random() < 0.2 and kernel > 1:
        groups = k = c
    size = max(size, dilation * (kernel - 1) + 1)
    while c * k // groups * kernel**2 * size**2 > LARGEST and size > kernel * dilation * 2:
        size //= 2
    images, pad = rng.choice((1, 1, 2)), rng.choice((0, kernel // 2 * dilation))
    b = GraphBuilder("conv")
    x, w = b.input("x", _tensor(images, c, size, size)), b.param("w", _tensor(k, c // groups, kernel, kernel))
    window = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "groups": groups}
    y = ops.emit1(b, "conv", x, w, pads=(pad,) * 4, **window)
    y = ops.emit1(b, "add", y, b.param("bias", _tensor(1, k, 1, 1)))
    y = y if rng.random() < 0.3 else ops.emit1(b, rng.choice(("relu", "sigmoid")), y)
    kind = "depthwise" if groups == c > 1 else "grouped" if groups > 1 else f"conv{kernel}x{kernel}"
    name = f"{images}x{c}-{k}-{size} k{kernel} s{stride} d{dilation} g{groups} p{pad}"
    return Layer(kind, name, b.finish((y,)))


def _transposed(rng: random.Random) -> Layer:
    kernel, stride = rng.choice(((2, 2), (3, 2), (4, 2), (3, 1)))
    c, k, size = _size(rng, 128), _size(rng, 128), max(2, _size(rng, 48))
    b = GraphBuilder("transposed")
    x, w = b.input("x", _tensor(1, c, size, size)), b.param("w", _tensor(c, k, kernel, kernel))
    window = {"strides": (stride,) * 2, "dilations": (1, 1), "groups": 1, "output_padding": (0, 0)}
    y = ops.emit1(b, "conv_transpose", x, w, pads=(0,) * 4, **window)
    y = ops.emit1(b, "relu", ops.emit1(b, "add", y, b.param("bias", _tensor(1, k, 1, 1))))
    return Layer("transposed", f"{c}-{k}-{size} k{kernel} s{stride}", b.finish((y,)))


def _rows(rng: random.Random) -> Layer:
    """Softmax and norms over the last dimension, after an addition or not."""
    op, rows, columns = rng.choice(("softmax", "log_softmax", "layer_norm", "rms_norm")), _size(rng, 1024), 0
    columns = max(2, _size(rng, 2048))
    b = GraphBuilder("rows")
    x = b.input("x", _tensor(rows, columns))
    skip = rng.random() < 0.4
    y = ops.emit1(b, "add", x, b.input("skip", _tensor(rows, columns))) if skip else x
    if op in ("softmax", "log_softmax"):
        y = ops.emit1(b, op, y, axis=1)
    else:
        y = ops.emit1(b, op, y, b.param("scale", _tensor(columns)), axis=-1, epsilon=1e-5)
    return Layer(op, f"{rows}x{columns}{' +skip' * skip}", b.finish((y,)))


def _reduced(rng: random.Random) -> Layer:
    shape = (_size(rng, 8), _size(rng, 128), _size(rng, 48), _size(rng, 48))
    axes = rng.choice(((2, 3), (1,), (3,), (0, 2, 3), (0,)))
    b = GraphBuilder("reduced")
    y = ops.emit1(b, "reduce_mean", b.input("x", _tensor(*shape)), axes=axes, keepdims=True)
    return Layer("reduce_mean", f"{'x'.join(map(str, shape))} over {axes}", b.finish((y,)))


def _pooled(rng: random.Random) -> Layer:
    kernel, stride = rng.choice(((2, 2), (3, 2), (3, 1)))
    shape = (1, _size(rng, 256), max(kernel, _size(rng, 96)), max(kernel, _size(rng, 96)))
    b = GraphBuilder("pooled")
    window = {"kernel": (kernel,) * 2, "pads": (kernel // 2,) * 4, "strides": (stride,) * 2, "dilations": (1, 1)}
    y = ops.emit1(b, "max_pool", b.input("x", _tensor(*shape)), **window)
    return Layer("max_pool", f"{'x'.join(map(str, shape))} k{kernel} s{stride}", b.finish((y,)))


def _pools(rng: random.Random) -> Layer:
    """Maxima and means over windows of any size, of lines, maps and volumes."""
    rank = rng.choice((1, 2, 2, 2, 3))
    kernel = rng.choice((2, 3, 4, 5, 7))
    stride, op = rng.choice((1, 2, kernel)), rng.choice(("max_pool", "avg_pool"))
    most = (2000, 64, 16)[rank - 1]
    shape = (1, _size(rng, 128), *(max(kernel, _size(rng, most)) for _ in range(rank)))
    b = GraphBuilder("pools")
    window = {"kernel": (kernel,) * rank, "pads": (rng.choice((0, kernel // 2)),) * 2 * rank}
    window |= {"strides": (stride,) * rank, "dilations": (1,) * rank}
    extra = {"count_include_pad": False} if op == "avg_pool" else {}
    y = ops.emit1(b, op, b.input("x", _tensor(*shape)), **window, **extra)
    return Layer(f"{op}{rank}", f"{'x'.join(map(str, shape))} k{kernel} s{stride} p{window['pads'][0]}", b.finish((y,)))


def _volume(rng: random.Random) -> Layer:
    """A 3-D convolution, in groups or not."""
    groups, stride = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2))
    c, k = groups * _size(rng, 64 // groups), groups * _size(rng, 64 // groups)
    window = (rng.choice((1, 3)), *(rng.choice((1, 3)),) * 2)
    size = [max(n, _size(rng, most)) for n, most in zip(window, (16, 32, 32), strict=True)]
    b = GraphBuilder("volume")
    x, w = b.input("x", _tensor(1, c, *size)), b.param("w", _tensor(k, c // groups, *window))
    pads = tuple(n // 2 for n in window) * 2
    attrs = {"strides": (stride,) * 3, "dilations": (1,) * 3, "groups": groups, "pads": pads}
    y = ops.emit1(b, "relu", ops.emit1(b, "conv", x, w, **attrs))
    sizes = "x".join(map(str, size))
    return Layer("volume", f"{c}-{k}-{sizes} k{'x'.join(map(str, window))} s{stride} g{groups}", b.finish((y,)))


def _sums(rng: random.Random) -> Layer:
    """Sums and maxima over any dimensions, outer and inner ones together."""
    shape = tuple(_size(rng, most) for most in (64, 128, 128))
    axes, op = rng.choice(((0,), (1,), (2,), (0, 2), (0, 1), (1, 2))), rng.choice(("reduce_sum", "reduce_max"))
    b = GraphBuilder("sums")
    y = ops.emit1(b, op, b.input("x", _tensor(*shape)), axes=axes, keepdims=False)
    return Layer(op, f"{'x'.join(map(str, shape))} over {axes}", b.finish((y,)))


def _pointwise(rng: random.Random) -> Layer:
    shape = tuple(_size(rng, most) for most in rng.choice(((1 << 19,), (512, 1024), (4, 64, 48, 48))))
    functions = tuple(rng.choice(("relu", "exp", "tanh", "sigmoid", "gelu", "sqrt")) for _ in range(rng.randint(1, 3)))
    b = GraphBuilder("pointwise")
    y = ops.emit1(b, "mul", b.input("x", _tensor(*shape)), b.input("y", _tensor(*shape)))
    for function in functions:
        y = ops.emit1(b, function, y)
    return Layer("pointwise", f"{'x'.join(map(str, shape))} {'+'.join(functions)}", b.finish((y,)))


def _transpose(rng: random.Random) -> Layer:
    shape = (_size(rng, 8), _size(rng, 96), _size(rng, 96), _size(rng, 32))
    perm = list(range(4))
    while perm == sorted(perm):
        rng.shuffle(perm)
    b = GraphBuilder("transpose")
    y = ops.emit1(b, "transpose", b.input("x", _tensor(*shape)), perm=tuple(perm))
    return Layer("transpose", f"{'x'.join(map(str, shape))} to {''.join(map(str, perm))}", b.finish((y,)))


MAKERS: tuple[Callable[[random.Random], Layer], ...] = (
    *(_dense,) * 3,
    _product,
    *(_conv,) * 5,
    _transposed,
    *(_rows,) * 2,
    _reduced,
    _pooled,
    _pools,
    _volume,
    _sums,
    _pointwise,
    _transpose,
)
"""The functions that draw layers; those that have most plans after them stand several times."""
