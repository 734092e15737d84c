"""A function to export: a stage in a workspace, a parallel loop, a size, and calls of the C library."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.builder import BuiltFunction


def filtered(name: str = "filtered", target: str = "host", parallel: bool = True) -> BuiltFunction:
    """D[i] = (pow(|A[i]|, 2.5) * alpha)[i] + its mirror image."""
    n = te.var("n")
    a, alpha = te.placeholder((n,), name="A"), te.var("alpha", "float32")
    c = te.compute((n,), lambda i: te.power(te.abs(a[i]), 2.5) * alpha, name="C")
    d = te.compute((n,), lambda i: c[i] + c[n - 1 - i], name="D")
    s = te.create_schedule(d)
    outer, inner = s[d].split(d.axis[0], 16)
    s[d].vectorize(inner)
    if parallel:
        s[d].parallel(outer)
    return tw.build(s, [a, alpha, d], name=name, target=target)


def expected(x: Any, alpha: float) -> Any:
    c = np.abs(x.astype(np.float64)) ** 2.5 * alpha
    return c + c[::-1]
