"""Some of the random kernels that `tests/plans/gpu/random_kernels.py` tries more of."""

from __future__ import annotations

import pytest

from tests.plans.gpu.random_kernels import check


@pytest.mark.costly(12)
@pytest.mark.parametrize("seed", range(24))
def test_a_random_kernel(seed: int) -> None:
    assert check(seed)
