"""The benchmarks' machinery: tables are read, work is counted, a layer is raced, rows are stored and judged."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import bars, bench_layers, bench_models, harness, layers, models, peers, suite, tables
from benchmarks.harness import Comparison, Interval
from benchmarks.work import Work, count, limit
from tilewright.support.peak import Ceilings

ort = pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")

_CEILINGS = Ceilings(
    peak_gflops_one=100.0,
    peak_gflops_all=200.0,
    copy_gbs_one=10.0,
    threads=2,
    frequency_ghz=3.0,
    fma_per_cycle=2.0,
    l1_gbs=200.0,
    l2_gbs=100.0,
    l3_gbs=50.0,
    memory_gbs=20.0,
)
_CACHES = {1: 32 << 10, 2: 512 << 10, 3: 32 << 20}


def _row(model: str = "m", group: str = "g", own: float = 1.0, **others: float) -> Comparison:
    return Comparison(
        model=model,
        group=group,
        own="tilewright-fixed",
        batch=1,
        threads=1,
        rounds=3,
        repeat=1,
        seconds={"tilewright-fixed": own, **others},
        spread=dict.fromkeys(("tilewright-fixed", *others), 0.01),
        speedups={name: Interval(t / own, t / own, t / own) for name, t in others.items()},
        errors={},
        peak_memory={},
        versions={},
        failures={},
        limit_seconds=0.5,
        bound="compute",
    )


def test_every_layer_has_peers_and_a_sound_model() -> None:
    found = layers.read()
    assert len(found) > 120
    assert {layer.suite for layer in found.values()} == set(bench_layers.PEERS)
    for name in ("conv3x3-32-32-21", "depthwise3x3-96-96-112-s2", "transposed2x2-128-64-64-s2", "conv5-256-256-1024"):
        model = onnx.shape_inference.infer_shapes(found[name].shape.build(), strict_mode=True)
        inferred = model.graph.value_info[-1] if len(model.graph.node) == 1 else model.graph.output[0]
        assert inferred.type.tensor_type.HasField("shape")


def test_a_chain_keeps_its_shape() -> None:
    chain, alone = (layers.read()[name] for name in ("conv3x3-32-32-21", "conv3x3-64-128-112"))
    assert (chain.shape.repeat, alone.shape.repeat) == (4, 1)
    assert [n.op_type for n in chain.shape.build().graph.node].count("Conv") == 4
    assert chain.work(chain.shape.build()) == Work(
        2 * 21 * 21 * 32 * 32 * 9, 4 * (21 * 21 * 32 + 32 * 32 * 9 + 32), 4 * 21 * 21 * 32
    )


@pytest.mark.parametrize("name", ["softmax-384x128", "rms-norm-128x768", "gelu-128x3072", "bias-silu-512x512"])
def test_blocks_keep_rows_and_columns(name: str) -> None:
    kind = name.rpartition("-")[0].replace("-", "_")
    proto = layers.Block(6, 8, kind).build()
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, models.example_inputs(proto))
    assert y.shape == (6, 8)
    assert np.isfinite(y).all()


def test_every_model_of_the_table_is_known() -> None:
    for case in bench_models.cases():
        assert case.model in models.NAMES
        assert set(case.peers) <= set(peers.PEERS)


def test_work_of_a_product() -> None:
    work = count(layers.Gemm(1, 4, 8, 16, "weight").build())
    assert work == Work(2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16), 4 * 4 * 16)


def test_limit_is_set_by_what_binds() -> None:
    assert limit(Work(10**9, 1000, 1000), _CEILINGS, _CACHES, 1).bound == "compute"
    assert limit(Work(10**9, 1000, 1000), _CEILINGS, _CACHES, 2).seconds == pytest.approx(10**9 / 200e9)
    assert limit(Work(0, 200_000, 10), _CEILINGS, _CACHES, 1).bound == "L2"
    reading, copying = Work(0, 100_000_000, 10), Work(0, 50_000_000, 50_000_000)
    assert limit(reading, _CEILINGS, _CACHES, 1).seconds == pytest.approx(1e8 / 20e9, rel=1e-6)
    assert limit(copying, _CEILINGS, _CACHES, 1).seconds == pytest.approx(1e8 / 10e9)


def test_best_peer_is_never_a_variant_of_ours() -> None:
    c = _row(own=1.0, onnxruntime=2.0, mnn=1.5, **{"tilewright-bf16": 0.5})
    assert c.best == "mnn"
    assert tables.vs_best(c) == 1.5
    assert c.of_limit == 0.5


def test_bars_judge_means_least_and_quotients() -> None:
    rows = [_row("a", "x", onnxruntime=4.0, mnn=2.0), _row("b", "x", onnxruntime=1.0, mnn=0.5)]
    assert bars.value(rows[0], "onnxruntime,mnn") == 2.0
    assert bars.value(rows[0], "onnxruntime/mnn") == 2.0
    assert bars.value(rows[0], "limit") == 0.5
    assert bars.value(rows[0], "ncnn") is None
    mean = bars.judge(bars.Bar(1, "", "x", "onnxruntime", "mean", 2.0), rows)
    least = bars.judge(bars.Bar(1, "", "a,b", "best", "least", 1.0), rows)
    assert mean is not None and mean[4:7] == ["2.00", "pass", "2, 1 below"]
    assert least is not None and (least[4], least[5], least[7]) == ("0.50", "**miss**", "b")
    assert bars.judge(bars.Bar(1, "", "y", "best", "least", 1.0), rows) is None
    failed = dataclasses.replace(rows[0], seconds={"mnn": 1.0}, speedups={})
    assert bars.value(failed, "best") == 0.0  # what cannot run reaches no bar


def test_geometric_means_by_group() -> None:
    text = tables.summary([_row("a", "x", mnn=4.0), _row("b", "x", mnn=0.25), _row("c", "y", mnn=1.0)])
    assert "| x | 2 | **1.00** | 0.25 | 1 | 1.00 |" in text


def test_a_layer_from_race_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiniest layer of the tables, with ONNX Runtime and a peer that cannot be installed."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(suite.peak, "measure", lambda _machine: _CEILINGS)
    monkeypatch.setitem(peers.PEERS, "absent", peers.Peer("nowhere:nothing", ("no_such_module_here",), "nobody"))
    monkeypatch.setattr(suite.plots, "write", lambda *_: [])
    parser = argparse.ArgumentParser()
    suite.add_options(parser, 2, 0.02, "tilewright-fixed")
    arguments = ["--only", "gemv-1x256x256", "--peers", "onnxruntime,absent", "--turn", "0.001"]
    cases = bench_layers.cases()
    assert suite.run(cases, parser.parse_args(arguments), "layers", "Layers") == 0
    (row,) = json.loads((tmp_path / "layers-1t.json").read_text())["rows"]
    c = Comparison.from_json(row)
    assert c.label == "gemv-1x256x256"
    assert c.speedups["onnxruntime"].median > 0
    assert c.error is not None and c.error < 1e-5
    assert "no_such_module_here" in c.failures["absent"]
    text = (tmp_path / "layers-1t.md").read_text()
    assert "gemv-1x256x256" in text and "not installed" in text
    store = suite.Store("layers-1t", "Layers")
    assert store.has(suite.chosen(cases, parser.parse_args(arguments))[0])


def test_names_that_match_nothing_are_refused() -> None:
    parser = argparse.ArgumentParser()
    suite.add_options(parser, 2, 0.02, "tilewright-fixed")
    with pytest.raises(SystemExit, match="no case"):
        suite.chosen(bench_layers.cases(), parser.parse_args(["--only", "nothing"]))
    with pytest.raises(SystemExit, match="unknown peers"):
        suite.chosen(bench_layers.cases(), parser.parse_args(["--peers", "nobody"]))
