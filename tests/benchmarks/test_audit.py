"""The audit's peer computes what a graph says, and its phases go on where they stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_audit
from benchmarks.audit import report
from benchmarks.audit.records import Compiled, Estimated, Records, Timed
from benchmarks.random_layers import Layer, layers
from tilewright.ops.interpret import run_graph

torch = pytest.importorskip("torch", reason="the extra tilewright[torch] has it")

SMALL = [layer for layer in layers(400, seed=3) if sum(x.size for x in layer.inputs()) < 2000]


def one_of_each() -> list[Layer]:
    return list({layer.kind: layer for layer in SMALL}.values())


@pytest.mark.parametrize("layer", one_of_each(), ids=lambda layer: layer.kind)
def test_eager_computes_what_the_graph_says(layer: Layer) -> None:
    from benchmarks.audit.eager import eager

    inputs, weights = layer.inputs(), layer.weights()
    named = {v.name: x for v, x in zip(layer.graph.inputs, inputs, strict=True)}
    (want,) = run_graph(layer.graph, named, weights).values()
    got = eager(layer.graph, weights)(*map(torch.from_numpy, inputs))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    records = Records(tmp_path)
    rows = (
        Compiled(
            3, "dense", "a layer", (Estimated("matmul", "contraction", "contraction rows=2", "load", 1e-5),), True
        ),
        Compiled(4, "pool", "another", error="PlanError: no"),
    )
    timed = Timed(3, 1e-5, 2e-5, None, (1e-6,), 0.0)
    for row in (*rows, timed):
        records.add(row)
    assert records.compiled() == {row.number: row for row in rows}
    assert records.timed() == {3: timed}


def test_phases_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "draw", lambda *_: None)
    options = ["--folder", str(tmp_path), "--seed", "3"]
    bench_audit.main(["compile", *options, "--count", "2"])
    bench_audit.main([*options, "--count", "4", "--peer"])
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    records = Records(folder)
    assert sorted(records.compiled()) == sorted(records.timed()) == [0, 1, 2, 3]
    assert all(row.eager and row.difference is not None and row.difference < 1e-4 for row in records.timed().values())
    assert len((folder / "compiled.jsonl").read_text().splitlines()) == 4
