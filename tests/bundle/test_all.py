"""Every model of `benchmarks/bundle_models.py`, bundled and compared with the Python runtime bit by bit; under `make
bundles`, for it takes minutes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks.bundle_models import MODELS, inputs_of
from tests.bundle.built import build, call, check_equal
from tests.codegen.c.c_run import needs_compiler
from tilewright.bundle.write import described

asked = pytest.mark.skipif("TILEWRIGHT_BUNDLES" not in os.environ, reason="make bundles runs it: it takes minutes")


@asked
@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_is_equal_to_the_python_runtime(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    proto = model.build()
    program = tw.compile_program(proto, dims=dict(model.dims), **model.options)
    inputs = inputs_of(model, proto)
    if program.manifest.state is None:
        check_equal(program, tmp_path, inputs, model.sizes, rows=model.rows)
        return
    program.bundle(tmp_path, rows=model.rows)
    binding = described(program, rows=model.rows)
    build(tmp_path, binding.name)
    (result,) = call(["./main"], tmp_path, binding, inputs, model.sizes)
    wanted = np.ascontiguousarray(tw.Model(program, threads=1).state(capacity=model.rows)(*inputs.values()))
    assert result[: wanted.size].tobytes() == wanted.tobytes()
