"""The benchmarks' machinery: tables are read, work is counted, a layer is raced, rows are stored and checked."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import bars, bench_layers, bench_models, harness, layers, limits, models, peers, stale, suite, tables
from benchmarks.harness import Comparison, Interval
from benchmarks.work import Work, count, level
from tilewright.measure import paired
from tilewright.measure.probes import Moves, Way
from tilewright.plans.framework.symbolic import SYMBOLIC_IMAGES, SYMBOLIC_ROWS
from tilewright.support import machine
from tilewright.transform.graph.options import ERRORS

ort = pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")

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
        share=Interval(0.5, 0.4, 0.6),
    )


def test_every_layer_has_peers_and_a_sound_model() -> None:
    result = layers.read()
    assert len(result) > 120
    assert {layer.suite for layer in result.values()} == set(bench_layers.PEERS)
    for name in ("conv3x3-32-32-21", "depthwise3x3-96-96-112-s2", "transposed2x2-128-64-64-s2", "conv5-256-256-1024"):
        model = onnx.shape_inference.infer_shapes(result[name].shape.build(), strict_mode=True)
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


def test_what_symbolic_batches_are_evaluated_by_is_not_what_is_measured() -> None:
    """One batch is an exception, which has a version of its own: the suite would else measure how well it is
    remembered."""
    measured = {case.batch for case in bench_models.cases()} - {1}
    assert {8, 32, 64} <= measured
    assert not measured & {*SYMBOLIC_ROWS, *SYMBOLIC_IMAGES}


def test_work_of_a_product() -> None:
    work = count(layers.Gemm(1, 4, 8, 16, "weight").build())
    assert work == Work(2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16), 4 * 4 * 16)


def test_bytes_live_in_the_smallest_level_that_holds_them() -> None:
    result = [level(Work(0, read, 10), _CACHES) for read in (1000, 200_000, 1 << 20, 100 << 20)]
    assert result == ["L1", "L2", "L3", "memory"]


def _limit(name: str, seconds: tuple[float, ...], scale: float) -> paired.Result:
    return paired.Result(name, seconds, {"scale": scale}, 0.0)


def test_the_slower_limit_binds_and_shares_are_paired() -> None:
    compute, moving = _limit("a", (4.0, 4.0, 4.0), 0.5), _limit("b", (8.0, 4.0, 6.0), 0.5)
    assert harness.binding([compute, moving]) is moving
    assert harness.binding([compute, dataclasses.replace(moving, times=())]) is compute
    assert harness.binding([]) is None
    ours = paired.Result("ours", (8.0, 8.0, 3.0), {}, 0.0)
    assert harness.share(ours, moving, 1).median == 0.5  # of 4/8, 2/8, 3/3
    assert harness.share(ours, moving, 4).median == 2.0
    assert [c.name for c in harness.limits(Work(0, 8, 8), 1)] == [harness.LIMITS[1]]


def test_ways_of_moving_have_the_proportions_of_the_case() -> None:
    def shares(read: int, written: int) -> set[float]:
        return {way.writes / way.reads for way in limits.ways(read, written)}

    assert shares(100, 0) == shares(1000, 1) == {0.0}
    assert shares(100, 100) == {1.0}
    assert shares(200, 100) == {0.5}
    assert shares(100, 240) <= {2.0, 2.5}
    assert shares(0, 100) == {4.0}


@pytest.mark.parametrize("way", [Way(4, 0, 1024), Way(2, 2, 0, past=True), Way(1, 3), Way(3, 1, 1024, past=True)])
def test_moves_read_and_write_their_streams(way: Way) -> None:
    part = 3 * 128
    moves = Moves(machine.describe(), [way])
    memory = np.zeros(2 * 4 * part + 64, np.uint8)
    start = -memory.ctypes.data % 64
    source, target = (memory[start + k * 4 * part :][: 4 * part] for k in range(2))
    source[:] = np.arange(4 * part) % 251
    target[:] = 255
    moves.by_way[way](source.ctypes.data, target.ctypes.data, part, 2, 2)  # of three rounds two
    want = np.full((4, part), 255, np.uint8)
    for k in range(way.writes):
        want[k, :256] = source.reshape(4, part)[k % way.reads, :256]
    assert (target.reshape(4, part) == want).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_limits_are_contenders(threads: int) -> None:
    for prepared in (limits.compute(10_000, threads), limits.moving(3000, 1000, threads)):
        prepared.call()
        assert prepared.info["scale"] > 0


def test_best_peer_is_never_a_variant_of_ours() -> None:
    c = _row(own=1.0, onnxruntime=2.0, mnn=1.5, **{"tilewright-bf16": 0.5})
    assert c.best == "mnn"
    assert tables.vs_best(c) == 1.5
    assert c.of_limit == 0.5


def test_bars_evaluate_means_least_and_quotients() -> None:
    rows = [_row("a", "x", onnxruntime=4.0, mnn=2.0), _row("b", "x", onnxruntime=1.0, mnn=0.5)]
    assert bars.value(rows[0], "onnxruntime,mnn") == 2.0
    assert bars.value(rows[0], "onnxruntime/mnn") == 2.0
    assert bars.value(rows[0], "limit") == 0.5
    assert bars.value(rows[0], "ncnn") is None
    mean = bars.evaluate(bars.Bar(1, "", "x", "onnxruntime", "mean", 2.0), rows)
    least = bars.evaluate(bars.Bar(1, "", "a,b", "best", "least", 1.0), rows)
    assert mean is not None and mean[4:8] == ["2.00", "", "pass", "2, 1 below"]
    assert least is not None and (least[4], least[6], least[8]) == ("0.50", "**miss**", "b")
    assert bars.evaluate(bars.Bar(1, "", "y", "best", "least", 1.0), rows) is None
    failed = dataclasses.replace(rows[0], seconds={"mnn": 1.0}, speedups={})
    assert bars.value(failed, "best") == 0.0  # what cannot run reaches no bar


def test_geometric_means_by_group() -> None:
    text = tables.summary([_row("a", "x", mnn=4.0), _row("b", "x", mnn=0.25), _row("c", "y", mnn=1.0)])
    assert "| x | 2 | **1.00** |  | 0.25 | 1 | 1.00 |" in text


def test_exact_stands_beside_what_is_evaluated() -> None:
    """Half as long as MNN by default, but 1.5 times as long as that when exact: 1.33 times faster than MNN."""
    row = _row("a", "x", mnn=2.0, **{peers.EXACT: 1.5})
    row = dataclasses.replace(row, errors={row.own: 1e-5, peers.EXACT: 2e-7})
    assert bars.value(row, "best", exact=True) == pytest.approx(2.0 / 1.5)
    assert bars.value(row, "limit", exact=True) == pytest.approx(0.5 / 1.5)
    assert bars.value(_row(mnn=2.0), "best", exact=True) is None
    assert bars.value(row, "own/mnn", exact=True) is None
    evaluated = bars.evaluate(bars.Bar(1, "", "x", "mnn", "mean", 2.0), [row])
    assert evaluated is not None and evaluated[4:7] == ["2.00", "1.33", "pass"]
    half = bars.evaluate(bars.Bar(1, "", "x", "mnn", "mean", 2.0), [row, _row("b", "x", mnn=2.0)])
    assert half is not None and half[5] == ""  # a mean of other cases would be another figure
    text = tables.report([row])
    assert "| x | 1 | **2.00** | 1.33 |" in text
    assert "| 1e+06 µs ±1% | 1.50 (1500 ms) |".replace("1e+06 µs", "1000 ms") in text
    assert "| 1e-05 | 2e-07 |" in text


def test_models_and_convolutions_meet_the_exact_variant() -> None:
    assert all(peers.EXACT in case.peers for case in bench_models.cases())
    assert all(peers.EXACT in case.peers for case in bench_layers.cases() if case.group.startswith("conv3x3"))


def test_rows_of_another_commit_are_named() -> None:
    """Also those of changed sources, which are of no commit."""
    old = dataclasses.replace(_row("a", "x", mnn=2.0), commit="1111111", date="2026-01-01T00:00:00+00:00")
    new = dataclasses.replace(_row("b", "x", mnn=2.0), commit="2222222", date="2026-01-02T00:00:00+00:00")
    assert stale.newest([new, old]) == "2222222"
    assert stale.footnote([new, new]) == ""
    assert "1111111: a" in stale.footnote([new, old])
    text = tables.report([old, new])
    assert "| a † |" in text and "| b |" in text and "1111111: a" in text
    changed = dataclasses.replace(new, commit="2222222+")
    assert "| b † |" in tables.report([changed])
    bar = bars.Bar(1, "", "x", "mnn", "mean", 1.0)
    mixed, alone = bars.evaluate(bar, [old, new]), bars.evaluate(bar, [new])
    assert mixed is not None and mixed[6] == "pass †"
    assert alone is not None and alone[6] == "pass"


@pytest.mark.parametrize(("peer", "error", "counts"), [("mnn", 9e-5, True), ("mnn", 2e-4, False)])
def test_single_precision_is_a_ten_thousandth(peer: str, error: float, counts: bool) -> None:
    assert (error <= harness.wrong(peer)) is counts
    assert error <= harness.wrong("tilewright-bf16")


def test_a_layer_from_race_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiniest layer of the tables, with ONNX Runtime and a peer that cannot be installed."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
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
    assert c.bound == "L2" and c.of_limit is not None and c.of_limit > 0
    assert not set(harness.LIMITS) & {*c.seconds, *c.speedups, *c.failures}
    text = (tmp_path / "layers-1t.md").read_text()
    assert "gemv-1x256x256" in text and "not installed" in text
    store = suite.Store("layers-1t", "Layers")
    assert store.has(suite.chosen(cases, parser.parse_args(arguments))[0])


def test_stored_layers_keep_the_bounds_of_the_documents() -> None:
    """Chains of four as well, and all errors include ONNX Runtime's own."""
    text = (models.ROOT / "docs" / "accuracy.md").read_text()
    rows = re.findall(r'^\| ("\S+"|`"\w+"`)(.*) \| ([\d.e-]+) \|$', text, re.MULTILINE)
    stated = {name: float(bound) for names, more, bound in rows for name in re.findall(r'`"(\w+)"`', names + more)}
    assert stated == {name: bound for name, bound in ERRORS.items() if name in stated} and len(stated) == 5
    stored = json.loads((models.ROOT / "benchmarks" / "results" / "layers-1t.json").read_text())["rows"]
    errors = {row["model"]: row["errors"] for row in stored}
    assert len(errors) > 120
    for own, setting in (("tilewright-fixed", "auto"), (peers.EXACT, "exact")):
        assert max((e[own] for e in errors.values() if own in e), default=0.0) <= ERRORS[setting]


def test_rows_of_another_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of rows that are there says where they were measured, not where it is written."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(suite.plots, "write", lambda *_: [])
    here = harness.environment()
    suite.Store("t", "T").put(_row("a", "x", mnn=2.0))
    suite.Store("t", "T").check_machine()
    monkeypatch.setattr(harness, "environment", lambda: {**here, "cpu": "another"})
    store = suite.Store("t", "T")
    with pytest.raises(SystemExit, match="this is another"):
        store.check_machine()
    (path,) = store.write_reports()
    assert here["cpu"] in path.read_text() and "another" not in path.read_text()


def test_names_that_match_nothing_are_refused() -> None:
    parser = argparse.ArgumentParser()
    suite.add_options(parser, 2, 0.02, "tilewright-fixed")
    with pytest.raises(SystemExit, match="no case"):
        suite.chosen(bench_layers.cases(), parser.parse_args(["--only", "nothing"]))
    with pytest.raises(SystemExit, match="unknown peers"):
        suite.chosen(bench_layers.cases(), parser.parse_args(["--peers", "nobody"]))
