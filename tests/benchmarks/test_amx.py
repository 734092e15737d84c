"""The parts of `benchmarks/bench_amx.py`: their commands are those of modules, and a part that fails is said."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from benchmarks import bench_amx, bench_model_errors
from benchmarks.bench_amx import PARTS, main, run
from benchmarks.bench_tiles import WAYS, product
from benchmarks.models import example_inputs, load


def test_parts_are_commands() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    for part in PARTS:
        for command in (part.command, part.dry):
            assert importlib.util.find_spec(command[0]) is not None


@pytest.mark.parametrize("precision", WAYS)
def test_products_of_a_file(precision: str) -> None:
    """f32 in and out, 8 bits between: within a level of each factor."""
    rows, depth, columns = shape = (5, 24, 7)
    x = np.random.default_rng(1).uniform(-3, 3, (rows, depth)).astype(np.float32)
    model = product(shape, precision)
    w = np.random.default_rng(0).standard_normal((depth, columns)) / np.sqrt(depth)
    (got,) = tw.compile(model).run({"x": x}).values()
    want = x.astype(np.float64) @ w.astype(np.float32)
    level = (
        0.0 if precision == "bf16" else 4 / 127 * np.abs(w).sum(0) + np.abs(w).max() / 127 * np.abs(x).sum(1)[:, None]
    )
    assert (np.abs(np.asarray(got) - want) <= level / 2 + 1e-5).all()


def test_models_in_double() -> None:
    """Every tensor is wider, and the results differ by what f32 loses."""
    model = bench_model_errors.doubled(onnx.load(load("m64")))
    single = {t.data_type for t in model.graph.initializer}
    assert onnx.TensorProto.FLOAT not in single and onnx.TensorProto.DOUBLE in single
    inputs = example_inputs(onnx.load(load("m64")))
    wide = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in inputs.items()}
    want, got = tw.compile(model).run(wide), tw.compile(load("m64")).run(inputs)
    assert all(np.asarray(v).dtype == np.float64 for v in want.values())
    assert 0 < bench_model_errors.errors([{k: np.asarray(v) for k, v in got.items()}], [want])[0] < 1e-5


def test_failures_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = replace(PARTS[0], name="one", dry=("json.tool", "/nowhere/at/all"))
    text, fine = run(part, dry=True)
    assert not fine and "nowhere" in text
    text, fine = run(replace(part, dry=("timeit", "-n", "1", "import time; time.sleep(9)"), seconds=0.5), dry=True)
    assert not fine and "more than 0 s" in text
    monkeypatch.setattr(bench_amx, "PARTS", (part, replace(part, name="two", dry=("this",))))
    assert main(["--dry-run", "--out", str(tmp_path)]) == 1
    assert "failed: one" in capsys.readouterr().out and "Zen of Python" in (tmp_path / "amx.txt").read_text()
    with pytest.raises(SystemExit, match="no such part: three"):
        main(["--only", "three"])
