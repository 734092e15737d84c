"""The import rules, one file for each family of operations; importing this package registers all of them."""

from tilewright.frontend.stablehlo.rules import (
    contraction,
    control,
    custom,
    dynamic,
    gather,
    integers,
    linalg,
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
    "linalg",
    "pointwise",
    "quantised",
    "reduce",
    "scatter",
    "shape",
    "slices",
    "sort",
    "window",
]
