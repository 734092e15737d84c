"""Layers of 8-bit models for the accelerator VTA; the host computes the rest.

    y = quantise(relu(conv(dequantise(x), dequantise(w)) + b))      ->      y = lowered.vta(x in blocks, w in blocks, b)

Files express that by QuantizeLinear and DequantizeLinear or by integer operators (QLinearConv). VTA takes a layer if
the zero points are 0, the product of the scales is a power of two, since VTA shifts, and the batch is 1. VTA rounds
ties up, where ONNX rounds them to even: a result on a tie differs from the host's by one step unless `even` is set.
Scales become a part of the program (`fixed_scales`), since its shifts depend on them. Values between two layers stay in
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.codegen.vta.emit import VtaProgram, emit_vta
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import f32, i8, i32
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.lowered.vta import VtaAttrs
from tilewright.ops.pool import MaxPoolAttrs
from tilewright.ops.shape import ConstantAttrs
from tilewright.plans.vta.layers import (
    BLOCK,
    Addition,
    Convolution,
    Layer,
    MaxPool,
    Product,
    Requantised,
    most_bias,
    with_offset,
)
from tilewright.plans.vta.schedules import DoesNotFit, schedule
from tilewright.support.classes import dataclass
from tilewright.transform.graph.rewrite import Rewriter
from tilewright.transform.graph.vta_sums import MAX_PADS, average, is_image, matrices, shift_of, transposed
from tilewright.transform.loops.placed import placed_loops

Array = np.ndarray[Any, Any]


def fixed_scales(graph: Graph, weights: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """(the graph with parameters of a single number as constants, the other weights)."""
    single = [
        p for p in graph.params if p.dtype is f32 and prod(as_int(d) or 0 for d in p.shape) == 1 and p.name in weights
    ]
    built = tuple(Node("constant", (), (p,), ConstantAttrs(ConstantArray(weights[p.name]))) for p in single)
    params = tuple(p for p in graph.params if p not in single)
    names = {p.name for p in single}
    changed = Graph(graph.name, graph.inputs, params, (*built, *graph.nodes), graph.outputs, graph.assumptions)
    return changed, {name: w for name, w in weights.items() if name not in names}


def offload(graph: Graph, even: bool = False) -> Graph:
    """The graph in which VTA programs replace the layers that VTA can compute. With `even`, ties are rounded to even,
    as ONNX defines; VTA takes longer for that."""
    return Layers(graph, even).offloaded()


@lru_cache(maxsize=256)
def program_of(layer: Layer) -> VtaProgram:
    """The VTA program of a layer. Raises DoesNotFit if parts of the layer are too large for VTA's memories."""
    floor = layer.requantised.floor if isinstance(layer, Convolution | Product) else None
    return emit_vta(placed_loops(schedule(layer)), floor)


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Numbers as 8-bit integers times a factor: the value `integers`, and the number `scale`."""

    integers: Value
    scale: float


@dataclass(frozen=True, slots=True)
class Factors:
    """The 8-bit operands of a layer, the shift that requantises its sums to 8 bits, and the bias as integers."""

    x: Value
    w: Value
    shift: int
    offset: Value | None


class Layers(Rewriter):
    """Rewrites the layers of a graph that VTA can compute. `blocks` holds values in blocks of channels, `positive` the
    values that are not negative."""

    def __init__(self, graph: Graph, even: bool) -> None:
        super().__init__(graph)
        self.even = even
        self.blocks: dict[Value, Value] = {}
        self.positive: set[Value] = set()

    def offloaded(self) -> Graph:
        for node in self.graph.nodes:
            if node.op != "cast" or node.output.dtype is not i8 or not self.is_layer(node):
                self.builder.nodes.append(node)
        return replace(self.graph, nodes=tuple(self.builder.nodes)) if self.steps else self.graph

    # What a node is

    def number(self, value: Value | None) -> float | None:
        """The number of a constant of one element, possibly cast, multiplied or divided by others; None for other
        values."""
        node = self.producer(value, "constant", "cast", "mul", "div", "reshape", "identity")
        if node is None:
            return None
        if node.op == "constant":
            array = node.of(ConstantAttrs).value.array
            return float(array.reshape(())) if array.size == 1 else None
        results = [self.number(v) for v in node.inputs]
        if any(x is None for x in results):
            return None
        numbers = [x for x in results if x is not None]
        match node.op:
            case "mul":
                return float(np.float32(numbers[0]) * np.float32(numbers[1]))
            case "div":
                return float(np.float32(numbers[0]) / np.float32(numbers[1])) if numbers[1] else None
        return numbers[0]

    def scaled(self, value: Value | None) -> _Scaled | None:
        """The 8-bit integers and scale of a value `cast(cast(q)) * scale`; None for other values."""
        node = self.producer(value, "mul")
        if node is None:
            return None
        for a, b in (node.inputs, node.inputs[::-1]):
            scale, integers = self.number(b), self.bytes(a)
            if scale is not None and integers is not None:
                return _Scaled(integers, scale)
        return None

    def bytes(self, value: Value | None) -> Value | None:
        """The 8-bit integers that a value is cast from; None for other values."""
        while (node := self.producer(value, "cast", "identity")) is not None:
            value = node.inputs[0]
            if value is not None and value.dtype is i8 and node.output.dtype is not i8:
                return value
        return None

    # Layers

    def is_layer(self, node: Node) -> bool:
        """Whether a quantised layer that VTA can compute ends at this node; if so, emits the layer."""
        value = node.inputs[0]
        added = self.producer(value, "add")
        if added is not None and self.number(added.inputs[1]) == 0.0:
            value = added.inputs[0]
        rounded = self.producer(value, "round")
        scaled = None if rounded is None else self.producer(rounded.inputs[0], "div", "mul")
        if scaled is None:
            return False
        factor = self.number(scaled.inputs[1])
        if not factor:
            return False
        factor = 1 / factor if scaled.op == "div" else factor
        real, low = scaled.inputs[0], -128
        relu = self.producer(real, "relu")
        if relu is not None:
            real, low = relu.inputs[0], 0
        attempts: list[Callable[[Node, Value | None, float, int], bool]]
        attempts = [self.convolution, self.addition, self.max_pool]
        attempts += [partial(f, self) for f in (average, transposed, matrices)]
        for attempt in attempts:
            try:
                if attempt(node, real, factor, low):
                    return True
            except DoesNotFit:
                continue
        return False

    def requantised(self, shift: int, low: int) -> Requantised:
        return Requantised(shift, low, even=self.even)

    def biased(self, real: Value | None) -> tuple[Value | None, Value | None]:
        """(sum of products, bias or None) if `real` is a sum of products, perhaps cast, with or without a bias."""
        cast = self.producer(real, "cast")
        total = cast.inputs[0] if cast is not None and cast.inputs[0] is not None else real
        added = self.producer(total, "add")
        if added is None:
            return total, None
        first, second = added.inputs
        return (second, first) if self.producer(second, "matmul") is not None else (first, second)

    def product(self, real: Value | None, op: str, factor: float) -> tuple[Node | None, Factors | None]:
        """(node, operands) of the node with operator `op` whose result, with or without a bias, is `real`; (None, None)
        if there is none. The operands are None if VTA cannot compute it. `factor` is the ratio of requantisation."""
        total, bias = self.biased(real)
        node = self.producer(total, op)
        fits = node is not None and (bias is None or _is_per_channel(bias, node.output, -1 if op == "matmul" else 1))
        return node, self.factors(node, bias, factor) if node is not None and fits else None

    def factors(self, product: Node, bias: Value | None, factor: float) -> Factors | None:
        """The integer operands of `product`, plus `bias` (None: zero), and the shift that requantises it where its real
        result is multiplied by `factor`; None if VTA cannot compute it."""
        if len(product.inputs) != 2:
            return None
        if product.output.dtype is i32:
            x, w = (self.bytes(v) for v in product.inputs)
            offset = None if bias is None else self.integers(bias, 1.0)
        else:
            source, weights = (self.scaled(v) for v in product.inputs)
            if source is None or weights is None:
                return None
            x, w = source.integers, weights.integers
            factor *= source.scale * weights.scale
            offset = None if bias is None else self.integers(bias, source.scale * weights.scale)
        shift = shift_of(factor)
        if x is None or w is None or shift is None or (bias is not None and offset is None):
            return None
        return Factors(x, w, shift, offset)

    def convolution(self, node: Node, real: Value | None, factor: float, low: int) -> bool:
        conv, factors = self.product(real, "conv", factor)
        if conv is None or factors is None or len(conv.output.shape) != 4:
            return False
        layer = _convolution(conv, factors.x, factors.w, self.requantised(factors.shift, low))
        if layer is None:
            return False
        program_of(layer)  # which may be refused
        packed = self.weights(factors.w, layer)
        sums = self.bias(factors.offset, as_int(factors.w.shape[0]) or 0, layer.outputs, layer)
        shape = (layer.outputs, *layer.rows, BLOCK)
        self.put(node, layer, [self.blocked(factors.x), packed, sums], shape, low >= 0)
        return True

    def integers(self, bias: Value, scale: float) -> Value | None:
        """The int32 values q of a bias that is computed as q * `scale`, the scale of the sums; None for another
        bias."""
        node = self.producer(bias, "reshape")
        source = bias if node is None else node.inputs[0]
        if source is not None and source.dtype is i32:
            return source if scale == 1.0 else None
        scaled = self.producer(source, "mul")
        if scaled is None or self.number(scaled.inputs[1]) != scale:
            return None
        cast = self.producer(scaled.inputs[0], "cast")
        results = None if cast is None else cast.inputs[0]
        return results if results is not None and results.dtype is i32 else None

    def addition(self, node: Node, real: Value | None, factor: float, low: int) -> bool:
        added = self.producer(real, "add")
        if added is None or added.output.dtype is not f32:
            return False
        a, b = (self.scaled(v) for v in added.inputs)
        if a is None or b is None or a.integers.shape != b.integers.shape or not is_image(a.integers):
            return False
        shifts = [shift_of(s.scale * factor) for s in (a, b)]
        if shifts[0] is None or shifts[1] is None:
            return False
        shift = max(shifts[0], shifts[1])
        scales = 1 << shift - shifts[0], 1 << shift - shifts[1]
        if max(scales) >= 1 << 15:
            return False
        blocks, high, wide = _blocks(a.integers)
        layer = Addition(blocks * high * wide, scales, _half(shift), self.requantised(shift, low))
        program_of(layer)
        operands = [self.emit("reshape", self.blocked(s.integers), shape=(layer.rows, BLOCK)) for s in (a, b)]
        self.put(node, layer, operands, (blocks, high, wide, BLOCK), low >= 0)
        return True

    def max_pool(self, node: Node, real: Value | None, factor: float, low: int) -> bool:
        pool = self.producer(real, "max_pool")
        source = None if pool is None else self.scaled(pool.inputs[0])
        if pool is None or source is None or source.scale * factor != 1.0 or not is_image(source.integers):
            return False
        attrs = pool.of(MaxPoolAttrs)
        if len(set(attrs.strides)) != 1 or set(attrs.dilations) != {1} or attrs.ceil_mode:
            return False
        if (any(attrs.pads) and source.integers not in self.positive) or max(attrs.pads) > MAX_PADS:
            return False
        blocks, high, wide = _blocks(source.integers)
        kernel, pads = (attrs.kernel[0], attrs.kernel[1]), (attrs.pads[0], attrs.pads[1], attrs.pads[2], attrs.pads[3])
        layer = MaxPool(blocks, high, wide, kernel, attrs.strides[0], pads)
        program_of(layer)
        is_positive = low >= 0 or source.integers in self.positive
        self.put(node, layer, [self.blocked(source.integers)], (blocks, *layer.rows, BLOCK), is_positive)
        return True

    # What stands in its place

    def put(self, node: Node, layer: Layer, operands: list[Value], shape: tuple[int, ...], is_positive: bool) -> None:
        """Emit the call of `layer` on `operands` in place of `node`, and its result in the graph's layout. `shape` is
        the result's in blocks."""
        result, old = self.call(layer, operands, shape), node.output
        self.blocks[old] = result
        if is_positive:
            self.positive.add(old)
        channels, high, wide = (as_int(d) or 0 for d in old.shape[1:])
        flat = self.emit("transpose", result, perm=(0, 3, 1, 2))
        whole = (1, shape[0] * BLOCK, high, wide)
        last = self.emit("reshape", flat, shape=whole)
        if whole[1] != channels:
            last = self.emit("slice", last, begin=(0,) * 4, size=(1, channels, high, wide), step=(1,) * 4)
        self.finish(node, last)

    def call(self, layer: Layer, operands: list[Value], shape: tuple[int, ...]) -> Value:
        """Emit the call of VTA's program for `layer` on `operands`; returns its result in blocks, of shape `shape`.
        Raises DoesNotFit."""
        program = program_of(layer)
        attrs = VtaAttrs(
            ConstantArray(program.words),
            ConstantArray(program.uops),
            (*program.addresses, program.uop_address),
            shape,
            type(layer).__name__.lower(),
        )
        return ops.emit(self.builder, "lowered.vta", *operands, attrs=attrs)[0]

    def finish(self, node: Node, result: Value) -> None:
        """End the rewriting of `node`: its output is a copy of `result`."""
        self.builder.nodes.append(Node("identity", (result,), (node.output,)))
        self.steps += 1

    def blocked(self, x: Value) -> Value:
        """The image `x` in blocks of channels, the layout in which layers exchange images."""
        if x not in self.blocks:
            channels, high, wide = (as_int(d) or 0 for d in x.shape[1:])
            flat = self.emit("reshape", self.padded(x, 1, channels), shape=(-(-channels // BLOCK), BLOCK, high, wide))
            self.blocks[x] = self.emit("transpose", flat, perm=(0, 2, 3, 1))
        return self.blocks[x]

    def padded(self, x: Value, axis: int, size: int) -> Value:
        """Emit `x` with zeros at the end of dimension `axis`, which has `size` elements, up to whole blocks."""
        missing = -size % BLOCK
        if not missing:
            return x
        rank = len(x.shape)
        after = tuple(missing if k == axis else 0 for k in range(rank))
        return self.emit("pad", x, before=(0,) * rank, after=after, mode="constant", value=0)

    def weights(self, w: Value, layer: Convolution) -> Value:
        cout, cin, kh, kw = (as_int(d) or 0 for d in w.shape)
        rows = self.padded(w, 0, cout)
        if layer.separate:
            flat = self.emit("reshape", rows, shape=(layer.outputs, BLOCK, kh, kw, 1))
            across = self.emit("transpose", flat, perm=(0, 2, 3, 1, 4))
            diagonal = self.emit("constant", value=ConstantArray(np.eye(BLOCK, dtype=np.int8)))
            spread = self.emit("mul", across, diagonal)
            return self.emit("reshape", spread, shape=(layer.outputs, 1, kh, kw, BLOCK, BLOCK))
        flat = self.padded(rows, 1, cin)
        split = self.emit("reshape", flat, shape=(layer.outputs, BLOCK, layer.inputs, BLOCK, kh, kw))
        return self.emit("transpose", split, perm=(0, 2, 4, 5, 1, 3))

    def bias(self, offset: Value | None, channels: int, blocks: int, layer: Convolution | Product) -> Value:
        """Emit the i32 bias of a layer with `channels` channels, and return it as [blocks, BLOCK]: `offset` (zeros if
        None) plus half a unit of the shift, so that it rounds, and the layer's output offset."""
        q, most = layer.requantised, most_bias(layer)
        total = self.integer(_half(q.shift), channels)
        if offset is not None:
            flat = offset if offset.type.rank == 1 else self.emit("reshape", offset, shape=(as_int(offset.type.size),))
            total = self.emit("add", flat, total)
        if q.offset:
            clipped = self.emit("max", self.emit("min", total, self.integer(most)), self.integer(-most))
            total = self.emit("add", clipped, self.integer(q.offset))
        if blocks * BLOCK > channels:
            total = self.emit("concat", total, self.integer(q.offset, blocks * BLOCK - channels), axis=0)
        return self.emit("reshape", total, shape=(blocks, BLOCK))

    def integer(self, number: int, count: int = 1) -> Value:
        return self.emit("constant", value=ConstantArray(np.full(count, number, np.int32)))


def _is_per_channel(bias: Value, output: Value, axis: int) -> bool:
    """Whether a bias has one number per channel (dimension `axis`) of `output`, or one in all."""
    rank = output.type.rank
    own = (*(const(1) for _ in range(rank - bias.type.rank)), *bias.shape)
    channels = len(own) - rank + axis % rank
    sizes = {k: as_int(d) for k, d in enumerate(own)}
    return sizes.pop(channels) in (1, as_int(output.shape[axis])) and set(sizes.values()) <= {1}


def _half(shift: int) -> int:
    return 1 << shift - 1 if shift else 0


def _blocks(x: Value) -> tuple[int, int, int]:
    channels, high, wide = (as_int(d) or 0 for d in x.shape[1:])
    return -(-channels // BLOCK), high, wide


def _convolution(conv: Node, x: Value, w: Value, requantised: Requantised) -> Convolution | None:
    """The VTA layer that computes a convolution node; None if there is none."""
    attrs = conv.of(ConvAttrs)
    sizes = [as_int(d) for d in w.shape]
    if not is_image(x) or None in sizes or len(set(attrs.strides)) != 1 or set(attrs.dilations) != {1}:
        return None
    blocks, high, wide = _blocks(x)
    outputs = -(-(sizes[0] or 0) // BLOCK)
    separate = attrs.groups > 1
    if separate and (attrs.groups != as_int(x.shape[1]) or sizes[0] != attrs.groups):
        return None
    pads = attrs.pads[0], attrs.pads[1], attrs.pads[2], attrs.pads[3]
    kernel = sizes[2] or 0, sizes[3] or 0
    if max(pads) > MAX_PADS:
        return None
    layer = Convolution(blocks, high, wide, outputs, kernel, attrs.strides[0], pads, separate, requantised=requantised)
    return with_offset(layer)
