"""Real models in the wrong hands: bad arguments, bad weights, damaged files. A clear error, and nothing has changed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fuzz import artifacts
from tests.models import cases
from tests.models.cases import Case, bytes_of
from tilewright.runtime import artifact
from tilewright.support.errors import ArtifactError, CallError, WeightError

NAMES = ("m64", "nl", "az6")


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    return cases.load(request.param)


# --- calls ----------------------------------------------------------------------------------------------------------


def test_wrong_arguments(case: Case) -> None:
    inputs = case.inputs(2)
    expected = bytes_of(case.model.run(inputs))
    for name, array in inputs.items():
        wrong: dict[str, Any] = {
            "rank": array[None],
            "element type": array.astype(np.float64),
            "dimension": np.concatenate([array, array], axis=-1) if array.ndim > 1 else array[:0],
            "of a call": None,
            "text": "text",
            "object": np.full(array.shape, None, object),
        }
        for bad in wrong.values():
            with pytest.raises(CallError, match=name):
                case.model.run({**inputs, name: bad})
        with pytest.raises(CallError, match=name):
            case.model.run({k: v for k, v in inputs.items() if k != name})
    with pytest.raises(CallError, match="surprise"):
        case.model.run({**inputs, "surprise": np.zeros(3)})
    with pytest.raises(CallError, match="number of inputs"):
        case.model(*inputs.values(), np.zeros(3))
    assert bytes_of(case.model.run(inputs)) == expected


def test_inputs_that_are_not_contiguous(case: Case) -> None:
    inputs = case.inputs(2)
    expected = bytes_of(case.model.run(inputs))
    strided = {k: np.repeat(v, 2, axis=-1)[..., ::2] for k, v in inputs.items()}
    fortran = {k: np.asfortranarray(v) for k, v in inputs.items()}
    backwards = {k: v[..., ::-1].copy()[..., ::-1] for k, v in inputs.items()}
    for feed in (strided, fortran, backwards):
        assert bytes_of(case.model.run(feed)) == expected


def test_wrong_outputs(case: Case) -> None:
    inputs = case.inputs(2)
    good = {k: np.zeros_like(v) for k, v in case.model.run(inputs).items()}
    for name, array in good.items():
        read_only = array.copy()
        read_only.flags.writeable = False
        for bad in (array[:0], array.astype(np.float64), read_only, 3, array[..., None]):
            with pytest.raises(CallError, match=name):
                case.model.run(inputs, out={**good, name: bad})


# --- weights --------------------------------------------------------------------------------------------------------


def test_refused_updates_change_nothing(case: Case) -> None:
    inputs = case.inputs(2)
    expected, version = bytes_of(case.model.run(inputs)), case.model.version
    weights = case.other_weights(seed=3)
    weights = {p.name: weights[p.name] for p in case.model.params}
    last = list(weights)[-1]
    nan = weights[last].copy()
    nan.flat[-1] = np.nan
    wrong = [
        ({k: v for k, v in weights.items() if k != last}, last),
        ({**weights, "surprise": np.zeros(3, np.float32)}, "surprise"),
        ({**weights, last: weights[last][None]}, last),
        ({**weights, last: weights[last].astype(np.float64)}, last),
        ({**weights, last: weights[last].reshape(-1)[:-1]}, last),
        ({**weights, last: nan}, last),
        ({**weights, last: None}, last),
    ]
    for bad, name in wrong:
        with pytest.raises(WeightError) as caught:
            case.model.update(bad)
        assert name in str(caught.value)
        assert case.model.version == version
        assert bytes_of(case.model.run(inputs)) == expected


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(case: Case, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "model.tw"
    case.model.save(path)
    return path.read_bytes()


def refused(data: bytes | bytearray, folder: Path, match: str = r"model\.tw") -> None:
    path = folder / "model.tw"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=match):
        tw.load(path)


def test_flipped_bits_in_every_section(saved: bytes, tmp_path: Path) -> None:
    rng = random.Random(1)
    places = [8 * k + rng.randrange(8) for k in range(64)]
    at = 0
    for name, content in artifacts.sections(saved):
        at = saved.index(content, at) if content else at
        ends = [at, at + len(content) - 1]
        places += [8 * byte + rng.randrange(8) for byte in (*ends, *(rng.randrange(at, ends[1]) for _ in range(4)))]
        assert name in ("manifest", "objects", "weights", "texts")
    for bit in places:
        data = bytearray(saved)
        data[bit // 8] ^= 1 << bit % 8
        refused(data, tmp_path)


def test_cut_off_anywhere(saved: bytes, tmp_path: Path) -> None:
    rng = random.Random(2)
    for length in (0, 1, 63, 64, 320, len(saved) - 1, *(rng.randrange(len(saved)) for _ in range(20))):
        refused(saved[:length], tmp_path)
    refused(saved + saved[:64], tmp_path)


def test_newer_version(saved: bytes, tmp_path: Path) -> None:
    refused(artifacts.sealed(artifacts.sections(saved), artifact.FORMAT_VERSION + 1), tmp_path, "newer version")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"x86_64', b'"riscv64', "another machine"),
        (b'"aarch64', b'"riscv64', "another machine"),
        (b'"+fma"', b'"+amx-teapot"', "amx-teapot"),
        (b'"fma"', b'"amx-teapot"', "amx-teapot"),
    ],
)
def test_code_of_another_machine(saved: bytes, tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    parts = dict(artifacts.sections(saved))
    if old not in parts["manifest"]:
        pytest.skip("this machine's manifest does not say so")
    parts["manifest"] = parts["manifest"].replace(old, new, 1)
    refused(artifacts.sealed(list(parts.items())), tmp_path, message)


def test_failed_save_leaves_nothing(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.tw"
    case.model.save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match="No space left"):
        case.model.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.tw"]
