"""Random programs as in `test_guarded.py`, for programs that come by way of JAX and StableHLO."""

from __future__ import annotations

import os
import random

import pytest

pytest.importorskip("jax", reason="JAX is an extra: `make jax` runs this")
import jax
from jax import export

from tests.fuzz import farm, jax_steps
from tests.fuzz.guarded import Fault, report

COUNT = int(os.environ.get("TILEWRIGHT_FUZZ", "4"))


@pytest.mark.parametrize("door", ["jax", "jax_values", "stablehlo"])
def test_nothing_is_touched_outside(door: str) -> None:
    said = list(report(door, 0, COUNT))
    assert not [str(s) for s in said if isinstance(s, Fault)]
    assert sum(s.ran for s in said if not isinstance(s, Fault)) > 100


def test_huge_sizes_in_modules() -> None:
    count = 200 if os.environ.get("TILEWRIGHT_FUZZ") else 12
    done = farm.run("huge modules", range(count), workers=1, limit=30.0)
    assert not done.failures, str(done)
    assert done.cases == count


@pytest.mark.parametrize("name", jax_steps.STEPS)
def test_a_step_takes_symbols(name: str) -> None:
    b, c = export.symbolic_shape("b, c")
    ids = jax.ShapeDtypeStruct((c,), "int32")
    jax.eval_shape(jax_steps.STEPS[name](random.Random(0)), jax.ShapeDtypeStruct((b + 3, 4), "float32"), ids)
