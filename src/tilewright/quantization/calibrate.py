"""The statistics that samples give of a graph's values: their ranges, and what quantising each layer by itself
changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.compiler import compile_program
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interface import Imported, Interface
from tilewright.ops.rooms import is_room
from tilewright.quantization.ranges import Histogram, Method, Scale, widened
from tilewright.quantization.rewrite import beside
from tilewright.quantization.samples import Feed
from tilewright.quantization.sites import Site
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.support.progress import expect, tell


@dataclass(frozen=True, slots=True)
class Maker:
    """Compiles variants of one model: graphs that read its inputs and weights but compute something else, such as
    statistics.

    read     the model, its graph in canonical form
    options  of `compile_program`
    """

    read: Imported
    threads: int
    options: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The model's inputs, as its user calls them."""
        return self.read.interface.inputs or tuple(v.name for v in self.read.graph.inputs if not is_room(v))

    def name_of(self, value: Value) -> str | None:
        """The user's name for an input of the graph; None for other values."""
        inputs = [v for v in self.read.graph.inputs if not is_room(v)]
        return dict(zip(inputs, self.names, strict=True)).get(value)

    def program(self, graph: Graph, weights: Mapping[str, Any], *, fixed: bool = True, **options: Any) -> Program:
        """The program of another graph with the model's outputs. Weights that the model does not have are constants of
        the program if `fixed`, else weights that an update passes."""
        more = set(weights) - set(self.read.weights) if fixed else set()
        fixed_names = self.read.interface.fixed | more
        interface = replace(self.read.interface, fixed=frozenset(fixed_names))
        retained = {p.name: weights[p.name] for p in graph.params}
        read = replace(self.read, graph=graph, weights=retained, interface=interface, private=False)
        return compile_program(read, threads=self.threads, **{**self.options, **options})

    def model(self, graph: Graph, more: Mapping[str, Any] | None = None, **options: Any) -> Model:
        """Another graph with the model's outputs, compiled with further weights and loaded."""
        return Model(self.program(graph, {**self.read.weights, **(more or {})}, **options), threads=self.threads)

    def probe(self, graph: Graph) -> Model:
        """A graph with the model's inputs and other outputs, compiled and loaded."""
        interface = Interface(inputs=self.read.interface.inputs)
        read = replace(self.read, graph=graph, interface=interface, private=False)
        return Model(compile_program(read, threads=self.threads, **self.options), threads=self.threads)


def scales_of(maker: Maker, feeds: Mapping[int, Feed], values: Sequence[Value], method: Method) -> dict[Value, Scale]:
    """The scale of each value of the model's graph, by a calibration method, over samples by their numbers.

    Raises CallError where a value is infinite or not a number.
    """
    if not values:
        return {}
    graph = maker.read.graph
    computed = [v for v in values if maker.name_of(v) is None]
    model = maker.probe(replace(graph, outputs=tuple(computed))) if computed else None

    def seen(feed: Feed) -> dict[Value, Any]:
        arguments = {v: feed[name] for v in values if (name := maker.name_of(v)) is not None}
        return arguments if model is None else arguments | dict(zip(computed, model.run(feed).values(), strict=True))

    ends: dict[Value, list[tuple[float, float]]] = {v: [] for v in values}
    expect(len(feeds) * (1 if method == "minmax" else 2))
    for index, feed in feeds.items():
        for value, array in seen(feed).items():
            array = np.asarray(array)
            if array.size and not np.isfinite(array).all():
                what = f"value {value.name!r} is infinite or not a number"
                raise CallError(what, where=f"calibration sample {index}", expected="finite numbers")
            if array.size:
                ends[value].append((float(array.min()), float(array.max())))
        tell(f"range of sample {index + 1}")
    histograms = {
        v: Histogram(min((a for a, _ in e), default=0.0), max((b for _, b in e), default=0.0)) for v, e in ends.items()
    }
    for index, feed in feeds.items() if method != "minmax" else ():
        for value, array in seen(feed).items():
            histograms[value].add(array)
        tell(f"histogram of sample {index + 1}")
    scales = {v: h.scale(method) for v, h in histograms.items()}
    return scales if method == "minmax" else {v: widened(scale, ends[v]) for v, scale in scales.items()}


@dataclass(frozen=True, slots=True)
class LayerError:
    """The change that quantising one layer makes where its inputs are exact: the root of the mean square of the
    difference by that of the layer's output, and the mean difference of each channel, f64[channels]."""

    relative: float
    mean: Any


def errors_of(
    maker: Maker, feeds: Sequence[Feed], sites: Sequence[Site], scales: Mapping[Value, Scale]
) -> dict[str, LayerError]:
    """The error of each site by itself, by its name: one program computes all sites both ways and their statistics."""
    if not sites:
        return {}
    model = maker.probe(_compared(maker.read.graph, sites, scales))
    sums: list[list[Any]] = [[] for _ in range(3 * len(sites))]
    expect(len(feeds))
    for index, feed in enumerate(feeds):
        for total, array in zip(sums, model.run(feed).values(), strict=True):
            total.append(np.asarray(array, np.float64))
        tell(f"errors of sample {index + 1}")
    means = [np.mean(total, axis=0) for total in sums]
    errors: dict[str, LayerError] = {}
    for k, site in enumerate(sites):
        mean, square, whole = means[3 * k : 3 * k + 3]
        errors[site.name] = LayerError(float(np.sqrt(square / whole)) if whole > 0 else 0.0, mean)
    return errors


def _compared(graph: Graph, sites: Sequence[Site], scales: Mapping[Value, Scale]) -> Graph:
    """The mean difference of each channel, the mean square of the difference and that of the output, for each site."""
    builder, changed = beside(graph, sites, scales)
    outputs: list[Value] = []

    def emit(op: str, *inputs: Value, **attrs: Any) -> Value:
        return ops.emit1(builder, op, *inputs, **attrs)

    for site, other in zip(sites, changed, strict=True):
        y = site.output
        difference = emit("sub", other, y)
        axes = tuple(k for k in range(y.type.rank) if k != site.channel)
        every = tuple(range(y.type.rank))
        mean = emit("reduce_mean", difference, axes=axes, keepdims=False)
        square = emit("reduce_mean", emit("mul", difference, difference), axes=every, keepdims=False)
        whole = emit("reduce_mean", emit("mul", y, y), axes=every, keepdims=False)
        outputs += [mean, square, whole]
    return replace(graph, nodes=tuple(builder.nodes), outputs=tuple(outputs))
