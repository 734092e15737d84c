"""Behaviour that all commands that take a model have in common: what a model may be, dimensions, files that are
written, options that do nothing, exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw

from .conftest import Cli

COMMANDS = ("compile", "show", "export", "coverage", "bench", "profile", "tune", "run")
FAST = {"tune": ("--seconds", 0), "bench": ("--rounds", 1, "--alone"), "profile": ("--calls", 1)}
GIVES = """
import onnx
import tilewright

def make():
    return onnx.load({path!r})

def number():
    return 3

def fails():
    raise RuntimeError("no weights here")

def lacks():
    import no_such_package_of_anyone

def misses():
    return dict()["no such key"]

def opens():
    return open("no such file of weights")

array = [1.0]

class Module:
    def __call__(self, x):
        return x
    forward = __call__

module = Module()
"""


@pytest.fixture
def functions(layer: Path) -> Path:
    """gives.py, whose functions give a model, something else, an error."""
    path = layer.parent / "gives.py"
    path.write_text(GIVES.format(path=str(layer)))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_takes_functions(cli: Cli, functions: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(functions.parent)
    code, text, error = cli(command, "gives.py:make", *FAST.get(command, ()), "--dim", "n=2")
    assert code == 0, error
    assert text
    if command == "compile":
        assert tw.load("make.tw")(np.ones((2, 4), np.float32)).shape == (2, 3)  # type: ignore[union-attr]
    if command == "show":  # by the name of a module in the present folder, too
        assert cli(command, "gives:make")[0] == 0


@pytest.mark.daily(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_bad_models_are_the_same_to_each_command(cli: Cli, functions: Path, command: str) -> None:
    folder, options = functions.parent, FAST.get(command, ())
    (folder / "bad.onnx").write_bytes(b"this is no model")
    for name, expected, said in (
        ("absent.onnx", 1, "no such file"),
        ("bad.onnx", 1, "bad.onnx"),
        ("", 1, "read"),  # a folder
        ("gives.py:fails", 1, "no weights here"),
        ("gives.py:lacks", 4, "no_such_package_of_anyone"),
        ("gives.py:number", 2, "gives int"),
        ("gives.py:nothing", 2, "has make, number, fails"),
        ("gives.py", 2, "name a function in it"),
        ("gives.py:array", 2, "is of type list"),
        ("gives.py:misses", 1, "KeyError"),
        ("gives.py:opens", 1, "FileNotFoundError"),
        ("gives.py:module", 2, "is a module"),
        ("absent.py:make", 2, "there is no file"),
    ):
        code, _, error = cli(command, folder / name, *options)
        assert (code, said in error) == (expected, True), (name, code, error)


@pytest.mark.parametrize("command", ["compile", "export", "coverage", "tune"])
def test_compiled_files_are_no_models(cli: Cli, program: Path, command: str) -> None:
    code, _, error = cli(command, program)
    assert code == 2 and "is compiled already" in error


@pytest.mark.daily(5)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("said", ["n=3", "n=2..64", "n=8..64/8@16"])
def test_dimensions_mean_the_same_to_each_command(cli: Cli, layer: Path, command: str, said: str) -> None:
    code, text, error = cli(command, layer, "--dim", said, *FAST.get(command, ()))
    assert code == 0, error
    if command == "compile":
        spec = tw.load(layer.with_suffix(".tw")).manifest.symbols
        assert [(s.lo, s.hi, s.multiple) for s in spec] == {"n=3": [], "n=2..64": [(2, 64, 1)]}.get(said, [(8, 64, 8)])
    if command == "run":
        rows = {"n=3": 3, "n=2..64": 2}.get(said, 16)
        assert f"float32[{rows}, 3]" in text
    code, _, error = cli(command, layer, "--dim", "m=3", *FAST.get(command, ()))
    assert code == 1 and "m" in error
    assert cli(command, layer, "--dim", "n=x", *FAST.get(command, ()))[0] == 2


@pytest.mark.parametrize("command", ["run", "profile", "bench"])
def test_dimensions_of_a_compiled_file(cli: Cli, layer: Path, command: str) -> None:
    options = FAST.get(command, ())
    path = layer.with_suffix(".tw")
    assert cli("compile", layer, "--dim", "n=1..64")[0] == 0
    assert cli(command, path, "--dim", "n=7", *options)[0] == 0
    for said, what in (("m=7", "open"), ("n=1..8", "range")):
        code, _, error = cli(command, path, "--dim", said, *options)
        assert code == 1 and what in error
    assert cli("compile", layer, "--dim", "n=5")[0] == 0
    code, _, error = cli(command, path, "--dim", "n=7", *options)
    assert code == 1 and "expected none, got n" in error
    assert cli(command, path, *options)[0] == 0
    assert cli("show", path, "--dim", "n=5")[0] == 2


def test_sizes_must_be_those_of_the_inputs(cli: Cli, layer: Path, program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((6, 4), np.float32))
    for model in (layer, program):
        assert cli("run", model, "-i", tmp_path / "x.npy", "--dim", "n=6")[0] == 0
        code, _, error = cli("run", model, "-i", tmp_path / "x.npy", "--dim", "n=8")
        assert code == 1, error


def _itself(path: Path) -> Path:
    return path


def _link(path: Path) -> Path:
    (path.parent / "link").symlink_to(path)
    return path.parent / "link"


def _hard_link(path: Path) -> Path:
    os.link(path, path.parent / "hard.bin")
    return path.parent / "hard.bin"


def _other_words(path: Path) -> Path:
    return path.parent / ".." / path.parent.name / path.name


def _data(path: Path) -> Path:
    """The model's weights in a file beside it."""
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="layer.data", size_threshold=0)
    return path.parent / "layer.data"


@pytest.mark.parametrize("output", [_itself, _link, _hard_link, _other_words, _data])
def test_no_output_is_written_over_the_input(cli: Cli, layer: Path, output: object) -> None:
    path: Path = output(layer)  # type: ignore[operator]
    before = path.read_bytes()
    for command in (("compile", layer, "-o"), ("export", layer, "-o"), ("profile", layer, "--trace")):
        code, _, error = cli(*command, path)
        assert code == 2 and "would write over it" in " ".join(error.replace("│", " ").split()), (command, error)
        assert path.read_bytes() == before
    assert cli("compile", layer, "-o", layer.parent / "out.tw")[0] == 0


def test_functions_and_arrays_are_not_written_over(cli: Cli, functions: Path, layer: Path) -> None:
    before = functions.read_text()
    assert cli("compile", f"{functions}:make", "-o", functions)[0] == 2
    assert functions.read_text() == before
    np.savez(layer.parent / "x.npz", x=np.ones((2, 4), np.float32))
    for option in ("-i", "--expect"):
        assert cli("run", layer, option, layer.parent / "x.npz", "--save", layer.parent / "x.npz")[0] == 2


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device", "layer.tw")


@pytest.mark.parametrize("command", [("compile", "-o"), ("export", "-o"), ("run", "--save"), ("profile", "--trace")])
def test_places_that_cannot_be_written(cli: Cli, layer: Path, command: tuple[str, str], tmp_path: Path) -> None:
    for place, said in ((tmp_path / "no/such/folder.npz", "no such folder"), (tmp_path, "it is a folder")):
        if place == tmp_path and command[0] == "run":
            continue  # NumPy writes <folder>.npz
        code, _, error = cli(command[0], layer, command[1], place)
        assert code == 1 and said in error


def test_an_output_that_cannot_be_finished_leaves_the_file_before(
    cli: Cli, layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real.mlir", tmp_path / "out.mlir"
    real.write_text("before")
    link.symlink_to(real)
    assert cli("export", layer, "-o", link)[0] == 0 and not link.is_symlink() and real.read_text() == "before"
    text = link.read_text()
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        assert cli("export", layer, "-o", link)[0] == 1
    assert link.read_text() == text and sorted(tmp_path.glob("*.mlir*")) == [link, real]


def test_options_that_do_nothing_are_wrong_usage(cli: Cli, layer: Path, program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((6, 4), np.float32))
    for command in (
        ("run", layer, "--rtol", 1e-3),
        ("run", program, "--fallback", "never"),
        ("run", layer, "-i", tmp_path / "x.npy", "--seed", 3),
        ("show", program, "--dim", "n=3"),
        ("tune", layer, "--verify", "--fresh"),
        ("profile", layer, "--dim", "n=3", "--over", "n=1,2"),
        ("bench", layer, "--rounds", 3, "--duration", 1),
        ("bench", layer, "--alone", "--rival", "onnxruntime"),
        ("bench", layer, "--png", tmp_path / "b.png"),
        ("bench", layer, "--sweep", "n=1,2", "--dim", "n=3"),
    ):
        assert cli(*command)[0] == 2, command
    code, _, error = cli("profile", layer, "--over", "m=1,2", "--calls", 1)
    assert code == 1 and "--over m" in error and "--dim" not in error


def test_errors_name_the_option(cli: Cli, layer: Path, program: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", other=np.ones((6, 4), np.float32))
    for command, expected, said in (
        (("profile", layer, "--over", "n=a"), 2, "expected NAME=N,N"),
        (("compile", layer, "--dim", "n=a"), 2, "NAME=LO..HI"),
        (("run", layer, "-i", f"x={tmp_path / 'x.npz'}"), 1, "arrays with names of their own"),
        (("show", program, "--loops"), 1, "save(path, texts="),
        (("compile", layer, "--state", "here=there"), 1, "got here"),
    ):
        code, _, error = cli(*command)
        assert (code, said in " ".join(error.split())) == (expected, True), (command, error)


def test_packages_that_are_not_installed_are_4(cli: Cli, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    monkeypatch.setitem(__import__("sys").modules, "jaxlib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    for name in ("m.pt2", "m.mlir"):
        (layer.parent / name).write_bytes(b"module {\n}\n")
        code, text, _ = cli("compile", layer.parent / name, "--json")
        assert code == 4 and json.loads(text)["error"] == "MissingPackageError"
    assert cli("profile", layer, "--png", layer.parent / "p.png")[0] == 4


def test_what_the_system_refuses_is_1(cli: Cli, layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.artifact.write", full)
    code, _, error = cli("compile", layer)
    assert code == 1 and "layer.tw: No space left on device" in error
