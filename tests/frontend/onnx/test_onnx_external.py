"""Data of tensors in other files: which places a model may name, by every way in, and what is left open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.cli.inputs import read_arrays
from tilewright.frontend.onnx import import_onnx
from tilewright.frontend.onnx.left import WALKED
from tilewright.frontend.onnx.load import load
from tilewright.frontend.onnx.section import whole
from tilewright.parts.context import Context
from tilewright.parts.hosts import Hosts
from tilewright.support.errors import CallError, ModelError

W = np.arange(16, dtype=np.float32).reshape(4, 4)
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def outside(location: str, name: str = "w", array: np.ndarray = W) -> TensorProto:
    """A tensor whose data is where `location` says."""
    tensor = numpy_helper.from_array(array, name)
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    return tensor


def product(location: str = "m.data") -> onnx.ModelProto:
    """x @ w."""
    m = model([node("MatMul", ["x", "w"], ["y"])], [info("x", ["n", 4])], ["y"])
    m.graph.initializer.append(outside(location))
    return m


def in_constant(location: str = "m.data") -> onnx.ModelProto:
    """x @ w, where w is a node's attribute."""
    nodes = [helper.make_node("Constant", [], ["w"], value=outside(location)), node("MatMul", ["x", "w"], ["y"])]
    return model(nodes, [info("x", ["n", 4])], ["y"])


def by_host(location: str = "m.data") -> onnx.ModelProto:
    """x @ w by an operator that only hosts know, in whose graph w is a constant; MelWeightMatrix is not compiled."""
    m = in_constant(location)
    nodes = [node("SequenceConstruct", ["x", "x"], ["s"])]
    body = helper.make_graph(
        [*m.graph.node], "body", [info("x", ["n", 4])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    nodes.append(helper.make_node("SequenceMap", ["s"], ["t"], body=body))
    nodes += [node("SequenceAt", ["t", "k"], ["y"])]
    return model(nodes, [info("x", ["n", 4])], ["y"], {"k": np.int64(0)})


MODELS = [product, in_constant, by_host]


def cache(root: Path, m: onnx.ModelProto) -> Path:
    """A model in a cache as Hugging Face's: links in a snapshot lead to files under other names in one folder."""
    snapshot, blobs = root / "models--a--b/snapshots/c0ffee/onnx", root / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "aaaa").write_bytes(m.SerializeToString())
    (blobs / "bbbb").write_bytes(W.tobytes())
    (snapshot / "m.onnx").symlink_to("../../../blobs/aaaa")
    (snapshot / "m.data").symlink_to("../../../blobs/bbbb")
    return snapshot / "m.onnx"


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.filterwarnings("ignore::tilewright.parts.context.FallbackWarning")
def test_links_beside_the_real_model_are_followed(make: object, tmp_path: Path) -> None:
    path = cache(tmp_path, make())  # type: ignore[operator]
    np.testing.assert_array_equal(np.asarray(tw.compile(path)(X)), X @ W)
    linked = tmp_path / "elsewhere"
    linked.symlink_to(path.parent, target_is_directory=True)
    np.testing.assert_array_equal(np.asarray(tw.compile(str(linked / "m.onnx"))(X)), X @ W)


def test_links_to_links_are_followed_to_their_end(tmp_path: Path) -> None:
    path = cache(tmp_path, product())
    (path.parent / "m.data").unlink()
    (path.parent / "one").symlink_to("../../../blobs/two")
    (path.parent / "m.data").symlink_to(path.parent / "one")
    (tmp_path / "models--a--b/blobs/two").symlink_to("bbbb")
    np.testing.assert_array_equal(tw.compile(path)(X), X @ W)
    secret = tmp_path / "secret"
    secret.write_bytes(W.tobytes())
    (tmp_path / "models--a--b/blobs/two").unlink()
    (tmp_path / "models--a--b/blobs/two").symlink_to(secret)
    with pytest.raises(ModelError, match="link to another place"):
        tw.compile(path)


def test_links_inside_of_the_model_s_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(product("parts/m.data").SerializeToString())
    (tmp_path / "files").mkdir()
    (tmp_path / "files/m.data").write_bytes(W.tobytes())
    (tmp_path / "parts").symlink_to("files", target_is_directory=True)
    np.testing.assert_array_equal(tw.compile(tmp_path / "m.onnx")(X), X @ W)


def _file(folder: Path) -> None:
    (folder / "m.data").symlink_to(folder.parent / "secret")


def _absolute(folder: Path) -> None:
    (folder / "m.data").symlink_to("/etc/hostname")


def _folder(folder: Path) -> None:
    (folder / "m.data").symlink_to(folder.parent, target_is_directory=True)


def _circle(folder: Path) -> None:
    (folder / "m.data").symlink_to("other")
    (folder / "other").symlink_to("m.data")


def _nowhere(folder: Path) -> None:
    (folder / "m.data").symlink_to("absent")


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "m.data")


def _below_the_real_one(folder: Path) -> None:
    """Beside the file that the model is a link to means beside: not all that lies below it."""
    real = folder.parent / "real"
    (real / "deep").mkdir(parents=True)
    (real / "deep/m.data").write_bytes(W.tobytes())
    (folder / "m.onnx").rename(real / "m.onnx")
    (folder / "m.onnx").symlink_to(real / "m.onnx")
    (folder / "m.data").symlink_to(real / "deep/m.data")


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("break_", [_file, _absolute, _folder, _circle, _nowhere, _pipe, _below_the_real_one])
@pytest.mark.filterwarnings("ignore::tilewright.parts.context.FallbackWarning")
def test_links_to_other_places_are_refused(make: object, break_: object, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(W.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(make().SerializeToString())  # type: ignore[operator]
    break_(folder)  # type: ignore[operator]
    with pytest.raises((ModelError, CallError), match="external data"):
        tw.compile(folder / "m.onnx")(X)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "sub/../../secret", "sub/secret", "secret\0"])
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.filterwarnings("ignore::tilewright.parts.context.FallbackWarning")
def test_locations_outside_are_refused_by_every_part(make: object, location: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(W.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "sub").symlink_to(tmp_path, target_is_directory=True)
    (folder / "m.onnx").write_bytes(make(location).SerializeToString())  # type: ignore[operator]
    with pytest.raises((ModelError, CallError), match="external data"):
        tw.compile(folder / "m.onnx")(X)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.filterwarnings("ignore::tilewright.parts.context.FallbackWarning")
def test_data_is_not_looked_for_in_the_present_folder(
    make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.data").write_bytes(W.tobytes())
    monkeypatch.chdir(tmp_path)
    m = make()  # type: ignore[operator]
    for case in (m, m.SerializeToString()):
        with pytest.raises((ModelError, CallError), match="another file"):
            tw.compile(case)(X)


def test_tensors_of_types_that_only_hosts_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.array([1 + 2j, 3 - 1j], np.complex64)
    m = model([node("Identity", ["c"], ["y"])], [], ["y"])
    m.graph.initializer.append(outside("c.bin", "c", numbers))
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    context = Context(lambda *_: None, Hosts())  # type: ignore[arg-type, return-value]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    (tmp_path / "other/c.bin").write_bytes(numbers.tobytes())  # the present folder's is not the model's
    with pytest.raises(ModelError, match="external data"):
        context.tensor(whole(load(tmp_path / "m.onnx")), "c")
    (tmp_path / "c.bin").write_bytes((2 * numbers).tobytes())
    np.testing.assert_array_equal(context.tensor(whole(load(tmp_path / "m.onnx")), "c"), 2 * numbers)


def test_inputs_as_tensors_with_data_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.pb").write_bytes(outside("x.bin", "x").SerializeToString())
    (tmp_path / "x.bin").write_bytes(W.tobytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CallError, match="external data"):
        read_arrays(Path("in/x.pb"))
    (tmp_path / "in/x.bin").write_bytes((2 * W).tobytes())
    result = read_arrays(Path("in/x.pb"))
    np.testing.assert_array_equal(np.asarray(result), 2 * W)


def test_no_file_stays_open(tmp_path: Path) -> None:
    """A large model's file is open while it is read, and not longer; no file of any model is left to be collected."""
    big = np.zeros((WALKED // 16, 8), np.float32)
    m = model([node("Gather", ["w", "i"], ["y"])], [info("i", ["n"], TensorProto.INT64)], ["y"], {"w": big})
    onnx.save(m, tmp_path / "big.onnx")
    onnx.save(model([node("Relu", ["x"], ["y"])], [info("x", ["n"])], ["y"]), tmp_path / "small.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07" * 8)
    script = """
import gc, sys, tilewright as tw
for name in ("big", "small", "bad"):
    for door in (tw.compile, tw.coverage, tw.compile_program):
        try: door(f"{name}.onnx")
        except tw.Error as error: assert name == "bad", error
gc.collect()
"""
    command = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning" not in done.stderr, done.stderr
    with load(tmp_path / "big.onnx", whole=False) as loaded:
        assert loaded.left is not None and loaded.left.places
    assert import_onnx(tmp_path / "big.onnx").weights["w"].shape == big.shape
