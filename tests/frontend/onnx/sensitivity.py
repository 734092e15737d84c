"""How far a module's outputs may be off in single precision, because each of its layers is.

A value head may sum 256 large features up to a small number: the error is small beside the features and large beside
the sum, whatever computes it (direct convolutions are 3e-5 of the value off in IMP, for one state). So a share of the
largest output is no bound that holds on every machine. What holds is what the layers promise: each one's error has a
standard deviation relative to its outputs, for a direct sum of n products 2^-24 sqrt(n / 6) (in the mean n / 2
roundings, of a mean square of u^2 / 3), for a Winograd convolution that of the tile that the compiler chose on this
machine (`plan/errors.py`). The module is run with noise of that size after each layer, and what comes of it
at the outputs is the standard deviation of theirs.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

import tilewright as tw
from tests.frontend.torch.torch_checks import nn, pytree, torch
from tilewright.algorithms.winograd.plan.errors import deviations
from tilewright.algorithms.winograd.plan.tiles import part_of

DRAWS = 16
"""Runs with noise: enough for a standard deviation within a fifth, most of the time."""


def deviation_of_outputs(module: Any, model: tw.Model, inputs: tuple[Any, ...]) -> list[np.ndarray]:
    """The standard deviation of the error of each element of each output, in the order of the outputs' leaves."""
    fast, generator = winograd_deviation(model), torch.Generator().manual_seed(0)

    def disturb(layer: Any, _inputs: Any, output: Any) -> Any:
        deviation = 2.0**-24 * math.sqrt(layer.weight[0].numel() / 6)
        if isinstance(layer, nn.Conv2d):
            deviation = max(deviation, fast)
        scale = output.square().mean().sqrt()
        return output + deviation * scale * torch.randn(output.shape, generator=generator)

    def outputs() -> list[np.ndarray]:
        with torch.no_grad():
            leaves = pytree.tree_leaves(module(*inputs))
        return [np.asarray(leaf, np.float64) for leaf in leaves if isinstance(leaf, torch.Tensor)]

    quiet = outputs()
    hooks = [m.register_forward_hook(disturb) for m in module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    try:
        runs = [outputs() for _ in range(DRAWS)]
    finally:
        for hook in hooks:
            hook.remove()
    return [np.sqrt(np.mean([(run[k] - leaf) ** 2 for run in runs], axis=0)) for k, leaf in enumerate(quiet)]


def winograd_deviation(model: tw.Model) -> float:
    """The standard deviation of the least accurate Winograd convolution, by its outputs' own; 0 if there is none."""
    results = [0.0]
    for text in re.findall(r"= conv_winograd\(.*?\) \{(.*?)\}", model.show("graph")):
        attributes = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", text)}
        lanes = attributes["out_block"]
        blocks = math.ceil(attributes["input_channels"] / lanes)
        part = part_of(blocks, lanes)
        sizes = (attributes["tile"], attributes["window"], attributes["stride"])
        results.append(max(deviations(*sizes, part * lanes, math.ceil(blocks / part))))
    return max(results)
