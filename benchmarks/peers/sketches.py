"""A function of `sketch_suite.py` as plans schedule it, or as rules do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.sketch_suite import inputs, model
from tilewright.measure.contender import Prepared


def own(case: str, sketches: str, forced: Mapping[str, str] | None = None) -> Prepared:
    """Compiled with schedules by rules where `sketches` says, and with these settings."""
    import tilewright as tw
    from tilewright.plans.framework.decisions import forcing
    from tilewright.support import flags

    os.environ[flags.SKETCHES.name] = sketches
    with forcing(dict(forced or {})):
        compiled = tw.compile(model(case), threads=1, records=None)
    arrays = tuple(inputs(compiled).values())

    def outputs() -> dict[str, Any]:
        result = compiled(*arrays)
        return {"y": np.asarray(next(iter(result.values())) if isinstance(result, Mapping) else result)}

    return Prepared(lambda: compiled(*arrays), outputs)
