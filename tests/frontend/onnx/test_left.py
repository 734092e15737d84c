"""Large tensors that are read past the parser: the same model as from the parsed bytes, whatever the file says."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[import-untyped]
from onnx import TensorProto, numpy_helper

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx import import_onnx, importer, left
from tilewright.ir.interface import Imported
from tilewright.support.errors import Error, ModelError

X = info("x", ["n", 40])


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left, "WALKED", 0)
    monkeypatch.setattr(left, "LARGE", 64)
    monkeypatch.setattr(importer, "LARGE", 64)


def a_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((40, 24), np.float32), "w")
    half = TensorProto(name="half", data_type=TensorProto.BFLOAT16, dims=[24], raw_data=rng.bytes(48))
    flags = numpy_helper.from_array(rng.integers(0, 2, 100) > 0, "flags")
    bias = numpy_helper.from_array(rng.standard_normal(24).astype(np.float32), "bias")
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "bias"], ["y"]), node("Not", ["flags"], ["f"])]
    m = model([*nodes, node("Identity", ["half"], ["h"])], [X], ["y", "f", "h"])
    m.graph.initializer.extend([w, half, flags, bias])
    return m


def written(m: onnx.ModelProto | bytes, path: Path) -> Path:
    path.write_bytes(m if isinstance(m, bytes) else m.SerializeToString())
    return path


def read(source: Path | bytes) -> Imported | str:
    try:
        return import_onnx(source)
    except Error as error:
        return str(error).replace("model.onnx", "model")


def same(a: Imported | str, b: Imported | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    bits = [{k: (v.dtype, v.shape, v.tobytes()) for k, v in i.weights.items()} for i in (a, b)]
    return bits[0] == bits[1] and str(a.graph) == str(b.graph)


def test_large_tensors_stay_in_the_file_and_come_out_equal(tmp_path: Path) -> None:
    m = a_model()
    path = written(m, tmp_path / "model.onnx")
    seen = left.Left(path)
    rest = seen.rest()
    assert rest is not None
    assert set(seen.places) == {"w", "bias", "flags"}
    assert len(rest) < len(m.SerializeToString()) - 40 * 24 * 4
    a, b = read(path), read(m.SerializeToString())
    assert same(a, b)
    assert isinstance(a, Imported)
    assert all(a.weights[name].ctypes.data % 64 == 0 for name in ("w", "bias"))
    x = np.random.default_rng(1).standard_normal((3, 40), np.float32)
    for mine, theirs in zip(tw.compile(path)(x), tw.compile(m)(x), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_small_types_are_read_from_the_file(tmp_path: Path) -> None:
    packed = TensorProto(name="w", data_type=TensorProto.INT4, dims=[300], raw_data=np.random.default_rng(2).bytes(150))
    m = model([node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)], [X], ["y"], opset=21)
    m.graph.initializer.append(packed)
    a = read(written(m, tmp_path / "model.onnx"))
    assert isinstance(a, Imported)
    assert same(a, read(m.SerializeToString()))


@pytest.mark.parametrize("where", ["graph", "tensor", "twice", "name"])
def test_unusual_files_are_left_to_the_parser(where: str, tmp_path: Path) -> None:
    m = a_model()
    data = m.SerializeToString()
    if where == "graph":  # messages in two pieces are one
        extra = onnx.GraphProto(initializer=[numpy_helper.from_array(np.zeros(30, np.float32), "unread")])
        data += _field(7, extra.SerializeToString())
    elif where == "tensor":  # the last of two fields counts
        extra = onnx.GraphProto(initializer=[])
        twice = m.graph.initializer[0].SerializeToString() + _field(9, bytes(40 * 24 * 4))
        del m.graph.initializer[0]
        data = m.SerializeToString() + _field(7, _field(5, twice))
    elif where == "twice":
        m.graph.initializer.append(m.graph.initializer[0])
        data = m.SerializeToString()
    else:
        m.graph.initializer[0].name = ""
        data = m.SerializeToString()
    assert same(read(written(data, tmp_path / "model.onnx")), read(data))


def test_damaged_files_are_what_the_parser_says(tmp_path: Path) -> None:
    rng = random.Random(7)
    data = a_model().SerializeToString()
    differ = []
    for k in range(400):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if k % 3 == 0:
            del damaged[rng.randrange(len(damaged)) :]
        elif k % 3 == 1:
            at = rng.randrange(len(damaged))
            del damaged[at : at + rng.randint(1, 9)]
        if not same(read(written(bytes(damaged), tmp_path / "model.onnx")), read(bytes(damaged))):
            differ.append(k)
    assert not differ


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = written(a_model(), tmp_path / "model.onnx")
    seen = left.Left(path)
    seen.rest()
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelError, match="became shorter"):
        seen.read("w", "here")


def test_another_file_in_its_place_changes_nothing(tmp_path: Path) -> None:
    path = written(a_model(), tmp_path / "model.onnx")
    seen = left.Left(path)
    seen.rest()
    expected = seen.read("w", "here").tobytes()
    other = written(bytes(5000), tmp_path / "other.onnx")
    other.replace(path)
    assert seen.read("w", "here").tobytes() == expected


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    m = a_model()
    os.mkfifo(tmp_path / "model.onnx")
    writer = threading.Thread(target=written, args=(m, tmp_path / "model.onnx"))
    writer.start()
    assert same(read(tmp_path / "model.onnx"), read(m.SerializeToString()))
    writer.join()


def _field(number: int, body: bytes) -> bytes:
    return bytes(_VarintBytes(number << 3 | 2) + _VarintBytes(len(body)) + body)
