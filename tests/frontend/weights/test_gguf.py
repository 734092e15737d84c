"""GGUF files against the package `gguf`, which llama.cpp's authors publish."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import tilewright as tw
from tests.frontend.weights.models import products
from tilewright.frontend.weights.coded import CodedWeight
from tilewright.support.errors import Error, ModelError

BLOCK_BYTES = {
    Type.Q4_0: (32, 18),
    Type.Q4_1: (32, 20),
    Type.Q8_0: (32, 34),
    Type.Q4_K: (256, 144),
    Type.Q6_K: (256, 210),
}


def blocks(kind: Type, rows: int, depth: int, rng: np.random.Generator) -> np.ndarray:
    """Random blocks, u8[rows, bytes], whose scales are numbers of a sensible size."""
    elements, nbytes = BLOCK_BYTES[kind]
    data = rng.integers(0, 256, (rows, depth // elements, nbytes)).astype(np.uint8)
    scales = (rng.random((rows, depth // elements, 2)).astype(np.float16) / 64).view(np.uint8)
    if kind is Type.Q6_K:
        data[..., 208:210] = scales[..., :2]
    else:
        data[..., : 4 if kind in (Type.Q4_1, Type.Q4_K) else 2] = scales[
            ..., : 4 if kind in (Type.Q4_1, Type.Q4_K) else 2
        ]
    return data.reshape(rows, -1)


def write(path: Path, tensors: dict[str, tuple[np.ndarray, Type | None]]) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_string("general.name", "a model")
    writer.add_array("words", ["a", "b", "c"])
    writer.add_array("numbers", [1, 2, 3])
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_the_numbers_are_those_of_the_package(kind: Type, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    data = blocks(kind, 6, 512, rng)
    real = rng.standard_normal((3, 4)).astype(np.float32)
    file = write(tmp_path / "m.gguf", {"w": (data, kind), "f32": (real, None), "f16": (real.astype(np.float16), None)})
    tensors = tw.read_weights(file)
    wanted = gguf.quants.dequantize(data, kind)
    coded = tensors["w"]
    assert isinstance(coded, CodedWeight) and coded.shape == (6, 512) and coded.paired == kind.name.startswith("Q4")
    np.testing.assert_array_equal(coded.numpy(), wanted)
    np.testing.assert_array_equal(tensors["f32"], real)
    np.testing.assert_array_equal(tensors["f16"], real.astype(np.float16))


def test_what_the_package_quantises_is_read(tmp_path: Path) -> None:
    w = np.random.default_rng(6).standard_normal((8, 64)).astype(np.float32)
    data = gguf.quants.quantize(w, Type.Q8_0)
    coded = tw.read_weights(write(tmp_path / "m.gguf", {"w": (data, Type.Q8_0)}))["w"]
    assert isinstance(coded, CodedWeight) and np.abs(coded.numpy() - w).max() < 0.02


@pytest.mark.daily(4)
@pytest.mark.parametrize("kind", BLOCK_BYTES)
@pytest.mark.parametrize("transposed", [False, True])
def test_models_multiply_the_codes(kind: Type, transposed: bool, tmp_path: Path) -> None:
    """Weights of a file in the place of a model's, which stay codes."""
    rng = np.random.default_rng(7)
    data = blocks(kind, 24, 512, rng)
    file = write(tmp_path / "m.gguf", {"blk.w": (data, kind)})
    wanted = gguf.quants.dequantize(data, kind).astype(np.float64)
    read = tw.with_weights(products(512, 24, transposed), file, rename={"blk.w": "w"})
    model = tw.compile(read)
    assert "codes" in " ".join(step.label for step in model.manifest.run_steps)
    x = rng.standard_normal((2, 512)).astype(np.float32)
    np.testing.assert_allclose(
        model(x), x @ wanted.T, rtol=0, atol=3e-6 * np.abs(wanted).sum(1).max() * np.abs(x).max()
    )


def test_names_and_shapes_that_do_not_fit_are_listed() -> None:
    coded = CodedWeight(np.zeros((24, 1, 32), np.int8), np.ones((24, 1), np.float32))
    with pytest.raises(ModelError, match=r"(?s)no such weight.*another shape"):
        tw.with_weights(products(64, 24, False), {"v": coded, "w": coded})


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    """A file cut at any place, and one with any byte changed, is read or is one error, and takes no memory."""
    rng = np.random.default_rng(8)
    good = write(tmp_path / "m.gguf", {"w": (blocks(Type.Q4_K, 2, 256, rng), Type.Q4_K)}).read_bytes()
    bad = tmp_path / "bad.gguf"
    for cut in [*range(0, len(good) - 300, 7), len(good) - 1]:
        bad.write_bytes(good[:cut])
        with pytest.raises(ModelError):
            tw.read_weights(bad)
    for _ in range(300):
        changed = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            changed[int(rng.integers(0, 400))] = int(rng.integers(0, 256))
        bad.write_bytes(changed)
        with contextlib.suppress(Error):
            tw.read_weights(bad)
    huge = b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63)
    bad.write_bytes(huge)
    with pytest.raises(ModelError, match="ends early"):
        tw.read_weights(bad)
