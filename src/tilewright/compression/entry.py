"""`tw.compress`: fewer and shared weights, within a loss that the caller names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from tilewright.compression import steps
from tilewright.compression.factors import Factors, factored, factors_of
from tilewright.compression.recipe import Recipe, read
from tilewright.compression.report import CompressionReport, Try, WeightRow
from tilewright.compression.train import Follower
from tilewright.frontend.read import Dynamic, import_model
from tilewright.frontend.weights.patterns import patterned
from tilewright.ir.dim import DimSizes
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph
from tilewright.ops.sized import with_symbols
from tilewright.quantization.bound import Loss, Scores, loss_of
from tilewright.quantization.calibrate import Maker
from tilewright.quantization.compare import close_scores, in_turns, squares
from tilewright.quantization.entry import FASTER, Metric
from tilewright.quantization.samples import Feed, divided, feeds_of, outputs_of, scored
from tilewright.runtime import coded
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.support.options import check_option
from tilewright.support.progress import tell
from tilewright.targets.target import Target

MIN_ZEROS = 0.5
"""The least share of zeros in a weight for which products that skip zeros are tried."""
MIN_SIZE = 64
"""The least number of elements of a weight that is compressed."""

AUTO = tuple(
    Recipe(prune=share, stages=stages, values=values, epochs=30)
    for share, stages, values in ((0.95, 6, 8), (0.9, 4, 16), (0.8, 3, 16), (0.6, 2, 16), (0.3, 1, 32), (0.0, 1, 64))
)
"""The recipes that are tried if the caller gives none, in this order, until the metric holds."""


class CompressedModel(Model):
    """A `Model` with the report of its compression. `save(path, compressed=True)` writes the small file."""

    def __init__(self, program: Program, threads: int, report: CompressionReport) -> None:
        super().__init__(program, threads=threads)
        self.report = report


def compress(
    model: Any,
    example: Any = None,
    *,
    calibrate: Any,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    metric: Metric | None = None,
    max_drop: float = 0.01,
    threads: int = 1,
    dims: DimSizes | None = None,
    dynamic: Dynamic = "auto",
    target: Target | None = None,
    fast: str = "auto",
    params: Any = None,
    labels: Sequence[Any] | None = None,
    name: str | None = None,
) -> CompressedModel:
    """Compile a model with fewer weights, fewer distinct ones, or weights in two factors.

    Args:
        model, example, threads, dims, dynamic, fast, params, name: as for `tw.compile`.
        calibrate: samples of inputs, as for `tw.quantize`; training follows the original's outputs on those whose
            shapes are the first one's.
        recipe: what is done (`docs/compression.md`): a `Recipe`, tables, or the path of a TOML file; None: recipes from
            strong to mild, until the metric holds.
        metric: gives a number for a compiled model, the higher the better, or one for each of its samples; None: 1 less
            the relative error of the outputs on every fourth sample (3, 7, ..., the last of two or three), which then
            does not train.
        labels: of each sample the classes of its rows, whole numbers, for a recipe whose training knows them.
        max_drop: by how much the metric may fall, on other calls, too, as for `tw.quantize`. A recipe of the caller
            that falls further is taken, and the report says so.

    Returns a `Model` with a `report`; `model.save(path, compressed=True)` writes its small file.
    Raises CallError for samples or recipes that do not fit, UnsupportedError where a recipe trains through an operator
    without a gradient.
    """
    check_option("metric", metric, (object, NoneType), "a function of a model, or None")
    if isinstance(max_drop, bool) or not (isinstance(max_drop, int | float) and max_drop >= 0):
        raise CallError("max_drop is no amount", expected="a number, 0 or more", got=max_drop)
    tried = AUTO if recipe is None else (read(recipe),)
    imported = import_model(model, dims, example, dynamic, params)
    maker = Maker(imported, threads, {"target": target, "fast": fast, "name": name})
    feeds = feeds_of(calibrate, maker.names)
    original = maker.model(imported.graph)
    outputs = outputs_of(original, feeds)

    every = tuple(range(len(feeds)))
    training, measuring = (every, ()) if metric else divided(len(feeds))

    def score(other: Model) -> Scores:
        if metric:
            return scored(metric, other)
        return close_scores([squares(other, feeds[k], outputs[k]) for k in measuring], fitted=measuring == training)

    work = _Work(maker, feeds, outputs, training, _checked(labels, feeds, tried))
    base, tries = score(original), []
    for number, chosen in enumerate(tried):
        graph, weights = work.applied(chosen)
        program = maker.program(graph, weights, fixed=False)
        compressed = Model(program, threads=threads)
        if chosen.sparse:
            program, compressed = work.without_zeros(graph, weights, (program, compressed))
        reached = score(compressed)
        times = in_turns(original, compressed, feeds[0]).seconds
        loss = loss_of(base, reached)
        tries.append(Try(str(chosen), _coded(program), reached.metric, times[1]))
        tell(f"{chosen}: metric {reached.metric:.6g}")
        holds = loss.upper <= max_drop
        if holds or number + 1 == len(tried):
            break
    reason = "" if holds else f"the metric falls by {loss.drop:.3g}, {loss.beyond(max_drop)}"
    if not holds and recipe is None:
        weights, reached, chosen, loss = dict(imported.weights), base, Recipe(), Loss(0.0, 0.0)
        program, times = maker.program(imported.graph, weights), (times[0], times[0])
        reason = f"each recipe goes too far; with the last one {reason}"
    stored = sum(np.asarray(imported.weights[p.name]).nbytes for p in imported.graph.params)
    rows = tuple(_row(name, array) for name, array in weights.items() if np.asarray(array).size >= MIN_SIZE)
    sizes = (stored, _coded(program))
    held_out = tuple(k for k in every if k not in training)
    metrics = (base.metric, reached.metric)
    report = CompressionReport(str(chosen), reason, rows, metrics, sizes, times, tuple(tries), loss, held_out)
    return CompressedModel(program, threads, report)


def _checked(labels: Sequence[Any] | None, feeds: Sequence[Feed], recipes: Sequence[Recipe]) -> Sequence[Any] | None:
    """The labels, checked to be as many as samples; they are required if a recipe learns from them."""
    check_option("labels", labels, (list, tuple, np.ndarray, NoneType), "one array of classes for each sample")
    count = None if labels is None else len(labels)
    if count not in (None, len(feeds)) or (count is None and any(r.labels for r in recipes)):
        raise CallError("do not fit the samples", where="labels", expected=f"one for each of {len(feeds)}", got=count)
    return labels


def _sizes(graph: Graph, maker: Maker, feed: Feed) -> dict[Var, Expr]:
    """The value of each symbol of a graph in a call with the inputs `feed`."""
    return {
        d: const(n)
        for value in graph.inputs
        if (name := maker.name_of(value)) is not None
        for d, n in zip(value.shape, np.shape(feed[name]), strict=False)
        if isinstance(d, Var)
    }


def _coded(program: Program) -> int:
    """The size in bytes of a program's weights in a compressed file."""
    return len(coded.encode(program.manifest.params, program.weights))


def _row(name: str, array: Any) -> WeightRow:
    array = np.asarray(array)
    return WeightRow(name, array.size, np.count_nonzero(array) / max(array.size, 1), len(np.unique(array)))


@dataclass(slots=True)
class _Work:
    """Applies recipes to one model."""

    maker: Maker
    feeds: Sequence[Feed]
    outputs: Sequence[Mapping[str, Any]]
    training: Sequence[int]
    labels: Sequence[Any] | None = None

    def applied(self, recipe: Recipe) -> tuple[Graph, dict[str, Any]]:
        """The graph and the weights after all steps of a recipe."""
        read = self.maker.read
        weights = {p.name: np.asarray(read.weights[p.name]) for p in read.graph.params}
        graph = read.graph
        factors = factors_of(graph, weights, recipe.energy, recipe.convolutions) if recipe.energy is not None else {}
        graph, weights = factored(graph, weights, factors)
        if recipe.prune or (factors and recipe.epochs):
            weights = self.pruned(recipe, factors, weights, self.compressible(graph, weights) if recipe.prune else [])
        if recipe.values is not None:
            weights |= {n: steps.share_values(weights[n], recipe.values) for n in self.compressible(graph, weights)}
        return graph, weights

    def pruned(
        self, recipe: Recipe, factors: Mapping[str, Factors], weights: dict[str, Any], names: Sequence[str]
    ) -> dict[str, Any]:
        """`weights` with elements of those called `names` set to zero: at once, or, if the recipe trains, over
        `recipe.stages` stages of training, in which the share of zeros grows fast at first (Zhu and Gupta, 2017)."""
        if not recipe.epochs:
            return weights | {n: weights[n] * steps.pruning_mask(weights[n], recipe.prune, recipe.block) for n in names}
        follower = self.follower(recipe, factors, weights, names)
        for stage in range(1, recipe.stages + 1):
            share = recipe.prune * (1 - (1 - stage / recipe.stages) ** 3)
            follower.train(share, by_movement=recipe.moves and stage > 1)
        return follower.pruned()

    def without_zeros(
        self, graph: Graph, weights: dict[str, Any], dense: tuple[Program, Model]
    ) -> tuple[Program, Model]:
        """(program, loaded model) of `graph` that skip the zeros of `weights`, if calls are faster than those of
        `dense`, the pair that computes with all elements; else `dense`."""
        read = patterned(
            replace(self.maker.read, graph=graph, weights=weights), MIN_ZEROS, self.maker.options["target"]
        )
        maker = replace(self.maker, read=read)
        program = maker.program(read.graph, read.weights)
        model = Model(program, threads=maker.threads)
        faster = in_turns(dense[1], model, self.feeds[0]).faster
        return (program, model) if faster > FASTER else dense

    def compressible(self, graph: Graph, weights: Mapping[str, Any]) -> list[str]:
        """The names of the f32 weights that have at least two dimensions and enough elements."""
        return [
            p.name
            for p in graph.params
            if p.dtype is f32 and p.type.rank > 1 and np.asarray(weights[p.name]).size >= MIN_SIZE
        ]

    def follower(
        self, recipe: Recipe, factors: Mapping[str, Factors], weights: dict[str, Any], names: Sequence[str]
    ) -> Follower:
        """The training by a recipe of `weights`, some of which `factors` replace by products; those in `names` are
        pruned. It uses the training samples whose shapes are the first sample's."""
        whole = self.maker.read.graph
        static = with_symbols(whole, _sizes(whole, self.maker, self.feeds[0]))
        graph, _ = factored(static, weights, factors)
        first = {name: np.shape(a) for name, a in self.feeds[0].items()}
        labels = self.labels or [None] * len(self.feeds)
        triples = [(self.feeds[k], self.outputs[k], labels[k]) for k in self.training]
        batches = [t for t in triples if {n: np.shape(a) for n, a in t[0].items()} == first]
        return Follower(graph, weights, batches, self.maker.names, recipe, names, self.maker.threads)
