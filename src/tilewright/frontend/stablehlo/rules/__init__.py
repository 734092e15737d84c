"""The rules, a file a family; importing this registers them all."""

from tilewright.frontend.stablehlo.rules import (
    contraction,
    control,
    custom,
    dynamic,
    gather,
    integers,
    pointwise,
    quantised,
    reduce,
    scatter,
    shape,
    slices,
    sort,
    window,
)

__all__ = [
    "contraction",
    "control",
    "custom",
    "dynamic",
    "gather",
    "integers",
    "pointwise",
    "quantised",
    "reduce",
    "scatter",
    "shape",
    "slices",
    "sort",
    "window",
]
