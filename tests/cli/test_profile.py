"""`tilewright profile`: the tables, JSON, a trace of sizes, a timeline, wrong usage."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from tilewright.cli.profile import parse_trace, roofline
from tilewright.targets.target import Target

from .conftest import Cli


def test_tables(cli: Cli, layer: Path) -> None:
    code, text, _ = cli("profile", layer, "--dim", "n=7", "--calls", 3)
    assert code == 0
    for word in ("layer: calls", "n=7", "1 of 1", "of roofline", "bound by", "waits", "matmul", "100.0%"):
        assert word in text


def test_a_trace_of_sizes(cli: Cli, program: Path) -> None:
    code, text, _ = cli("profile", program, "--over", "n=1,30,1,1", "--calls", 2, "--json")
    assert code == 0
    report = json.loads(text)
    assert [(s["symbols"], s["calls"]) for s in report["shapes"]] == [({"n": 1}, 3), ({"n": 30}, 1)]
    assert sum(k["share"] for k in report["kernels"]) == pytest.approx(1.0)
    for k in report["kernels"]:
        assert k["seconds"] > 0
        assert k["gflops"] > 0
        assert k["of_roofline"] > 0
        assert k["bound"] in ("compute", "L1")


def test_a_timeline(cli: Cli, layer: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code, text, _ = cli("profile", layer, "--trace", path, "--calls", 2, "--threads", 2)
    assert code == 0
    assert "perfetto" in text
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(e.get("cat") == "call" for e in events) == 2


def test_a_picture(cli: Cli, layer: Path, tmp_path: Path) -> None:
    path = tmp_path / "layer.png"
    code, text, _ = cli("profile", layer, "--png", path, "--calls", 2, "--threads", 2)
    assert code == 0
    assert str(path) in text
    with Image.open(path) as picture:
        assert min(picture.size) > 500
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 50, "nothing is drawn"


def test_a_picture_that_cannot_be_drawn(cli: Cli, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, errors = cli("profile", layer, "--png", "layer.txt")
    assert code == 2
    assert ".svg" in errors
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, errors = cli("profile", layer, "--png", "layer.png")
    assert code == 4
    assert "tilewright[plot]" in errors


@pytest.mark.parametrize(
    "arguments",
    [["--over", "n"], ["--over", "n=1,x"], ["--over", "n=1,2", "--over", "m=1"], ["--calls", "0"]],
    ids=" ".join,
)
def test_wrong_usage_is_2(cli: Cli, layer: Path, arguments: list[str]) -> None:
    assert cli("profile", layer, *arguments)[0] == 2


def test_sizes_of_several_dimensions_go_together() -> None:
    assert parse_trace(["n=1,2", "m=5,6"]) == [{"n": 1, "m": 5}, {"n": 2, "m": 6}]
    assert parse_trace(None) == [{}]


def test_the_roofline_of_several_threads() -> None:
    target = Target.parse("znver4").adjusted(cores=2, memory_bandwidth=6.0, memory_total=9.0)
    one, two, several = (roofline(target, n) for n in (1, 2, 64))
    assert two.peak == 2 * one.peak
    assert several == two, "there are no more cores"
    assert [level.name for level in one.levels] == ["L1", "L2", "L3", "memory"]
    assert two.levels[-1].rate == pytest.approx(1.5 * one.levels[-1].rate)
    assert two.levels[1].holds == 2 * target.l2
    assert two.levels[2].holds == target.l3
