"""The parameters of int8 models that come from samples: fitted to all samples, and to all but one fold, which then
measures the result.

Ranges, mean errors and smoothing factors suit the samples to which they were fitted better than others. So each sample
is left out once (cross-fitting), and evaluated with a fit to the others. Layers and smoothed values are chosen once, by
all samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.graph import Value
from tilewright.quantization import smoothing
from tilewright.quantization.calibrate import LayerError, Maker, errors_of, scales_of
from tilewright.quantization.ranges import Method, Scale
from tilewright.quantization.samples import Feed
from tilewright.quantization.sites import Site, all_sites
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Fit:
    """The parameters fitted to one choice of samples, and the model that they are for.

    feeds   the samples, by their numbers
    maker   the model, its values smoothed by these samples
    scales  of all values that layers read
    errors  of each layer when it alone is quantised, by its name
    """

    feeds: Mapping[int, Feed]
    maker: Maker
    scales: Mapping[Value, Scale]
    errors: Mapping[str, LayerError]

    def corrections(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The numbers that are added to layers' outputs so that their mean errors vanish, f32[channels], by the names
        of parameters that `names` has for layers."""
        return {param: (-self.errors[layer].mean).astype(np.float32) for layer, param in names.items()}


def fits_of(
    maker: Maker, choices: Sequence[Mapping[int, Feed]], method: Method, *, products: bool, smooth: bool
) -> tuple[tuple[Site, ...], list[Fit]]:
    """The layers that may be quantised, and a fit by each choice of samples. The first choice decides whether a value's
    outliers are moved into weights.

    Args:
        products: whether products of two computed values are layers, too.
        smooth: whether to try to move outliers into weights.
    """
    sites = all_sites(maker.read.graph, products=products)
    fits = _calibrated([maker] * len(choices), choices, sites, method)
    factors = smoothing.factors_of(maker, choices, sites) if smooth else [{}]
    if not factors[0]:
        return sites, fits
    first = smoothing.smoothed(maker, factors[:1])
    after = _calibrated(first, choices[:1], all_sites(first[0].read.graph, products=products), method)
    worth = smoothing.worth(factors[0], sites, fits[0].errors, after[0].errors)
    if not worth:
        return sites, fits
    makers = smoothing.smoothed(maker, [{x: each[x] for x in worth} for each in factors])
    sites = all_sites(makers[0].read.graph, products=products)
    return sites, _calibrated(makers, choices, sites, method)


def _calibrated(
    makers: Sequence[Maker], choices: Sequence[Mapping[int, Feed]], sites: Sequence[Site], method: Method
) -> list[Fit]:
    values = list(dict.fromkeys(v for site in sites for v in site.activations))
    if all(maker is makers[0] for maker in makers):
        scales = scales_of(makers[0], choices, values, method)
    else:
        scales = [scales_of(m, [c], values, method)[0] for m, c in zip(makers, choices, strict=True)]
    errors = errors_of(makers, choices, sites, scales)
    return [Fit(c, m, s, e) for c, m, s, e in zip(choices, makers, scales, errors, strict=True)]
