"""Races of recorded settings for operators of a graph: an algorithm, or the packing of weights.

The operators become a model of their own, whose inputs and weights are the values that they read. The model is compiled
twice, with the record's setting and with the one that the estimates prefer, and the steps in which the two programs
differ are timed. For times with arrays in memory, the model holds enough copies of the operators, each with arrays of
its own, that no cache holds them all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.plans.framework.decision_key import Key, key_of_nodes
from tilewright.plans.framework.space import Setting
from tilewright.runtime.examples import random_inputs
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.tuning.programs import Built, Maker, changed
from tilewright.tuning.significance import Gain, gain, ratios, there_and_back
from tilewright.tuning.sites import Part
from tilewright.tuning.workers import LOADINGS, ROUNDS, Processes, Races

KINDS = ("algorithm", "panels")
"""The kinds of decisions that also occur in a model made of the decision's operators alone. Other kinds concern how a
whole model is lowered."""
MAX_COPIES, MAX_BYTES = 16, 256 << 20
"""The most copies of the operators, and the most bytes of their arrays, of a race with arrays in memory."""

Regime = Literal["warm", "cold"]


@dataclass(frozen=True, slots=True)
class Raced:
    """The results of the races of one decision: the labels of the settings, the preferred one first; by regime the gain
    of the record's setting over the preferred one; by label the seconds of the steps in which they differ; the errors
    of both, relative to the scale of the outputs."""

    labels: tuple[str, ...]
    gains: Mapping[str, Gain]
    turns: Mapping[str, list[float]]
    errors: tuple[float, float]


def race_layer(key: Key, setting: str, machine: Target, regimes: tuple[Regime, ...]) -> Raced | str:
    """Race the setting `setting` of the decision `key` about operators against the estimates' choice, with arrays as
    each of `regimes` has them in cache; a text with the reason if no race can tell anything."""
    assert isinstance(key.program, Graph)
    if key.kind not in KINDS:
        return "its operators come up in the model alone"
    gains: dict[str, Gain] = {}
    turns: dict[str, list[float]] = {}
    result: _Shown | str = "there is nothing to race"
    for regime in regimes:
        with tempfile.TemporaryDirectory(prefix="tilewright-race-") as folder:
            copies = 1 if regime == "warm" else copies_of(key.program, machine)
            result = _Layer(key, setting, machine, copies, Path(folder)).raced()
        if isinstance(result, str):
            return result
        gains[regime] = result.gain
        for label, times in result.turns.items():
            turns.setdefault(label, []).extend(times)
    return result if isinstance(result, str) else Raced(result.labels, gains, turns, result.errors)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The result of a race of two settings in one regime: their labels, the gain of the second, the times of both, and
    the largest errors of their outputs."""

    labels: tuple[str, ...]
    gain: Gain
    turns: Mapping[str, list[float]]
    errors: tuple[float, float]


class _Layer:
    """The operators of a decision as a model, compiled with both settings."""

    def __init__(self, key: Key, setting: str, machine: Target, copies: int, folder: Path) -> None:
        assert isinstance(key.program, Graph)
        self.name, self.setting = key.name, setting
        self.forced = algorithms(key.program, machine)
        self.maker = Maker(model_of(key.program, copies), folder, threads=machine.threads, target=machine)

    def raced(self) -> _Shown | str:
        listed = self.maker.listed(self.forced)
        decision = next((d for d in listed.decisions if d.key.name == self.name), None)
        if decision is None:
            return "it does not come up without its model"
        labels = decision.space.labels
        if self.setting not in labels:
            return "not among the settings here"
        if self.setting == labels[0]:
            return "it is what the estimates prefer now"
        both = [self.maker.built({**self.forced, self.name: label}) for label in (labels[0], self.setting)]
        part = Part(*changed(both[0].kernels, both[1].kernels))
        if not part.before and not part.after:
            return "it makes the same code here"
        return self._timed(labels, both, part)

    def _timed(self, labels: tuple[str, ...], both: list[Built], part: Part) -> _Shown | str:
        races = self._races(both[0])
        loadings = []
        turns: dict[str, list[float]] = {labels[0]: [], self.setting: []}
        error = 0.0
        for _ in range(LOADINGS):
            first, second = races.steps(both, ROUNDS)
            for timed in (first, second):
                if timed.outcome != "timed":
                    return f"{timed.outcome}: {timed.why}"
            times = part.times(first.rounds, after=False), part.times(second.rounds, after=True)
            loadings.append(there_and_back(ratios(*times)))
            turns[labels[0]] += times[0]
            turns[self.setting] += times[1]
            error = max(error, second.error)
        return _Shown(labels, gain(loadings), turns, (error, races.own_error))

    def _races(self, untuned: Built) -> Races:
        program = self.maker.untuned()
        sizes = {s.name: max(1, s.lo or 1) for s in program.manifest.symbols}
        arrays = random_inputs(program.manifest.inputs, sizes)
        processes = Processes(self.maker.weights(program), self.maker.inputs(arrays), self.maker.threads)
        return processes.compared_with(self.maker.exact(), untuned)


def model_of(operators: Graph, copies: int) -> tuple[Graph, dict[str, np.ndarray[Any, Any]]]:
    """A model of `copies` independent copies of some operators, and its weights, drawn at random.

    The first value that the operators read becomes an input; other floats of known size become weights, as in networks.
    """
    b = GraphBuilder("layer")
    weights: dict[str, np.ndarray[Any, Any]] = {}
    draw = np.random.default_rng(0)
    outputs: list[Value] = []
    for copy in range(copies):
        values: dict[Value, Value] = {}
        for place, v in enumerate(operators.inputs):
            shape = [as_int(d) for d in v.shape]
            if place and v.dtype.is_float and None not in shape:
                values[v] = b.param(f"w{copy}_{place}", v.type)
                numbers = draw.standard_normal([d or 0 for d in shape], np.float32) / 8
                weights[values[v].name] = numbers.astype(v.dtype.numpy)
            else:
                values[v] = b.input(f"x{copy}_{place}", v.type)
        for node in operators.nodes:
            read = tuple(None if v is None else values[v] for v in node.inputs)
            new_node = b.node(node.op, read, tuple(v.type for v in node.outputs), node.attrs)
            values.update(zip(node.outputs, new_node, strict=True))
        outputs += [values[v] for v in operators.outputs]
    return b.finish(tuple(outputs)), weights


def algorithms(operators: Graph, machine: Target) -> dict[str, str]:
    """The decisions that force the algorithms of the operators: a decision about packing presupposes an algorithm."""
    forced = {}
    for node in operators.nodes:
        if node.algorithm is not None:
            bare = replace(node, selected=None)
            forced[key_of_nodes("algorithm", [bare], machine).name] = Setting.of(node.algorithm).label
    return forced


def copies_of(operators: Graph, machine: Target) -> int:
    """The number of copies of the arrays of `operators` that together exceed twice the last cache level that a core
    does not share."""
    values = {v for node in operators.nodes for v in (*node.inputs, *node.outputs) if v is not None}
    size = max(1, sum(v.dtype.itemsize * prod(as_int(d) or 1 for d in v.shape) for v in values))
    return max(1, min(2 * machine.l2 // size + 1, MAX_COPIES, MAX_BYTES // size))


__all__ = ["KINDS", "Raced", "algorithms", "copies_of", "model_of", "race_layer"]
