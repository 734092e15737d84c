"""Rewrites a graph with quantised layers: the arithmetic of `QuantizeLinear` and `DequantizeLinear` around them.

    y = conv(x, w)     ->     q = u8(round(x / s) + z)           t = max |w| of a filter / 127
                              v = i8(round(w / t))               depends on weights alone: `prepare` computes it
                              y = conv((q - z) * s, v * t)

The compiler multiplies the integers (`transform/graph/quantised.py`). Weights stay parameters of f32, so that new ones
are quantised when they arrive. All readers of a quantised value read its codes, so that it is stored once, and
operators that move or pool elements work on codes. But the results of norms over rows are only read as codes by layers:

    n = layer_norm(x);  y = matmul(n, w) + n     ->     q = u8(round(n / s) + z);  y = matmul((q - z) * s, v * t) + n

In a transformer whose residual additions read the norms' results, each block would round the sum of all blocks before;
this would be half of BERT's error. The norm's kernel writes both forms in the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import DType, f32, i8, i32, u8
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.quantization.ranges import Scale
from tilewright.quantization.sites import MOVING, Site
from tilewright.support.classes import dataclass
from tilewright.transform.regions.captures import builder_for

LEVELS = 127
"""The largest magnitude of the code of a weight."""
SMALLEST = 2.0**-100
"""The least magnitude from which a scale of weights is computed, so that channels of zeros have a scale, too."""
NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True, slots=True)
class Codes:
    """The quantised form of a value: its codes, and the value whose scale they use."""

    codes: Value
    source: Value


@dataclass(frozen=True, slots=True)
class Open:
    """A quantised graph whose scales and zero points are parameters of f32, so that one program serves any samples.

    outputs  the values of the sites' outputs
    params   a scale and a zero point, f32[], by the value that is quantised
    """

    graph: Graph
    outputs: tuple[Value, ...]
    params: Mapping[Value, tuple[Value, Value]]

    def numbers(self, scales: Mapping[Value, Scale]) -> dict[str, Any]:
        """The arrays of the parameters in `params` for given scales."""
        return {
            param.name: np.asarray(number, np.float32)
            for value, params in self.params.items()
            for param, number in zip(params, (scales[value].scale, scales[value].zero), strict=True)
        }


def quantised(
    graph: Graph, sites: Iterable[Site], scales: Mapping[Value, Scale], corrections: Mapping[str, str] | None = None
) -> Graph:
    """A canonical graph in which some sites are quantised.

    Args:
        scales: of each site's source.
        corrections: parameters (f32, one number a channel) that are added to a site's output, by the site's name.
    """
    return _Writer(graph, {s.output: s for s in sites}, corrections or {}, scales).run()


def opened(graph: Graph, sites: Sequence[Site], corrections: Mapping[str, str]) -> Open:
    """The canonical graph `graph` with all `sites` quantised, by scales and zero points that are parameters.
    `corrections`: parameters (f32, one number a channel) that are added to a site's output, by the site's name."""
    writer = _Writer(graph, {s.output: s for s in sites}, corrections, None)
    return Open(writer.run(), tuple(s.output for s in sites), writer.open)


def beside(graph: Graph, sites: Sequence[Site]) -> Open:
    """The graph's nodes, followed by each site quantised by itself with exact inputs, with scales as parameters."""
    writer = _Writer(graph, {}, {}, None)
    writer.builder.params.extend(graph.params)
    writer.builder.nodes.extend(graph.nodes)
    producers = graph.producers()
    outputs = tuple(writer.alone(site, producers) for site in sites)
    params, nodes = tuple(writer.builder.params), tuple(writer.builder.nodes)
    return Open(replace(graph, params=params, nodes=nodes), outputs, writer.open)


@dataclass(slots=True)
class _Writer:
    graph: Graph
    sites: Mapping[Value, Site]
    corrections: Mapping[str, str]
    scales: Mapping[Value, Scale] | None
    """The scale of each quantised value; None if scales are parameters of the graph."""
    open: dict[Value, tuple[Value, Value]] = field(init=False, default_factory=dict)
    """The parameters of a scale and a zero point, by the value that is quantised."""
    builder: GraphBuilder = field(init=False)
    codes: dict[Value, Codes] = field(init=False, default_factory=dict)
    values: dict[Value, Value] = field(init=False, default_factory=dict)
    """For a quantised value the value that replaces it where numbers are read: its codes times their scale."""
    weights: dict[Value, Value] = field(init=False, default_factory=dict)
    norms: set[Value] = field(init=False)
    """The results of norms over rows, and values that are copies of their elements in another order."""

    def __post_init__(self) -> None:
        self.builder = builder_for(self.graph)
        self.norms = {node.output for node in self.graph.nodes if node.op in NORMS}

    def run(self) -> Graph:
        sources = {v for site in self.sites.values() for v in site.activations}
        for value in self.graph.inputs:
            if value in sources:
                self.quantise(value)
        for node in self.graph.nodes:
            self.write(node)
            for value in node.outputs:
                if value in sources and value not in self.codes:
                    self.quantise(value)
        params = (*self.graph.params, *self.builder.params)
        return replace(self.graph, nodes=tuple(self.builder.nodes), params=params)

    def write(self, node: Node) -> None:
        first = node.inputs[0] if node.inputs else None
        site = self.sites.get(node.outputs[0])
        if node.op in MOVING and first is not None and first in self.codes and node.output not in self.graph.outputs:
            before = self.codes[first]
            if first in self.norms:
                self.norms.add(node.output)
                self.builder.nodes.append(node)
            self.codes[node.output] = Codes(
                ops.emit1(self.builder, node.op, before.codes, name=f"{node.output.name}_codes", attrs=node.attrs),
                before.source,
            )
            return
        if site is None:
            inputs = tuple(v if v is None or v in self.norms else self.read(v) for v in node.inputs)
            self.builder.nodes.append(replace(node, inputs=inputs))
            return
        inputs = tuple(None if v is None else self.read(v) for v in node.inputs)
        if site.axis is not None:
            inputs = (inputs[0], self.quantised_weights(site), *inputs[2:])
        correction = self.corrections.get(site.name)
        if correction is None:
            self.builder.nodes.append(replace(node, inputs=inputs))
            return
        total = ops.emit1(self.builder, node.op, *inputs, name=f"{site.name}_total", attrs=node.attrs)
        count = node.output.shape[site.channel]
        rank = node.output.type.rank
        offset: Value = self.builder.param(correction, TensorType(f32, (count,)))
        if site.channel != rank - 1:
            shape = tuple(count if k == site.channel else 1 for k in range(rank))
            offset = self.emit("reshape", offset, shape=shape)
        ops.emit1(self.builder, "add", total, offset, name=f"{site.name}_sum")
        self.builder.nodes.append(replace(self.builder.nodes.pop(), outputs=node.outputs))

    def alone(self, site: Site, producers: Mapping[Value, Node]) -> Value:
        """Emit the layer of `site` quantised by itself, with exact inputs; returns its output."""

        def rounded(value: Value) -> Value:
            if value in site.activations:
                if value not in self.codes:
                    self.quantise(value)
                return self.read(value)
            move = producers[value]
            assert move.inputs[0] is not None
            return ops.emit1(self.builder, move.op, rounded(move.inputs[0]), attrs=move.attrs)

        first, second, *rest = site.node.inputs
        assert first is not None and second is not None
        x = rounded(first) if site.activations else first
        w = rounded(second) if site.axis is None else self.quantised_weights(site)
        return ops.emit(self.builder, site.node.op, x, w, *rest, attrs=site.node.attrs)[0]

    def read(self, value: Value) -> Value:
        """The value to read where `value` is read as numbers: itself, or its codes times their scale."""
        if value not in self.codes:
            return value
        if value not in self.values:
            codes = self.codes[value]
            self.values[value] = self.dequantised(codes, value.name)
        return self.values[value]

    def parameters(self, value: Value) -> tuple[Value, Value]:
        """The parameters for the scale and the zero point of a quantised value; they are added if they are new."""
        if value not in self.open:
            one, two = (self.builder.param(f"{value.name}.{kind}", TensorType(f32, ())) for kind in ("scale", "zero"))
            self.open[value] = (one, two)
        return self.open[value]

    def scale(self, value: Value) -> Value:
        return self.parameters(value)[0] if self.scales is None else self.number(self.scales[value].scale)

    def zero(self, value: Value, dtype: DType) -> Value | None:
        """The zero point of a quantised value as a graph value of type `dtype`; None if it is 0."""
        if self.scales is None:
            zero = self.parameters(value)[1]
            return zero if dtype is f32 else self.emit("cast", zero, dtype=dtype)
        code = self.scales[value].zero
        return self.number(code, dtype) if code else None

    def quantise(self, value: Value) -> None:
        levels = self.emit("round", self.emit("div", value, self.scale(value)))
        zero = self.zero(value, f32)
        levels = levels if zero is None else self.emit("add", levels, zero)
        codes = ops.emit1(self.builder, "cast", levels, name=f"{value.name}_codes", dtype=u8)
        self.codes[value] = Codes(codes, value)

    def dequantised(self, codes: Codes, name: str) -> Value:
        levels = self.emit("cast", codes.codes, dtype=i32)
        zero = self.zero(codes.source, i32)
        levels = levels if zero is None else self.emit("sub", levels, zero)
        numbers = self.emit("cast", levels, dtype=f32)
        return ops.emit1(self.builder, "mul", numbers, self.scale(codes.source), name=f"{name}_quantised")

    def quantised_weights(self, site: Site) -> Value:
        w = site.weights
        if w not in self.weights:
            axes = tuple(k for k in range(w.type.rank) if k != site.axis)
            most = self.emit("reduce_max", self.emit("abs", self.read(w)), axes=axes, keepdims=True)
            scale = self.emit("div", self.emit("max", most, self.number(SMALLEST)), self.number(float(LEVELS)))
            codes = self.emit("cast", self.emit("round", self.emit("div", w, scale)), dtype=i8)
            numbers = self.emit("cast", self.emit("cast", codes, dtype=i32), dtype=f32)
            self.weights[w] = ops.emit1(self.builder, "mul", numbers, scale, name=f"{w.name}_quantised")
        return self.weights[w]

    def number(self, value: float, dtype: DType = f32) -> Value:
        return self.emit("constant", value=ConstantArray(dtype.numpy.type(value)))

    def emit(self, op: str, *inputs: Value, **attrs: object) -> Value:
        return ops.emit1(self.builder, op, *inputs, **attrs)  # type: ignore[arg-type]
