"""The commands on a real model: what they write, show and answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.targets.target import Target

from .conftest import Cli


def test_compile_writes_a_file_that_runs_alone(cli: Cli, layer: Path) -> None:
    code, text, _ = cli("compile", layer, "--json")
    report = json.loads(text)
    assert code == 0
    assert report["inputs"] == ["x: f32[n, 4]"]
    assert report["outputs"] == ["y: f32[n, 3]"]
    assert report["weights"] == 2
    compiled = layer.with_suffix(".tw")
    assert compiled.stat().st_size == report["bytes"]
    layer.unlink()
    assert cli("run", compiled, "--dim", "n=5")[0] == 0


def test_compile_for_one_size(cli: Cli, layer: Path, tmp_path: Path) -> None:
    code, text, _ = cli("compile", layer, "-o", tmp_path / "eight.tw", "--dim", "n=8")
    assert code == 0
    assert "x: f32[8, 4]" in text


def test_caches_of_codes(cli: Cli, tmp_path: Path) -> None:
    info, path, out = helper.make_tensor_value_info, tmp_path / "cache.onnx", tmp_path / "cache.tw"
    nodes = [
        helper.make_node("Concat", ["past_k", "x"], ["present_k"], axis=1),
        helper.make_node("Transpose", ["present_k"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    inputs = [info("x", TensorProto.FLOAT, [1, 1, 64]), info("past_k", TensorProto.FLOAT, [1, "past", 64])]
    results = [info("y", TensorProto.FLOAT, [1, 1, "n"]), info("present_k", TensorProto.FLOAT, [1, "n", 64])]
    graph = helper.make_graph(nodes, "cache", inputs, results)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    code, _, error = cli("compile", path, "--state", "auto", "--cache", "int8", "-o", out)
    assert code == 0, error
    state = tw.load(out).state(40)
    assert state.nbytes < 40 * 64 * 4 / 3
    rows = np.random.default_rng(0).standard_normal((5, 1, 1, 64)).astype(np.float32)
    for row in rows:
        y = state(row)
    np.testing.assert_allclose(y[0, 0], rows[:, 0, 0] @ rows[-1, 0, 0], rtol=0.01, atol=0.1)
    code, _, error = cli("compile", path, "--cache", "int8", "-o", out)
    assert code and "no caches to keep as codes" in error
    code, _, error = cli("bundle", path, "--state", "auto", "--cache", "int4", "--rows", "8", "-o", tmp_path / "b")
    assert code and "int8" in error
    code, _, _ = cli("bundle", path, "--state", "auto", "--cache", "int8", "--rows", "8", "-o", tmp_path / "b")
    assert code == 0


def test_run_on_files_and_compare(cli: Cli, layer: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((6, 4), np.float32))
    code, text, _ = cli("run", layer, "-i", tmp_path / "x.npy", "--save", tmp_path / "y.npz", "--repeat", 3)
    assert code == 0
    assert "float32[6, 3]" in text
    assert "median of 3 calls" in text
    assert cli("run", layer, "-i", f"x={tmp_path / 'x.npy'}", "--expect", tmp_path / "y.npz")[0] == 0
    code, text, _ = cli("run", layer, "-d", "n=6", "--expect", tmp_path / "y.npz", "--json")
    assert code == 3
    assert json.loads(text)["differences"][0]["equal"] is False
    code, text, _ = cli("run", layer, "-d", "n=5", "--expect", tmp_path / "y.npz")
    assert code == 3
    assert "shape (5, 3) in place of (6, 3)" in text


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """words.onnx: relu(x), and x as text with a nought after each number, which is not compiled."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Cast", ["x"], ["t"], to=TensorProto.STRING),
        helper.make_node("StringConcat", ["t", "nought"], ["s"], name="append"),
    ]
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_empty_tensor_value_info(name) for name in ("r", "s")],
        [helper.make_tensor("nought", TensorProto.STRING, [1], [b"0"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = tmp_path / "words.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_coverage_and_fallback(cli: Cli, words: Path) -> None:
    code, text, _ = cli("coverage", words)
    assert code == 0 and "1 of 3 operators are compiled" in text and "append (StringConcat)" in text
    report = json.loads(cli("coverage", words, "--json")[1])
    assert report["compiled"] == 1 and [u["operator"] for u in report["uncompiled"]] == ["Cast", "StringConcat"]
    code, text, said = cli("run", words, "--dim", "n=2")
    assert code == 0 and "float32[2, 4]" in text and "object[2, 4]" in text and "append (StringConcat)" in said
    code, _, error = cli("run", words, "--fallback", "never")
    assert code == 1 and "STRING" in error
    code, _, error = cli("compile", words)
    assert code == 1 and "tilewright run" in error


@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere.py:make", "nowhere.py"), ("no_such_package:make", "no_such_package"), ("json:loads_all", "loads_all")],
)
def test_coverage_of_what_is_not_there(cli: Cli, name: str, said: str) -> None:
    code, _, error = cli("coverage", name)
    assert code == 2 and "there is no" in error and said in error


def test_coverage_wants_a_module_and_an_example(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "policy.py"
    file.write_text("def make():\n    return 3\n")
    code, _, error = cli("coverage", f"{file}:make")
    assert code == 2 and "int" in error and "(module, example)" in error


def test_inputs_that_do_not_fit(cli: Cli, layer: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((6, 5), np.float64))
    code, _, error = cli("run", layer, "-i", tmp_path / "x.npy")
    assert code == 1
    assert "'x'" in error


def test_profile(cli: Cli, layer: Path) -> None:
    code, text, _ = cli("run", layer, "--profile")
    assert code == 0
    assert "kernel" in text
    code, text, _ = cli("run", layer, "--profile", "--json")
    assert json.loads(text)["profile"]["kernels"]


def test_show_every_stage(cli: Cli, layer: Path) -> None:
    stages = {
        "graph": "%y =",
        "schedule": "layer",
        "loops": "for ",
        "llvm": "define ",
        "asm": ".text",
        "memory": "lower bound",
    }
    code, text, _ = cli("show", layer, *(f"--{stage}" for stage in stages))
    assert code == 0
    parts = text.split("==== ")
    assert [part.split(" ")[0] for part in parts[1:]] == list(stages)
    for part, (stage, sign) in zip(parts[1:], stages.items(), strict=True):
        assert stage == "schedule" or sign in part, stage
    code, text, _ = cli("show", layer)
    assert "==== " not in text
    assert "graph @layer" in text


def test_damaged_files_are_1(cli: Cli, layer: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(layer.read_bytes()[:50])
    (tmp_path / "bad.tw").write_bytes(b"not a program")
    for name in ("bad.onnx", "bad.tw"):
        code, _, error = cli("run", tmp_path / name)
        assert code == 1, error
        assert name in error


def test_bench_against_onnxruntime(cli: Cli, layer: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the peer is an extra: tilewright[test] has it")
    code, text, _ = cli("bench", layer, "--rounds", 2, "--dim", "n=4", "--json")
    report = json.loads(text)["models"][0]
    assert code == 0, text
    assert [c["name"] for c in report["contenders"]] == ["tilewright", "onnxruntime"]
    assert report["ratio"] > 0
    assert [d["output"] for d in report["differences"]] == ["y"]


def test_bench_without_a_peer_is_4(cli: Cli, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.peers.is_installed", lambda setup: False)
    code, text, error = cli("bench", layer, "--rounds", 1)
    assert code == 4
    assert "tilewright" in text
    assert "onnxruntime is not installed" in error


def test_options_are_recorded_and_shown(cli: Cli, layer: Path) -> None:
    code, text, _ = cli("compile", layer, "--fast", "exact", "--json")
    report = json.loads(text)
    assert (code, report["precision"], report["fast"]) == (0, "fp32", "exact")
    compiled = layer.with_suffix(".tw")
    code, text, _ = cli("show", compiled, "--info", "--json")
    info = json.loads(text)["info"]
    assert (info["precision"], info["fast"]) == ("fp32", "exact")
    assert info["target"]["triple"]
    code, text, _ = cli("show", compiled, "--info")
    assert code == 0
    assert "fast" in text
    assert "exact" in text
    assert cli("run", compiled, "-d", "n=2", "--fast", "exact")[0] == 0


def test_options_that_do_not_exist_or_do_not_fit(cli: Cli, layer: Path) -> None:
    assert cli("compile", layer, "--winograd", "exact")[0] == 2
    for option in ("--precision", "--fast"):
        assert cli("run", layer, "-d", "n=2", option, "f7")[0] == 2
    code, _, error = cli("run", layer, "-d", "n=2", "--fallback", "never mind")
    assert (code, "no such setting of fallback" in error) == (2, True)
    code, _, error = cli("compile", layer, "--fast", "f7")
    assert code == 2
    assert "no such setting of fast" in error
    assert "f2, f4, f6" in error
    assert cli("compile", layer)[0] == 0
    code, _, error = cli("run", layer.with_suffix(".tw"), "-d", "n=2", "--precision", "bf16", "--fast", "f2")
    assert code == 1
    assert "another precision" in error
    assert "another fast" in error


def test_another_instruction_set(cli: Cli, layer: Path) -> None:
    """A level that each machine of its architecture has."""
    # any machine: the level is one that each machine has
    level, foreign = (
        ("x86-64", "generic-aarch64") if Target.host().triple.startswith("x86_64") else ("generic-aarch64", "x86-64")
    )
    compiled = layer.with_suffix(".tw")
    assert cli("compile", layer, "--target", level)[0] == 0
    code, text, _ = cli("show", compiled, "--info", "--json")
    assert json.loads(text)["info"]["target"]["cpu"] == Target.parse(level).cpu
    assert cli("run", compiled, "-d", "n=2", "--target", level)[0] == 0
    assert cli("run", layer, "-d", "n=2", "--target", level)[0] == 0
    code, text, _ = cli("bench", layer, "-d", "n=2", "--alone", "--rounds", 1, "--target", level, "--json")
    assert code == 0, text
    code, _, error = cli("run", compiled, "-d", "n=2", "--target", foreign)
    assert (code, "compiled with another target" in error) == (1, True)
    code, _, error = cli("run", layer, "-d", "n=2", "--target", foreign)
    assert (code, "the code is for another machine" in error) == (1, True)
    for command in ("compile", "show", "run", "bench"):
        code, _, error = cli(command, layer, "--target", "pdp11")
        assert (code, "--target: no such target" in error) == (2, True)


def test_the_schedule_tells_plans_and_estimates(cli: Cli, layer: Path) -> None:
    code, text, _ = cli("show", layer, "--schedule", "--dim", "n=8")
    assert code == 0
    for word in ("plan contraction rows=", "runner-up: ", "bound by "):
        assert word in text


def test_decisions_are_listed_with_their_space(cli: Cli, layer: Path) -> None:
    code, text, _ = cli("show", layer, "--decisions", "--dim", "n=8")
    assert code == 0
    for word in (
        "panels of matmul(f32[8, ",
        "plan of lowered.matmul_packed",
        "by estimate",
        "taken: contraction rows=",
        "runner-up: ",
    ):
        assert word in text
    code, text, _ = cli("show", layer, "--decisions", "--json", "--dim", "n=8")
    result = json.loads(text)["decisions"]
    assert code == 0 and {"panels", "plan"} <= {d["kind"] for d in result}
    for d in result:
        assert d["space"] > len(d["runners_up"]) and d["key"].startswith(f"{d['kind']} ")
        assert d["taken"].split(" ")[0] in " ".join(d["knobs"]) and d["cycles"] >= 0.0
    cli("compile", layer)
    code, _, error = cli("show", layer.with_suffix(".tw"), "--decisions")
    assert code == 2 and "does not keep its decisions" in error


def test_a_file_for_another_machine(cli: Cli, layer: Path, tmp_path: Path) -> None:
    """The file is written here; running it here is an error that says for which machine it is."""
    path = tmp_path / "arm.tw"
    assert cli("compile", layer, "-o", path, "--target", "aarch64-neoverse-v1")[0] == 0
    code, _, error = cli("run", path)
    assert code == 1 and "for another machine" in error and "aarch64" in error
