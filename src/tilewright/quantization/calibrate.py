"""The statistics that samples give of a graph's values: their ranges, and what quantising each layer by itself
changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.compiler import compile_program
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interface import Imported, Interface
from tilewright.ops.rooms import is_room
from tilewright.quantization.ranges import Ends, Histogram, Method, Scale, ends_of, excess, widened
from tilewright.quantization.rewrite import Open, beside
from tilewright.quantization.samples import Feed
from tilewright.quantization.sites import Site
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.support.progress import expect, tell
from tilewright.transform.regions.captures import builder_for


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
        """`graph`, which has the model's outputs, compiled with the model's weights and `more`, and loaded."""
        return Model(self.program(graph, {**self.read.weights, **(more or {})}, **options), threads=self.threads)

    def probe(self, graph: Graph, more: Mapping[str, Any] | None = None) -> Model:
        """`graph`, which has the model's inputs but other outputs, compiled with the model's weights and `more`, and
        loaded; an update passes all of its weights."""
        weights = {**self.read.weights, **(more or {})}
        interface = Interface(inputs=self.read.interface.inputs)
        retained = {p.name: weights[p.name] for p in graph.params}
        read = replace(self.read, graph=graph, weights=retained, interface=interface, private=False)
        return Model(compile_program(read, threads=self.threads, **self.options), threads=self.threads)

    def opened(self, graph: Graph, more: Mapping[str, Any]) -> Model:
        """`graph`, which has the model's outputs, compiled with the model's weights and `more`, and loaded. No weight
        is a constant of the program: updates of the result pass all weights, `more` ones included."""
        read = replace(self.read, interface=replace(self.read.interface, fixed=frozenset()))
        weights = {**self.read.weights, **more}
        return Model(replace(self, read=read).program(graph, weights, fixed=False), threads=self.threads)


def scales_of(
    maker: Maker, choices: Sequence[Mapping[int, Feed]], values: Sequence[Value], method: Method
) -> list[dict[Value, Scale]]:
    """The scale of each value of the model's graph, by a calibration method, for each of several choices of samples by
    their numbers. A choice's scales depend on its own samples alone, but for the bins of histograms.

    Raises CallError where a value is infinite or not a number.
    """
    if not values:
        return [{} for _ in choices]
    graph = maker.read.graph
    computed = [v for v in values if maker.name_of(v) is None]
    model = maker.probe(replace(graph, outputs=tuple(computed))) if computed else None
    feeds = {index: feed for choice in choices for index, feed in choice.items()}

    def seen(feed: Feed) -> dict[Value, Any]:
        arguments = {v: feed[name] for v in values if (name := maker.name_of(v)) is not None}
        return arguments if model is None else arguments | dict(zip(computed, model.run(feed).values(), strict=True))

    ends: dict[Value, dict[int, Ends]] = {v: {} for v in values}
    sizes: dict[Value, int] = dict.fromkeys(values, 0)
    expect(len(feeds) * (1 if method == "minmax" else 2))
    for index, feed in feeds.items():
        for value, array in seen(feed).items():
            array = np.asarray(array)
            if array.size and not np.isfinite(array).all():
                what = f"value {value.name!r} is infinite or not a number"
                raise CallError(what, where=f"calibration sample {index}", expected="finite numbers")
            if array.size:
                ends[value][index] = ends_of(array)
                sizes[value] = max(sizes[value], array.size)
        tell(f"range of sample {index + 1}")
    chosen = {v: [[e for k, e in of.items() if k in choice] for choice in choices] for v, of in ends.items()}
    histograms = {v: [Histogram(*_hull(e), _hull(ends[v].values())) for e in each] for v, each in chosen.items()}
    for index, feed in feeds.items() if method != "minmax" else ():
        for value, array in seen(feed).items():
            first, *others = [h for h, c in zip(histograms[value], choices, strict=True) if index in c]
            counts = first.add(array)
            for other in others:
                other.counts += counts
        tell(f"histogram of sample {index + 1}")
    scales = [{v: h[k].scale(method) for v, h in histograms.items()} for k in range(len(choices))]
    if method == "minmax":
        return scales
    heavier = [_heavier(choice) for choice in choices]
    return [
        {v: widened(scale, chosen[v][k], sizes[v], heavier[k]) for v, scale in each.items()}
        for k, each in enumerate(scales)
    ]


def _heavier(feeds: Mapping[int, Feed]) -> float:
    """How much heavier the tails of the model's floating-point inputs are than those of normal numbers (`excess`)."""
    samples = [[np.asarray(feed[name]) for feed in feeds.values()] for name in next(iter(feeds.values()), {})]
    floats = [arrays for arrays in samples if arrays[0].dtype.kind == "f" and all(a.size for a in arrays)]
    return max((excess([ends_of(a) for a in arrays], max(a.size for a in arrays)) for arrays in floats), default=0.0)


def _hull(ends: Collection[Ends]) -> tuple[float, float]:
    """The least range that contains the ranges of all `ends`; it contains 0 if there are none."""
    return min((e.low for e in ends), default=0.0), max((e.high for e in ends), default=0.0)


@dataclass(frozen=True, slots=True)
class LayerError:
    """The change that quantising one layer makes where its inputs are exact: the root of the mean square of the
    difference by that of the layer's output, and the mean difference of each channel, f64[channels]."""

    relative: float
    mean: Any


def errors_of(
    makers: Sequence[Maker],
    choices: Sequence[Mapping[int, Feed]],
    sites: Sequence[Site],
    scales: Sequence[Mapping[Value, Scale]],
) -> list[dict[str, LayerError]]:
    """The error of each site when it alone is quantised, by the site's name, for each choice of samples with its
    weights and scales. One program computes all sites both ways, and the statistics."""
    if not sites:
        return [{} for _ in choices]
    quantised, graph = _compared(makers[0].read.graph, sites)
    model = makers[0].probe(graph, quantised.numbers(scales[0]))
    expect(sum(map(len, choices)))
    results: list[dict[str, LayerError]] = []
    for maker, choice, scale in zip(makers, choices, scales, strict=True):
        renew(model, {**maker.read.weights, **quantised.numbers(scale)})
        sums: list[list[Any]] = [[] for _ in range(3 * len(sites))]
        for index, feed in choice.items():
            for total, array in zip(sums, model.run(feed).values(), strict=True):
                total.append(np.asarray(array, np.float64))
            tell(f"errors of sample {index + 1}")
        means = [np.mean(total, axis=0) for total in sums]
        errors: dict[str, LayerError] = {}
        for k, site in enumerate(sites):
            mean, square, whole = means[3 * k : 3 * k + 3]
            relative = float(np.sqrt(square / whole)) if 0 < whole < np.inf else float(whole and np.inf)
            errors[site.name] = LayerError(relative, mean)
        results.append(errors)
    return results


def renew(model: Model, weights: Mapping[str, Any]) -> None:
    """Update the weights of a model from `weights`, which may have more."""
    model.update({spec.name: weights[spec.name] for spec in model.params}, finite=False)


def _compared(graph: Graph, sites: Sequence[Site]) -> tuple[Open, Graph]:
    """A graph that computes the mean difference of each channel, the mean square of the difference and that of the
    output, for each site; and the quantised sites, whose numbers it has as parameters."""
    both = beside(graph, sites)
    builder = builder_for(both.graph)
    builder.nodes.extend(both.graph.nodes)
    outputs: list[Value] = []

    def emit(op: str, *inputs: Value, **attrs: Any) -> Value:
        return ops.emit1(builder, op, *inputs, **attrs)

    for site, other in zip(sites, both.outputs, strict=True):
        y = site.output
        difference = emit("sub", other, y)
        axes = tuple(k for k in range(y.type.rank) if k != site.channel)
        every = tuple(range(y.type.rank))
        mean = emit("reduce_mean", difference, axes=axes, keepdims=False)
        square = emit("reduce_mean", emit("mul", difference, difference), axes=every, keepdims=False)
        whole = emit("reduce_mean", emit("mul", y, y), axes=every, keepdims=False)
        outputs += [mean, square, whole]
    return both, replace(both.graph, nodes=tuple(builder.nodes), outputs=tuple(outputs))
