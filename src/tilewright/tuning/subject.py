"""The work of the processes of a race: they run a candidate's program, whole or step by step, and compile nothing.

A candidate's file contains code only; the weights are those of the untuned program, in a file of their own that is
mapped. So candidates are small, and a process needs the runtime only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.measure.contender import Prepared, load_arrays
from tilewright.runtime import artifact
from tilewright.runtime.model import Model

STEPS = "tilewright.tuning.subject:steps"
CALLS = "tilewright.tuning.subject:calls"

QUICKEST = 0.75
"""The share of a turn's runs that count, the quickest ones of each step: disturbances of a machine only add time."""


def steps(code: str, weights: str, inputs: str, threads: int) -> Prepared:
    """The program with the code and weights in these files, prepared for calls on `inputs` by `threads` threads, with
    the clock read between its steps: the parts of a turn are the seconds of each step.

    The steps run in the model's order, so that what they read is where it is in deployment: activations in caches,
    weights in them as far as they fit. A turn begins with what another process left in the caches: it has one run more
    than requested, and only the quickest runs count.
    """
    model = _load(code, weights, threads)
    arguments, call = _caller(model, inputs)
    clock = model.step_clock(*arguments)

    def parts(runs: int) -> Sequence[float]:
        samples = np.sort(clock.samples(runs + 1), axis=0)
        retained: list[float] = (samples[: max(1, round(runs * QUICKEST))].mean(axis=0) * 1e-9).tolist()
        return retained

    return Prepared(call, lambda: _outputs(model, arguments), {}, parts)


def calls(code: str, weights: str, inputs: str, threads: int) -> Prepared:
    """A program, loaded from the files `code` and `weights`, ready to be timed as users call it with the file `inputs`;
    outputs are allocated beforehand."""
    model = _load(code, weights, threads)
    arguments, call = _caller(model, inputs)
    return Prepared(call, lambda: _outputs(model, arguments))


def _load(code: str, weights: str, threads: int) -> Model:
    program, _ = artifact.read(code, code_only=True)
    whole, version = artifact.read(weights)
    return Model(replace(program, weights={**whole.weights, **program.weights}), threads, version=version)


def _caller(model: Model, inputs: str) -> tuple[list[Any], Any]:
    operands = load_arrays(inputs)
    arguments = [operands[i.name] for i in model.inputs]
    outputs = tuple(model.empty_outputs(*arguments).values())
    out = outputs[0] if len(outputs) == 1 else outputs
    return arguments, lambda: model(*arguments, out=out)


def _outputs(model: Model, arguments: Sequence[Any]) -> dict[str, Any]:
    return model.run({i.name: a for i, a in zip(model.inputs, arguments, strict=True)})
