"""`tw.quantize`: a model of f32 becomes a smaller and faster one, within a loss that the caller names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from types import NoneType
from typing import Any, Literal, get_args

from tilewright.frontend.read import Dynamic, import_model
from tilewright.ir.dim import DimSizes
from tilewright.ir.dtype import i8, u8
from tilewright.ir.graph import Graph, Value
from tilewright.ir.selection import Precision
from tilewright.quantization import weight_only
from tilewright.quantization.bound import Scores, loss_of
from tilewright.quantization.calibrate import LayerError, Maker, renew
from tilewright.quantization.compare import close_scores, in_turns, squares
from tilewright.quantization.fits import Fit, fits_of
from tilewright.quantization.half_precision import beyond, in_f16
from tilewright.quantization.outside import counted
from tilewright.quantization.ranges import METHODS, Method, Scale
from tilewright.quantization.report import LayerRow, Mix, Report
from tilewright.quantization.rewrite import opened, quantised
from tilewright.quantization.samples import Samples, doubts, feeds_of, in_folds, outputs_of, scored
from tilewright.quantization.sites import Site, all_sites, canonical, sites_of
from tilewright.quantization.weight_only import can_have
from tilewright.runtime.model import Model
from tilewright.runtime.profile import Profile
from tilewright.runtime.program import Program
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.support.options import check_choice, check_option
from tilewright.support.progress import tell
from tilewright.targets.target import Target

Wanted = Literal["int8", "bf16", "fp16", "int8w", "int4w", "auto"]
Metric = Callable[[Model], "float | Sequence[float]"]

PRODUCTS: tuple[Precision, ...] = ("bf16", "int8w", "int4w")
"""The precisions of products that `tw.compile(precision=)` offers and that need no calibration."""

PROFILED = 20
"""The number of calls from which the times of layers are measured."""
FASTER = 1.02
"""The factor by which a model must be faster, in three quarters of the pairs, so that `auto` chooses it."""


class QuantizedModel(Model):
    """A `Model` with the report of its quantisation."""

    def __init__(self, program: Program, threads: int, report: Report) -> None:
        super().__init__(program, threads=threads)
        self.report = report


def quantize(
    model: Any,
    example: Any = None,
    *,
    calibrate: Any,
    precision: Wanted = "auto",
    metric: Metric | None = None,
    max_drop: float = 0.01,
    method: Method = "mse",
    correct_bias: bool = True,
    smooth: bool = True,
    count_outside: bool = False,
    attention: bool | None = None,
    threads: int = 1,
    dims: DimSizes | None = None,
    dynamic: Dynamic = "auto",
    target: Target | None = None,
    fast: str = "auto",
    params: Any = None,
    name: str | None = None,
) -> QuantizedModel:
    """Compile a model of f32 in fewer bits.

    Layers (convolutions and products with weights) multiply 8-bit integers: weights with a scale a channel, symmetric,
    computed again whenever new weights arrive; activations with a scale and a zero point a tensor, from the samples.
    Layers with the largest error stay in f32 as long as the metric falls by more than `max_drop`.

    Args:
        model, example, threads, dims, dynamic, fast, params, name: as for `tw.compile`.
        calibrate: samples of inputs: an iterable of arrays, or of tuples or dictionaries of them, one a call.
        precision: "int8"; "bf16": products multiply in bf16; "fp16": layers have operands of f16, which are stored so,
            and sums of f32; "int8w", "int4w": weights of products have 8 or 4 bits and
            are widened as they are read, those with the largest errors more bits where the metric falls; "auto": the
            fastest of f32 and these that keeps `max_drop`, never slower than f32.
        metric: gives a number for a compiled model, the higher the better, such as the accuracy on held-out data, or
            one for each of its samples, the same ones in each call; None: 1 less the relative error of the outputs
            (root of the mean square), where ranges come from other samples than the error.
        max_drop: by how much the metric may fall, on other calls, too: what is measured on samples has a margin
            (`quantization/bound.py`), the smaller the more samples there are. A metric that gives one number has none.
        method: how ranges of activations are chosen: "minmax", "percentile", "mse", "entropy".
        correct_bias: take the mean error of each channel, on the samples, off the layer's output.
        smooth: move outliers of channels from activations into weights (SmoothQuant) where that makes the layers'
            errors smaller.
        count_outside: an int8 model has one output more, "outside_range", i32: how many elements of each quantised
            activation (`report.counted`) a call has had outside of its calibrated range.
        attention: int8 for products of two computed values, too; None: where the machine multiplies bytes.
        target: the machine that runs the model, which must be this one; the host if None.

    Returns a `Model` with a `report`.
    Raises CallError for samples that do not fit the model or hold numbers that are not finite, ModelError as
    `tw.compile` does.
    """
    check_choice("precision", precision, get_args(Wanted))
    check_choice("method", method, METHODS)
    check_option("metric", metric, (Callable, NoneType), "a function of a model, or None")  # type: ignore[arg-type]
    check_option("smooth", smooth, (bool,), "true or false")
    check_option("count_outside", count_outside, (bool,), "true or false")
    check_option("attention", attention, (bool, NoneType), "true, false or None")
    if not (isinstance(max_drop, int | float) and max_drop >= 0):
        raise CallError("max_drop is no amount", expected="a number, 0 or more", got=max_drop)
    read = import_model(model, dims, example, dynamic, params)
    read = replace(read, graph=canonical(read.graph))
    maker = Maker(read, threads, {"target": target, "fast": fast, "name": name})
    feeds = feeds_of(calibrate, maker.names)
    original = maker.model(read.graph)
    outputs = outputs_of(original, feeds, compared=metric is None)

    samples = in_folds(feeds, measured=metric is None)

    def score(other: Model) -> Scores:
        if metric:
            return scored(metric, other)
        return close_scores([squares(other, feed, exact) for feed, exact in zip(feeds, outputs, strict=True)])

    start = _Candidate("fp32", original, score(original), read.graph, read.weights, ())
    if attention is None:
        attention = find_dot(u8, i8, target or Target.host()) is not None
    options = (float(max_drop), method, correct_bias, smooth, count_outside, attention)
    return _Search(maker, samples, precision, *options, score, None if metric else outputs, start).run()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A compiled model that the search may choose: its graph, its metric, and its entries in the report."""

    chosen: str
    model: Model
    scores: Scores
    graph: Graph
    weights: Mapping[str, Any]
    layers: tuple[LayerRow, ...]
    reason: str = ""
    ranges: Mapping[Value, Scale] = field(default_factory=dict)


@dataclass(slots=True)
class _Search:
    """The state of one quantisation. `score` returns a model's metric; `outputs`: those of the f32 model on all
    samples, if the metric compares them."""

    maker: Maker
    samples: Samples
    precision: Wanted
    max_drop: float
    method: Method
    correct_bias: bool
    smooth: bool
    count_outside: bool
    attention: bool
    score: Callable[[Model], Scores]
    outputs: Sequence[Mapping[str, Any]] | None
    original: _Candidate
    mixes: list[Mix] = field(default_factory=list)

    def run(self) -> QuantizedModel:
        candidates: list[_Candidate] = []
        if self.precision in ("int8", "auto"):
            candidates.append(self.in_int8())
        if self.precision in ("fp16", "auto"):
            candidates.append(self.in_fp16())
        candidates += [self.products_in(p) for p in PRODUCTS if self.precision in (p, "auto")]
        if self.precision != "auto":
            return self.reported(candidates[0])
        return self.reported(self.fastest([c for c in candidates if c.chosen != "fp32"]))

    def fastest(self, candidates: Sequence[_Candidate]) -> _Candidate:
        """The fastest candidate, or the f32 model if none is faster than it by the factor FASTER."""
        best, most = self.original, FASTER
        for candidate in candidates:
            faster = in_turns(self.original.model, candidate.model, self.samples.first).faster
            if faster > most:
                best, most = candidate, faster
        if best is not self.original:
            return replace(best, reason=f"{best.chosen} is the fastest that keeps the metric")
        layers = tuple(replace(r, type="fp32", reason=r.reason or "fp32 is faster") for r in _rows(candidates))
        return replace(self.original, layers=layers, reason="nothing is faster than fp32 on this machine")

    # --- products in another type -------------------------------------------------------------------------------------

    def products_in(self, precision: Precision) -> _Candidate:
        """The candidate with all products with weights in bf16, or with weights of fewer bits; the f32 model if the
        metric would fall too far."""
        model = self.maker.model(self.original.graph, precision=precision)
        scores = self.score(model)
        if self.falls(scores) and precision != "bf16":
            return self.mixed_weights(precision, scores)
        if self.falls(scores):
            return replace(self.original, reason=self.refusal(f"in {precision}", scores))
        sites = (s for s in sites_of(self.original.graph) if s.node.op == "matmul" or precision == "bf16")
        layers = tuple(LayerRow(s.name, s.node.op, precision, None) for s in sites)
        return replace(self.original, chosen=precision, model=model, scores=scores, layers=layers)

    def mixed_weights(self, precision: Precision, all_of_it: Scores) -> _Candidate:
        """The candidate with weights of 4 bits in as many products as the metric allows, then of 8 bits: the products
        with the largest errors have more bits, or stay in f32."""
        graph, weights = self.original.graph, self.original.weights
        sites = [s for s in sites_of(graph) if can_have(s, 8)]
        four = [s for s in sites if precision == "int4w" and can_have(s, 4)]
        error = weight_only.errors(graph, weights, sites, 8) | weight_only.errors(graph, weights, four, 4)
        order = sorted(sites, key=lambda s: -error[s.name])
        tried: dict[tuple[int, int], _Candidate] = {}

        def mix(in_f32: int, eight: int) -> _Candidate:
            """The model in which, of the layers in `order`, the first `in_f32` stay in f32, the next `eight` have
            weights of 8 bits, and the others of 4 if they can."""
            if (in_f32, eight) not in tried:
                bits = {s: 4 if k >= in_f32 + eight and s in four else 8 for k, s in enumerate(order) if k >= in_f32}
                changed = weight_only.coded(graph, bits)
                model = self.maker.model(changed)
                seconds = in_turns(self.original.model, model, self.samples.first).seconds[1]
                scores = self.score(model)
                self.mixes.append(self.mix(len(bits), scores, seconds))
                rows = tuple(_weights_row(s, bits.get(s), error) for s in sites)
                tried[in_f32, eight] = _Candidate(precision, model, scores, changed, weights, rows)
            return tried[in_f32, eight]

        count = len(order)
        eight = weight_only.least(count, lambda k: not self.falls(mix(0, k).scores)) if four else None
        if eight is not None:
            return mix(0, eight)
        in_f32 = weight_only.least(count, lambda k: not self.falls(mix(k, count).scores))
        if in_f32 is not None and in_f32 < count:
            return mix(in_f32, count)
        return replace(self.original, reason=self.refusal(f"in {precision}", all_of_it))

    def in_fp16(self) -> _Candidate:
        """The candidate with 16-bit operands in all layers; the f32 model if the metric would fall too far."""
        sites = sites_of(self.original.graph)
        if not sites:
            return replace(self.original, reason="no layer multiplies by weights")
        wide = beyond(self.original.graph, self.original.weights, sites)
        if wide:
            return replace(self.original, reason=f"weights of {', '.join(wide)} have no numbers of f16")
        graph = in_f16(self.original.graph, sites)
        model = self.maker.model(graph)
        scores = self.score(model)
        if self.falls(scores):
            return replace(self.original, reason=self.refusal("in fp16", scores))
        rows = tuple(LayerRow(s.name, s.node.op, "fp16", None) for s in sites)
        return replace(self.original, chosen="fp16", model=model, scores=scores, graph=graph, layers=rows)

    # --- int8 ---------------------------------------------------------------------------------------------------------

    def in_int8(self) -> _Candidate:
        """The candidate with as many layers in int8 as the metric allows: the layers with the largest errors stay in
        f32."""
        if not all_sites(self.maker.read.graph, products=self.attention):
            return replace(self.original, reason="no layer multiplies by weights")
        choices = self.samples.choices
        sites, fits = fits_of(self.maker, choices, self.method, products=self.attention, smooth=self.smooth)
        self.maker = fits[0].maker
        order = sorted(sites, key=lambda site: -fits[0].errors[site.name].relative)
        tried: dict[int, _Candidate] = {}

        def mix(in_f32: int) -> _Candidate:
            if in_f32 not in tried:
                tried[in_f32] = self.mixed(order[in_f32:], fits)
            return tried[in_f32]

        retained = weight_only.least(len(order), lambda k: k == len(order) or not self.falls(mix(k).scores))
        assert retained is not None
        rows = tuple(_row(site, fits[0].errors, order.index(site) < retained) for site in sites)
        if retained == len(sites):
            reason = self.refusal("with a single layer in int8", mix(retained - 1).scores)
            return replace(self.original, layers=rows, reason=reason)
        return replace(mix(retained), layers=rows)

    def mixed(self, sites: Sequence[Site], fits: Sequence[Fit]) -> _Candidate:
        """The candidate with the layers `sites` in int8, by the parameters of the first fit."""
        graph = self.maker.read.graph
        used_names = {v.name for v in (*graph.inputs, *graph.params)} | {v.name for n in graph.nodes for v in n.outputs}
        # A recurrent layer's error goes on into its state, and columns of scores are places, not channels.
        corrected = [s for s in sites if self.correct_bias and s.activations and s.axis is not None]
        names = {site.name: _free(f"{site.name}.bias_correction", used_names) for site in corrected}
        more = fits[0].corrections(names)
        written = quantised(graph, sites, fits[0].scales, names)
        model = self.maker.model(written, more)
        scores = self.score(model) if self.outputs is None or not sites else self.crossed(sites, names, fits)
        seconds = in_turns(self.original.model, model, self.samples.first).seconds[1]
        self.mixes.append(self.mix(len(sites), scores, seconds))
        tell(f"{len(sites)} layers in int8: metric {scores.metric:.6g}")
        weights = {**self.maker.read.weights, **more}
        ranges = {v: fits[0].scales[v] for s in sites for v in s.activations}
        return _Candidate("int8" if sites else "fp32", model, scores, written, weights, (), ranges=ranges)

    def crossed(self, sites: Sequence[Site], names: Mapping[str, str], fits: Sequence[Fit]) -> Scores:
        """The scores of the model with the layers `sites`, called `names` in it, in int8, where each sample is computed
        with the fit to the other samples: one program takes the numbers of all fits. A single sample is computed with
        its own fit."""
        assert self.outputs is not None
        feeds, program = self.samples.feeds, opened(self.maker.read.graph, sites, names)
        pairs: dict[int, tuple[float, float]] = {}
        model: Model | None = None
        for fit in fits[1:] or fits:
            numbers = {**fit.corrections(names), **program.numbers(fit.scales)}
            if model is None:
                model = fit.maker.opened(program.graph, numbers)
            else:
                renew(model, {**fit.maker.read.weights, **numbers})
            for k in [k for k in feeds if k not in fit.feeds] or feeds:
                pairs[k] = squares(model, feeds[k], self.outputs[k])
        return close_scores([pairs[k] for k in feeds], fitted=len(fits) == 1)

    def falls(self, scores: Scores) -> bool:
        """Whether the metric of a model with these scores may fall by more than is allowed; NaN counts as falling."""
        return not loss_of(self.original.scores, scores).upper <= self.max_drop

    def refusal(self, how: str, scores: Scores) -> str:
        """The reason, for the report, why a model computed `how` is not chosen."""
        loss = loss_of(self.original.scores, scores)
        return f"{how} the metric falls to {scores.metric:.6g}, {loss.beyond(self.max_drop)}"

    def mix(self, layers: int, scores: Scores, seconds: float) -> Mix:
        """The line of the report for a model with `layers` quantised layers."""
        return Mix(layers, scores.metric, seconds, loss_of(self.original.scores, scores).upper)

    def reported(self, best: _Candidate) -> QuantizedModel:
        times = in_turns(self.original.model, best.model, self.samples.first)
        report = Report(
            self.precision,
            best.chosen,
            best.reason,
            self.method,
            len(self.samples.feeds),
            self.timed(best),
            (self.original.scores.metric, best.scores.metric),
            times.seconds,
            tuple(self.mixes),
            best.graph,
            best.weights,
            doubts(list(self.samples.feeds.values())),
            tuple(v.name for v in best.ranges) if self.count_outside else (),
            loss_of(self.original.scores, best.scores),
            len(self.samples.folds) if best.chosen == "int8" else 0,
        )
        whole = best.chosen in PRODUCTS and best.graph is self.original.graph  # else the graph has the codes
        precision = best.chosen if whole else "fp32"
        maker, graph = self.maker, best.graph
        if report.counted:
            graph, interface = counted(graph, best.ranges, maker.read.interface)
            maker = replace(maker, read=replace(maker.read, interface=interface))
        program = maker.program(graph, best.weights, precision=precision)
        return QuantizedModel(program, self.maker.threads, report)

    def timed(self, best: _Candidate) -> tuple[LayerRow, ...]:
        """The rows of the report for the chosen model, with the times of its kernels that multiply, if each computes
        one layer."""
        feed = tuple(self.samples.first[name] for name in self.maker.names)
        both = [_products(model.profile(*feed, repeat=PROFILED)) for model in (self.original.model, best.model)]
        if any(len(times) != len(best.layers) for times in both):
            return best.layers
        return tuple(replace(row, seconds=pair) for row, pair in zip(best.layers, zip(*both, strict=True), strict=True))


def _products(profile: Profile) -> list[float]:
    """The seconds of each kernel that multiplies, in order."""
    return [k.seconds for k in profile.kernels if any(name in k.label for name in ("conv", "matmul", "recurrence"))]


def _rows(candidates: Sequence[_Candidate]) -> tuple[LayerRow, ...]:
    return next((c.layers for c in candidates if c.layers), ())


def _row(site: Site, errors: Mapping[str, LayerError], stays: bool) -> LayerRow:
    reason = "its error is among the largest, and the metric would fall too far" if stays else ""
    return LayerRow(site.name, site.node.op, "fp32" if stays else "int8", errors[site.name].relative, reason)


def _weights_row(site: Site, bits: int | None, error: Mapping[str, float]) -> LayerRow:
    reason = "" if bits else "its weights' error is among the largest, and the metric would fall too far"
    return LayerRow(site.name, site.node.op, f"int{bits}w" if bits else "fp32", error[site.name], reason)


def _free(name: str, used_names: set[str]) -> str:
    number, free = 0, name
    while free in used_names:
        number += 1
        free = f"{name}_{number}"
    used_names.add(free)
    return free
