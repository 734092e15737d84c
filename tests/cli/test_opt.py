"""`tilewright opt` on texts, and the pass log of `tilewright show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tilewright.compiler import pass_names
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops
from tilewright.transform.loops.blocks import lower_blocks

GOLDENS = Path(__file__).parents[1] / "transform" / "graph" / "golden" / "test_goldens"
GRAPH = """
graph @g(%x: f32[n, 4]) where n in 1.. {
  %a = reshape(%x) {shape = [$n, 4]} : f32[n, 4]
  %unread = tanh(%a) : f32[n, 4]
  %y = relu(%a) : f32[n, 4]
  return %y
}
"""
FUNC = """
func @add(A: f32[8], B: f32[8]) {
  for i in 0..8 {
    block B (vi = spatial(8): i) {
      B[vi] = A[vi] + 1.0
    }
  }
}
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.txt"
    path.write_text(GRAPH)
    return path


@pytest.fixture
def loops(tmp_path: Path) -> Path:
    path = tmp_path / "loops.txt"
    path.write_text(FUNC)
    return path


@pytest.mark.parametrize("golden", sorted(GOLDENS.glob("*fold-scales*.txt")), ids=lambda path: path.stem)
def test_a_pass_gives_what_its_golden_shows(cli: Cli, golden: Path, tmp_path: Path) -> None:
    before, after = golden.read_text().removeprefix("before\n\n").split("\nafter\n\n")
    path = tmp_path / "before.txt"
    path.write_text(before)
    code, text, _ = cli("opt", "--pass", "fold scales", path, "--target", "x86-64-v3")
    assert code == 0 and text == after


def test_passes_run_in_their_order(cli: Cli, graph: Path) -> None:
    code, text, _ = cli("opt", "--pass", "canonicalise", "-p", "keep maps", graph)
    assert code == 0 and "reshape" not in text and "tanh" not in text and "relu(%x)" in text
    code, text, _ = cli("opt", "-p", "canonicalise", "--diff", graph)
    assert code == 0 and "-  %a = reshape(%x) {shape = [$n, 4]} : f32[n, 4]" in text.splitlines()
    assert cli("opt", graph)[1] == GRAPH.lstrip()


def test_a_pass_over_loops(cli: Cli, loops: Path) -> None:
    from tilewright.ops.registry import parse_func

    code, text, _ = cli("opt", "--pass", "lower blocks", loops)
    assert code == 0 and text == f"{lower_blocks(parse_func(FUNC))}\n"
    every = [argument for name in pass_names(Target.parse("x86-64-v3"))["loops"][:-1] for argument in ("-p", name)]
    code, text, _ = cli("opt", *every, "--target", "x86-64-v3", loops)
    assert code == 0 and text == f"{lower_loops(parse_func(FUNC), Target.on_host('x86-64-v3'))}\n"


def test_names_are_listed(cli: Cli) -> None:
    code, text, _ = cli("opt", "--list")
    listed = [line.split(maxsplit=1) for line in text.splitlines()]
    known = pass_names(Target.host())
    assert code == 0 and listed == [[stage, name] for stage in known for name in dict.fromkeys(known[stage])]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-p", "fold nothing", "graph.txt"), 2, "no pass over graphs is called"),
        (("-p", "partition loops", "graph.txt"), 2, "it works on loops"),
        (("-p", "fold scales", "loops.txt"), 2, "it works on graphs"),
        ((), 2, "which text?"),
        (("missing.txt",), 1, "No such file"),
        (("torn.txt",), 1, "torn.txt"),
        (("other.txt",), 1, "not a text of the compiler"),
        (("bytes.txt",), 1, "UTF-8"),
        (("-p", "canonicalise", "wrong.txt"), 1, "relu"),
    ],
)
def test_errors_name_the_thing(
    cli: Cli, graph: Path, loops: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    folder = graph.parent
    (folder / "torn.txt").write_text(GRAPH[:80])
    (folder / "other.txt").write_text("module {}")
    (folder / "bytes.txt").write_bytes(b"\xff\xfe")
    (folder / "wrong.txt").write_text(GRAPH.replace("relu(%a) : f32[n, 4]", "relu(%a) : f32[n, 5]"))
    words = [folder / a if a.endswith(".txt") else a for a in arguments]
    status, _, error = cli("opt", *words)
    assert status == code and message in " ".join(error.replace("│", " ").split())


def test_the_pass_log_counts_lines(cli: Cli, tmp_path: Path) -> None:
    # any machine: the passes over graphs that are asserted on ask nothing of it
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Mul", ["a", "a"], ["b"]),
        helper.make_node("Mul", ["x", "x"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, [4, 4])], [value("y", TensorProto.FLOAT, [4, 4])]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "m", *ends), ir_version=10), path)
    for _ in range(2):  # a program that was compiled before goes through its passes again
        code, text, _ = cli("show", path, "--pass-log", "--json")
        assert code == 0
        rows = json.loads(text)["pass_log"]
        graph = {row["name"]: row for row in reversed(rows) if row["program"] == "graph"}
        assert (graph["canonicalise"]["added"], graph["canonicalise"]["removed"]) == (1, 2)
        assert graph["fold scales"]["added"] == graph["fold scales"]["removed"] == 0
        names = [row["name"] for row in rows if row["program"] == "graph"]
        assert names == list(pass_names(Target.host())["graph"])
        lowered = next(row for row in rows if row["program"] == "loops" and row["name"] == "lower blocks")
        assert lowered["runs"] == 1 and lowered["added"] > 0 < lowered["removed"]
    code, text, _ = cli("show", path, "--pass-log")
    assert code == 0 and "lines added" in text and "canonicalise" in text
