"""Files whose contents are of another format than their names say: one error that names what they hold."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks import policy_suite
from tilewright.cli import models
from tilewright.frontend.common.contents import is_compiled, other_format
from tilewright.runtime.artifact import MAGIC
from tilewright.support.errors import ArtifactError, CallError, ModelError

CONTENTS = {
    b"": "an empty file",
    b"\x89HDF\r\n\x1a\n0000000000": "an HDF5 file",
    b'\x08\0\0\0\0\0\0\0{"a": {}}': "a safetensors file",
    b"version https://git-lfs.github.com/spec/v1\n": "a pointer of Git LFS",
    b"\x1f\x8b000000000000": "a compressed file",
    b"module {\n}\n": "text of MLIR",
    b"<!DOCTYPE html>": "a text in HTML",
    b"0000TFL3": "a TFLite file",
}


@pytest.mark.parametrize("contents", CONTENTS, ids=lambda c: CONTENTS[c].split()[-1])
def test_a_file_of_another_format_is_named(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(contents)
    for read in (tw.compile, tw.coverage):
        with pytest.raises(ModelError, match=r"m\.onnx.*ONNX") as error:
            read(path)
        assert CONTENTS[contents] in str(error.value) and error.value.hint


def test_archives_are_named_in_other_readers_too(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"0")
    with pytest.raises(ModelError, match="no TFLite file: got a zip archive"):
        tw.compile(path)


def test_what_is_unknown_is_left_to_the_reader() -> None:
    error = other_format("the file is no letter", b"hello", where="x", got="a greeting")
    assert str(error) == "x: the file is no letter: got a greeting"


def test_numbers_that_begin_as_html_are_left_to_the_reader() -> None:
    """A FlatBuffer of `jax.export` begins so."""
    error = other_format("the file is not an ONNX model", b"<\0\0\0\0\0:\0", got="corrupt")
    assert str(error) == "the file is not an ONNX model: got corrupt"


class Lowered:
    """Stands for `jax.stages.Lowered`."""

    def as_text(self) -> str:
        return ""

    def compile(self) -> None:
        pass


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        (abs, r"tw\.compile\(jax\.jit\(f\), example\)"),
        (Lowered, "pass an instance of the class"),
        ({"w": np.zeros(3)}, "weights alone are no model"),
        (Lowered(), r"lowered\.as_text\(\)"),
        (bytearray(b"x"), r"jax\.export\.deserialize\(model\)"),
    ],
)
def test_objects_that_are_no_model_say_what_to_pass(model: object, hint: str) -> None:
    name = type(model).__name__
    with pytest.raises(ModelError, match=f"expected an ONNX model: got {name}\nhint: .*{hint}"):
        tw.compile(model)
    with pytest.raises(ModelError, match=f"need an example of their inputs: got {name}\nhint: .*{hint}"):
        tw.compile(model, (np.zeros(3, np.float32),))


def test_a_text_of_several_lines_is_no_path() -> None:
    with pytest.raises(ModelError, match=r"^model: a text of several lines is no path: got HloModule f$"):
        tw.compile("HloModule f\n\nENTRY main { ROOT x = f32[3] parameter(0) }\n")


def test_a_compiled_file_is_known_by_its_name_or_its_contents(tmp_path: Path) -> None:
    path, renamed = tmp_path / "m.tw", tmp_path / "m.onnx"
    model = tw.compile(policy_suite.m64())
    model.save(path)
    renamed.write_bytes(path.read_bytes())
    assert renamed.read_bytes().startswith(MAGIC)
    assert is_compiled(renamed) and is_compiled(tmp_path / "missing.tw") and not is_compiled(tmp_path / "missing.onnx")
    for file in (path, renamed):
        with pytest.raises(ModelError, match="compiled already"):
            tw.compile(file)
        assert models.named(file).is_compiled
        assert models.open_model(file, 1, {}).manifest.inputs == model.manifest.inputs
    named_so = tmp_path / "file.tw"
    named_so.write_bytes(np.arange(9).tobytes())
    with pytest.raises(ModelError, match="compiled already"):
        tw.compile(named_so)
    with pytest.raises(ModelError, match="compiled already"):
        tw.coverage(path)
    with pytest.raises(ArtifactError, match=r"not a .tw file(.|\n)*tw\.compile\(path\)"):
        tw.load(named_so)


def test_calls_in_the_form_of_others_say_how_it_is_done_here() -> None:
    model, feed = tw.compile(policy_suite.m64()), {"obs": np.zeros((1, 17), np.float32)}
    with pytest.raises(CallError, match=r"got NoneType(.|\n)*tw\.Session\(model\)\.run\(names, feed\)"):
        model.run(None, feed)  # type: ignore[arg-type]
    with pytest.raises(CallError, match=r"not an array(.|\n)*model\.run\(\{name: x\}\)"):
        model(feed)
    with pytest.raises(ModelError, match=r"got Model\nhint: it is compiled already"):
        tw.compile(model)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)
    try:
        os.write(end, MAGIC)
        assert not is_compiled(pipe)
        assert os.read(end, 99) == MAGIC
    finally:
        os.close(end)
    assert not is_compiled(tmp_path / ("x" * 300)) and not is_compiled(Path("a\0"))
