"""The command line: usage, errors and their exit codes, the machine's report."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer import BadParameter
from typer.main import get_command

from tilewright.cli.common import bytes_text, parse_dims, parse_ragged, parse_ranges, parse_state, time_text
from tilewright.cli.inputs import read_inputs
from tilewright.cli.main import app
from tilewright.cli.run import compare, difference
from tilewright.ir.dim import dim
from tilewright.measure import calibration
from tilewright.measure.calibration import Calibration
from tilewright.runtime.examples import random_inputs
from tilewright.runtime.specs import InputSpec
from tilewright.support.errors import CallError
from tilewright.support.machine import describe

from .conftest import Cli


def test_help_teaches(cli: Cli) -> None:
    code, text, _ = cli("--help")
    assert code == 0
    for command in ("compile", "run", "show", "bench", "profile", "tune", "doctor"):
        assert command in text
        status, page, _ = cli(command, "--help")
        assert status == 0
        assert command == "doctor" or f"tilewright {command} " in page, "an example of the command"
    assert "Exit codes" in text


@pytest.mark.parametrize(
    "command",
    [
        *(
            ["compile"],
            ["run"],
            ["show"],
            ["coverage"],
            ["bench"],
            ["profile"],
            ["tune"],
            ["publish"],
            ["attach"],
            ["serve"],
            ["offer"],
            ["bench-serve"],
            ["plan-serving"],
            ["relay"],
            ["broker"],
        ),
        *(["store"], ["store", "list"], ["store", "info"], ["store", "sweep"]),
    ],
    ids=" ".join,
)
def test_examples_fit_a_terminal(cli: Cli, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of a help page's examples is a line of its own in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in cli(*command, "--help")[1].splitlines()]
    result: Any = get_command(app)
    for name in command:
        result = result.commands[name]
    examples = inspect.cleandoc(result.help).split("```")[1].split("\n")
    assert [e for e in examples if e.strip() and e not in lines] == []


@pytest.mark.parametrize("module", ["tilewright", "tilewright.cli"])
def test_runs_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert f"{module} [OPTIONS] COMMAND" in done.stdout


def test_version(cli: Cli) -> None:
    import tilewright

    assert cli("--version")[:2] == (0, f"tilewright {tilewright.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["run"], ["run", "m.onnx", "--dim", "n"], ["run", "m.onnx", "--dim", "n=a"], ["compile", "m.tw"]],
    ids=" ".join,
)
def test_wrong_usage_is_2(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments)[0] == 2


@pytest.mark.parametrize("command", ["compile", "run", "show", "bench", "profile"])
def test_errors_are_1_and_name_the_file(cli: Cli, command: str) -> None:
    code, text, error = cli(command, "nothing.onnx")
    assert code == 1
    assert "nothing.onnx" in error
    assert text == ""
    code, text, _ = cli(command, "nothing.onnx", "--json")
    assert code == 1
    assert json.loads(text)["where"] == "nothing.onnx"


def test_bad_flag_is_1(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "many")
    (tmp_path / "m.onnx").write_bytes(b"")
    code, _, error = cli("run", tmp_path / "m.onnx")
    assert code == 1
    assert "TILEWRIGHT_THREADS" in error


def test_doctor(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a folder of its own: with the ceilings of a machine that is busy testing, other tests would choose other code.
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    # On a machine that is very busy what is measured may be out of the plausible range: the better of both is kept.
    poor = Calibration(1.0, 0.5, 1.0, 1.0, 0.5, 0.1, 1e5)
    assert calibration.store(poor, describe()) is not None
    code, text, _ = cli("doctor", "--no-measure")
    assert code == 0
    for word in ("CPU", "caches", "LLVM", "numpy", "plug-ins", "object cache"):
        assert word in text
    code, text, _ = cli("doctor", "--json")
    report = json.loads(text)
    assert report["ceilings"]["peak_gflops_one"] > 1
    assert report["ceilings"]["copy_gbs_one"] > 0.5
    assert report["machine"]["cores"] >= 1
    assert report["calibration"]["fma_per_cycle"] >= 0.5
    assert report["calibration"] != asdict(poor)
    assert Path(report["calibration_file"]).exists()
    _, repeated, _ = cli("doctor", "--no-measure", "--json")
    assert json.loads(repeated)["calibration"] == report["calibration"]


def test_dims() -> None:
    assert parse_dims(["a=3", "b=64"]) == {"a": 3, "b": 64}
    assert parse_dims(None) == {}


def test_what_is_known_of_dims() -> None:
    result = parse_ranges(["a=3", "seq=1..512@32,64", "h=32..640/32"])
    assert result == {"a": 3, "seq": dim(1, 512, likely=[32, 64]), "h": dim(32, 640, multiple=32)}
    for wrong in ("seq=5..2", "seq=..", "seq=1..", "=1..2", "seq=1..9/0", "seq=1..9@10", "seq=1..99999999999"):
        with pytest.raises(BadParameter):
            parse_ranges([wrong])


def test_caches_of_a_decoder() -> None:
    assert (parse_ragged(None), parse_ragged("batch,seq")) == (None, ("batch", "seq"))
    for wrong_pair in ("batch", "batch,", "a,b,c"):
        with pytest.raises(BadParameter):
            parse_ragged(wrong_pair)
    assert parse_state(None) is None
    assert parse_state(["auto"]) == "auto"
    assert parse_state(["a=b", "c.0=d.0"]) == {"a": "b", "c.0": "d.0"}
    for wrong in (["auto", "a=b"], ["a"], ["a="], ["a=b", "a=c"]):
        with pytest.raises(BadParameter):
            parse_state(wrong)


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.23e-6, "1.23 µs"), (4.2e-4, "420 µs"), (0.0042, "4.2 ms"), (3, "3.00 s")]
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_sizes() -> None:
    assert [bytes_text(n) for n in (12, 2048, 3 << 20, 5 << 30)] == ["12 B", "2.00 KiB", "3.00 MiB", "5.00 GiB"]


SPECS = [InputSpec("x", "f32", ("n", 3)), InputSpec("id", "i64", (2,)), InputSpec("image", "u8", (4, "m"))]


def test_random_inputs_follow_the_specification() -> None:
    created = random_inputs(SPECS, {"n": 5}, seed=1)
    assert {k: (v.dtype.name, v.shape) for k, v in created.items()} == {
        "x": ("float32", (5, 3)),
        "id": ("int64", (2,)),
        "image": ("uint8", (4, 1)),
    }
    assert created["x"].tobytes() == random_inputs(SPECS, {"n": 5}, seed=1)["x"].tobytes()


def test_inputs_from_files(tmp_path: Path) -> None:
    from onnx import numpy_helper

    np.save(tmp_path / "x.npy", np.ones((5, 3), np.float32))
    np.savez(tmp_path / "all.npz", image=np.zeros((4, 1), np.uint8))
    (tmp_path / "id.pb").write_bytes(numpy_helper.from_array(np.array([1, 2])).SerializeToString())
    result = read_inputs([f"{tmp_path}/x.npy", f"id={tmp_path}/id.pb", f"{tmp_path}/all.npz"], SPECS)
    assert {k: v.shape for k, v in result.items()} == {"x": (5, 3), "id": (2,), "image": (4, 1)}
    assert result["id"].tolist() == [1, 2]
    with pytest.raises(CallError, match=r"inputs do not fit(.|\n)*missing.npy(.|\n)*'y'"):
        read_inputs([f"{tmp_path}/missing.npy", f"y={tmp_path}/x.npy"], SPECS)


HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (222222222222,), }".ljust(117) + b"\n"


@pytest.mark.parametrize("suffix", ["npy", "npz", "pb", "txt"])
@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK\x03\x04" + bytes(60), b"\xff" * 64, b"\x93NUMPY\x01\x00\x76\x00" + HUGE]
)
def test_files_that_are_damaged(tmp_path: Path, suffix: str, content: bytes) -> None:
    """Damaged files are named in an error, as inputs and as what is expected, whatever the libraries make of them."""
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(content)
    if (suffix, content) != ("pb", b""):  # which is an empty tensor of no type
        with pytest.raises(CallError, match=r"x\.\w+"):
            read_inputs([str(path)], SPECS)
    with pytest.raises(CallError, match=r"x\.\w+"):
        compare({}, path, 1e-4)


def test_text_is_no_input(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array(["a"]))
    with pytest.raises(CallError, match="not numbers"):
        read_inputs([f"{tmp_path}/x.npz"], SPECS)


@pytest.mark.parametrize(
    ("results", "wanted", "equal"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], True),
        ([1.0, 2.1], [1.0, 2.0], False),
        ([1.0, np.nan], [1.0, 2.0], False),
        ([1.0, np.inf], [1.0, 2.0], False),
        ([1.0], [1.0, 2.0], False),
        ([0.00001, 100.0], [0.0, 100.0], True),
        ([], [], True),
    ],
)
def test_difference(results: list[float], wanted: list[float], equal: bool) -> None:
    report: dict[str, Any] = difference("y", np.array(results), np.array(wanted), 1e-4)
    assert report["equal"] is equal
    assert not difference("y", None, np.array(wanted), 1e-4)["equal"]


def test_a_defect_is_70_and_shows_where(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*arguments: object) -> None:
        raise AssertionError("cannot happen")

    monkeypatch.setattr("tilewright.cli.run.open_any", broken)
    code, _, error = cli("run", tmp_path / "m.onnx")
    assert code == 70
    assert "Traceback" in error
    assert "a defect of Tilewright" in error


def test_interrupted_is_130(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.cli.run.open_any", stopped)
    assert cli("run", tmp_path / "m.onnx")[0] == 130
