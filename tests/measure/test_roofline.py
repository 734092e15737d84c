"""The roofline: which of operations and bytes decides, and from which level bytes come."""

from __future__ import annotations

from math import inf

import pytest

from tilewright.measure.roofline import Bound, Level, Roofline

ROOF = Roofline(100e9, (Level("L1", 1e3, 1e12), Level("L2", 1e6, 1e11), Level("memory", inf, 1e10)))


@pytest.mark.parametrize(
    ("flops", "nbytes", "bound"),
    [
        (1e9, 1e3, Bound(0.01, "compute")),
        (1e3, 1e3, Bound(1e-8, "compute")),
        (1.0, 1e3, Bound(1e-9, "L1")),
        (1.0, 1e3 + 1, Bound((1e3 + 1) / 1e11, "L2")),
        (1e6, 1e8, Bound(0.01, "memory")),
        (None, 1e8, Bound(0.01, "memory")),
        (1e9, None, Bound(0.01, "compute")),
        (None, None, None),
    ],
)
def test_the_longer_time_decides(flops: float | None, nbytes: float | None, bound: Bound | None) -> None:
    assert ROOF.bound(flops, nbytes) == bound
