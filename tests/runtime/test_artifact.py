"""The `.tw` file: what is saved is loaded, and damage of any kind is told."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from tests.runtime.programs import affine, copy16
from tilewright.native.link import compile_text
from tilewright.runtime import artifact
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program
from tilewright.runtime.specs import ParamSpec, TargetSpec
from tilewright.support.errors import ArtifactError

X = np.linspace(-1, 1, 50, dtype=np.float32)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = Model(affine())
    model.update({"w": np.full((2, 3), 2.5, np.float32), "scale": np.array([9], np.float32)}, version=5)
    model.save(tmp_path / "affine.tw")
    return tmp_path / "affine.tw"


def test_round_trip(saved: Path) -> None:
    original = Model(affine())
    original.update({"w": np.full((2, 3), 2.5, np.float32), "scale": np.array([9], np.float32)})
    for threads in (1, 2):
        model = Model.load(saved, threads=threads)
        assert all((a == b).all() for a, b in zip(model(X), original(X), strict=True))
        assert model.version == 5
        assert model.manifest == original.manifest
        assert model.show("graph") == "affine"
        assert model.update({"w": np.zeros((2, 3), np.float32), "scale": np.array([1], np.float32)}) == 6


def test_same_bytes(saved: Path, tmp_path: Path) -> None:
    Model.load(saved).save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == saved.read_bytes()


def test_fresh_process(saved: Path) -> None:
    expected = Model.load(saved)(X)[0].tobytes().hex()
    code = (
        "import sys, numpy as np; from tilewright.runtime.model import Model;"
        f"y, _ = Model.load({str(saved)!r})(np.linspace(-1, 1, 50, dtype=np.float32));"
        "heavy = ('tilewright.codegen', 'tilewright.schedule', 'torch', 'onnx', 'tvm_ffi');"
        "assert not any(m.startswith(heavy) for m in sys.modules);"
        "print(y.tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_loading_compiles_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Model.load(saved)  # the support code is there
    monkeypatch.setattr("llvmlite.binding.parse_assembly", lambda *_: pytest.fail("something is compiled"))
    assert Model.load(saved)(X)[0].shape == (50, 3)


def test_weights_are_a_safetensors_image(saved: Path) -> None:
    data = saved.read_bytes()
    name, offset, nbytes, _ = struct.unpack_from("<16sQQ16s", data, 64 + 2 * 64)
    assert name.rstrip(b"\0") == b"weights"
    tensors = load_safetensors(data[offset : offset + nbytes])
    assert (tensors["w"] == 2.5).all()
    assert tensors["scale"].tolist() == [9]


def test_every_flipped_bit(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    rng = random.Random(0)
    header = range(40 * 8)
    table = [8 * byte + rng.randrange(8) for byte in range(40, 64 * 5)]
    for bit in [*header, *table, *rng.sample(range(len(data) * 8), 300)]:
        data[bit // 8] ^= 1 << bit % 8
        saved.write_bytes(data)
        with pytest.raises(ArtifactError, match=r"affine\.tw"):
            artifact.read(saved)
        data[bit // 8] ^= 1 << bit % 8
    saved.write_bytes(data)
    artifact.read(saved)


def test_truncated_and_extended(saved: Path) -> None:
    data = saved.read_bytes()
    for length in [0, 1, 7, 8, 63, 64, 100, 320, len(data) // 2, len(data) - 64, len(data) - 1]:
        saved.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            artifact.read(saved)
    saved.write_bytes(data + b"\0")
    with pytest.raises(ArtifactError, match="more bytes than it says"):
        artifact.read(saved)


def resealed(data: bytearray) -> bytes:
    """The header's digest made right again, as a hostile writer would."""
    import hashlib

    count = struct.unpack_from("<I", data, 12)[0]
    end = min(len(data), 64 + count * 64)
    data[24:40] = bytes(16)
    data[24:40] = hashlib.blake2b(bytes(data[:40]) + bytes(24) + bytes(data[64:end]), digest_size=16).digest()
    return bytes(data)


def test_newer_version(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[8] = 2
    saved.write_bytes(resealed(data))
    with pytest.raises(ArtifactError, match="written by a newer version: expected format <= 1, got 2"):
        Model.load(saved)


def test_absurd_lengths(saved: Path) -> None:
    original = saved.read_bytes()
    for at, value in [
        (12, 2**32 - 1),
        (12, 0),
        (12, 65),
        (80, 2**63),
        (80, 0),
        (88, 2**63),
        (88, 2**64 - 1),
        (16, 2**60),
    ]:
        data = bytearray(original)
        size = 4 if at == 12 else 8
        data[at : at + size] = value.to_bytes(size, "little")
        saved.write_bytes(resealed(data))
        with pytest.raises(ArtifactError):
            artifact.read(saved)


def test_resealed_mutants_never_crash(saved: Path) -> None:
    """Sections with right digests and wrong content: refused, or read as something consistent."""
    program = affine()
    rng = random.Random(7)
    text = program.manifest.to_json()
    for _ in range(150):
        k = rng.randrange(len(text))
        mutated = text[:k] + rng.choice(["9", "-", '"', "[", "", "x"]) + text[k + 1 :]
        broken = type("M", (), {"to_json": lambda self, t=mutated: t, "params": program.manifest.params})()
        artifact.write(saved, dataclasses.replace(program, manifest=broken), 0)
        with contextlib.suppress(ArtifactError):
            artifact.read(saved)


def test_a_file_with_several_problems_is_named(saved: Path) -> None:
    program = affine()
    text = program.manifest.to_json().replace('"y"', '""').replace('"c"', '""')
    broken = type("M", (), {"to_json": lambda self: text, "params": program.manifest.params})()
    artifact.write(saved, dataclasses.replace(program, manifest=broken), 0)
    with pytest.raises(ArtifactError, match=r"affine\.tw(.|\n)*not consistent") as caught:
        artifact.read(saved)
    assert len(caught.value.problems) > 1


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"nowhere\.tw.*cannot be read"):
        Model.load(tmp_path / "nowhere.tw")
    with pytest.raises(ArtifactError):
        Model.load(tmp_path)
    (tmp_path / "text.tw").write_text("hello" * 100)
    with pytest.raises(ArtifactError, match=r"text\.tw: not a \.tw file"):
        Model.load(tmp_path / "text.tw")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (TargetSpec("aarch64-unknown-linux-gnu", "neoverse-n1"), "for another machine"),
        (TargetSpec("x86_64-pc-windows-msvc", "znver4"), "for another machine"),
        (dataclasses.replace(copy16().manifest.target, features=("amx-teapot",)), "lacks features: amx-teapot"),
    ],
)
def test_other_machines(tmp_path: Path, target: TargetSpec, message: str) -> None:
    program = copy16()
    artifact.write(
        tmp_path / "m.tw",
        dataclasses.replace(program, manifest=dataclasses.replace(program.manifest, target=target)),
        0,
    )
    with pytest.raises(ArtifactError, match=message):
        Model.load(tmp_path / "m.tw")


@pytest.mark.parametrize(
    "objects",
    [
        {},
        {"a": b""},
        {"a": b"\x7fELF" + bytes(200)},
        {"a": b"not an object at all, but long enough to look like one" * 3},
        {"a": compile_text("define void @tw_run() { ret void }")},
        {"a": copy16().objects["copy"], "b": copy16().objects["copy"]},
    ],
)
def test_objects_that_do_not_fit(tmp_path: Path, objects: dict[str, bytes]) -> None:
    artifact.write(tmp_path / "m.tw", dataclasses.replace(copy16(), objects=objects), 0)
    with pytest.raises(ArtifactError, match="does not hold a program that fits together"):
        Model.load(tmp_path / "m.tw")


def test_save_is_all_or_nothing(saved: Path, tmp_path: Path) -> None:
    before = saved.read_bytes()
    program = dataclasses.replace(affine(), texts={"llvm": lambda: 1 / 0})
    with pytest.raises(ZeroDivisionError):
        artifact.write(saved, program, 0)
    assert saved.read_bytes() == before
    with pytest.raises(ArtifactError, match="cannot be written"):
        Model(affine()).save(tmp_path / "no" / "such" / "folder.tw")
    assert [p.name for p in tmp_path.iterdir()] == ["affine.tw"]


def test_loaded_model_outlives_its_file(saved: Path) -> None:
    model = Model.load(saved)
    expected = model(X)[0]
    Model(copy16()).save(saved)
    assert (model(X)[0] == expected).all()
    saved.unlink()
    assert (model(X)[0] == expected).all()


def test_all_dtypes_and_empty_weights(tmp_path: Path) -> None:
    import ml_dtypes

    types = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64, "bool": np.bool_, "i4": ml_dtypes.int4,
             "u8": np.uint8, "i64": np.int64, "u16": np.uint16}  # fmt: skip
    params = tuple(ParamSpec(f"p {name}", name, (3, 5)) for name in types) + (ParamSpec("none", "f32", (0, 4)),)
    weights = {f"p {name}": (np.arange(15) % 7).reshape(3, 5).astype(t) for name, t in types.items()}
    weights["none"] = np.zeros((0, 4), np.float32)
    base = copy16()
    manifest = dataclasses.replace(base.manifest, params=params)
    artifact.write(tmp_path / "m.tw", dataclasses.replace(base, manifest=manifest, weights=weights), 3)
    model = Model.load(tmp_path / "m.tw")
    for name, array in weights.items():
        assert model.weights[name].dtype == array.dtype
        assert (model.weights[name] == array).all()
        assert model.weights[name].ctypes.data % 64 == 0


def test_large_model_loads_fast(tmp_path: Path) -> None:
    params = tuple(ParamSpec(f"w{k}", "f32", (1024, 1024)) for k in range(25))
    weights = {p.name: np.full(p.shape, k, np.float32) for k, p in enumerate(params)}
    base = copy16()
    program = dataclasses.replace(base, manifest=dataclasses.replace(base.manifest, params=params), weights=weights)
    artifact.write(tmp_path / "large.tw", program, 0)
    times = []
    for _ in range(4):
        start = time.process_time()
        Model.load(tmp_path / "large.tw")
        times.append(time.process_time() - start)
    assert min(times) < 0.5


def test_manifest_is_readable_text(saved: Path) -> None:
    data = saved.read_bytes()
    offset, nbytes = struct.unpack_from("<QQ", data, 64 + 16)
    first, rest = data[offset : offset + nbytes].split(b"\n", 1)
    assert json.loads(first)["weights_version"] == 5
    assert Manifest.from_json(rest.decode()) == affine().manifest


def test_program_without_texts(tmp_path: Path) -> None:
    base = copy16()
    artifact.write(tmp_path / "m.tw", Program(base.manifest, base.objects), 0)
    from tilewright.support.errors import CallError

    with pytest.raises(CallError, match="expected one of memory"):
        Model.load(tmp_path / "m.tw").show("graph")


def test_code_without_weights(tmp_path: Path) -> None:
    model = Model(affine())
    program = Program(model.manifest, affine().objects, affine().weights, {})
    artifact.write(tmp_path / "code.tw", program, 3, code_only=True)
    bare, version = artifact.read(tmp_path / "code.tw", code_only=True)
    assert version == 3
    assert bare.manifest == model.manifest
    assert set(bare.weights) == {p.name for p in model.manifest.params if p.fixed}
    assert bare.objects == program.objects
    with pytest.raises(ArtifactError, match="holds code without weights"):
        Model.load(tmp_path / "code.tw")
    data = b"".join(bytes(part) for part in artifact.encode(program, 3, code_only=True))
    assert data == (tmp_path / "code.tw").read_bytes()
