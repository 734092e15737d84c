"""`tilewright bench`: rivals, percentiles, streams, duration, sweeps with a picture, compiled files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from tilewright.cli import peers
from tilewright.cli.bench import _contender
from tilewright.measure.paired import Contender, Result, race

from .conftest import Cli


def reports(cli: Cli, *arguments: object) -> list[dict[str, Any]]:
    code, text, error = cli("bench", *arguments, "--json")
    assert code == 0, (text, error)
    results: list[dict[str, Any]] = json.loads(text)["models"]
    return results


@pytest.mark.parametrize("rivals", [["onnxruntime"], ["openvino"], ["onnxruntime", "openvino"]])
def test_rivals_get_the_same_inputs(cli: Cli, layer: Path, rivals: list[str]) -> None:
    for name in rivals:
        pytest.importorskip(name, reason="the rival is an extra")
    asked = [word for name in rivals for word in ("--rival", name)]
    (report,) = reports(cli, layer, "--rounds", 3, "--dim", "n=4", *asked)
    assert [c["name"] for c in report["contenders"]] == ["tilewright", *rivals]
    assert list(report["ratios"]) == rivals and all(r > 0 for r in report["ratios"].values())
    assert [d["rival"] for d in report["differences"]] == rivals
    assert all(d["equal"] and d["error"] < 1e-5 for d in report["differences"])


def test_percentiles_are_of_single_calls(cli: Cli, layer: Path) -> None:
    (report,) = reports(cli, layer, "--alone", "--duration", 0.5)
    (ours,) = report["contenders"]
    assert ours["calls"] > 1000
    assert ours["p50"] <= ours["p90"] <= ours["p99"] <= ours["p999"]
    assert ours["calls_per_second"] == pytest.approx(1 / ours["median_seconds"])


def test_percentiles_that_insufficient_calls_tell_are_none() -> None:
    latencies = np.arange(1, 201) / 1000
    result = _contender(Result("a", (0.1, 0.1), {}, 0.0, latencies=tuple(latencies)))
    assert result["p50"] == pytest.approx(np.quantile(latencies, 0.5))
    assert result["p99"] == pytest.approx(np.quantile(latencies, 0.99))
    assert result["p999"] is None
    assert _contender(Result("b", (), {}, 0.0, error="gone"))["p50"] is None


def test_streams_call_side_by_side() -> None:
    """Four callers that sleep: a fourth of the time for each call, the whole of it for who waits."""
    streams = peers.Streams([lambda: time.sleep(0.02)] * 4)
    seconds, latencies = streams.run(3)
    assert len(latencies) == 12 and all(t >= 0.02 for t in latencies)
    assert 0.005 <= seconds < 0.018
    alone, single = peers.Streams([lambda: time.sleep(0.01)]).run(2)
    assert len(single) == 2 and alone == pytest.approx(sum(single) / 2)


def test_streams_of_all_contenders(cli: Cli, layer: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the rival is an extra")
    code, text, _ = cli("bench", layer, "--rounds", 2, "--streams", 2, "--dim", "n=4")
    assert code == 0 and "2 streams" in text and "onnxruntime" in text


def test_a_duration_ends_the_race(cli: Cli, layer: Path) -> None:
    start = time.monotonic()
    reports(cli, layer, "--alone", "--duration", 0.3)
    assert time.monotonic() - start < 60


def test_a_sweep_with_a_picture(cli: Cli, layer: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep.png"
    result = reports(cli, layer, "--alone", "--rounds", 3, "--sweep", "n=1,4,16", "--png", path)
    assert [r["sizes"] for r in result] == [{"n": 1}, {"n": 4}, {"n": 16}]
    with Image.open(path) as picture:
        assert min(picture.size) > 500
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 20
    code, text, _ = cli("bench", layer, "--alone", "--rounds", 1, "--sweep", "n=1,4", "--png", path)
    assert code == 0 and "layer n=4" in text and str(path) in text
    assert cli("bench", layer, "--sweep", "n")[0] == 2
    assert cli("bench", layer, "--sweep", "n=1,x")[0] == 2
    assert cli("bench", layer, "--sweep", "m=1,2")[0] == 1


def test_compiled_files(cli: Cli, layer: Path, program: Path) -> None:
    (report,) = reports(cli, program, "--rounds", 2, "--dim", "n=4")
    assert [c["name"] for c in report["contenders"]] == ["tilewright"]
    assert "no rival" in report["remarks"][0]
    assert len(reports(cli, program, "--rounds", 1, "--sweep", "n=1,2")) == 2
    assert cli("bench", program, "--sweep", "m=1,2")[0] == 1
    code, _, error = cli("bench", program, "--precision", "bf16")
    assert code == 1 and "compiled with another precision" in error


def test_what_is_not_compiled_runs_elsewhere(cli: Cli, tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Relu", ["x"], ["r"]),
            onnx.helper.make_node("Cast", ["r"], ["t"], to=onnx.TensorProto.STRING),
            onnx.helper.make_node("Cast", ["t"], ["y"], to=onnx.TensorProto.FLOAT),
        ],
        "parts",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])],
    )
    path = tmp_path / "parts.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), path)
    (report,) = reports(cli, path, "--rounds", 2, "--dim", "n=3", "--alone")
    assert "run elsewhere" in report["remarks"][0] and report["contenders"][0]["median_seconds"] > 0


def test_a_rival_that_is_not_there_is_4(cli: Cli, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.peers.is_installed", lambda setup: setup != peers.OPENVINO)
    code, _, error = cli("bench", layer, "--rounds", 1, "--rival", "openvino", "--dim", "n=2")
    assert code == 4 and "openvino is not installed" in error
    assert cli("bench", layer, "--rival", "tvm")[0] == 2


def test_outputs_that_differ_are_3(cli: Cli, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the rival is an extra")
    monkeypatch.setattr("tilewright.cli.bench.compare_outputs.__defaults__", (-1.0,))
    assert cli("bench", layer, "--rounds", 1, "--dim", "n=2")[0] == 3


def test_memory_is_that_of_the_contender() -> None:
    """Not of the process that started it, which may be much larger."""
    large = np.ones(1 << 26, np.float32)
    contender = Contender("a", "tests.measure.test_paired:sleeper", {"milliseconds": 1})
    (result,) = race([contender], rounds=1, warmup_seconds=0.01)
    assert result.error is None and 0 < result.peak_memory < large.nbytes
