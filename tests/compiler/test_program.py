"""Programs for any machine: compiled and saved anywhere, loaded where they run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks import policy_suite
from tilewright.frontend.onnx import left
from tilewright.frontend.read import import_model
from tilewright.runtime import artifact
from tilewright.support.errors import ArtifactError


def test_a_program_is_saved_and_loaded(tmp_path: Path) -> None:
    model = policy_suite.m64()
    program = tw.compile_program(model)
    program.save(tmp_path / "m64.tw", version=3)
    loaded, direct = tw.load(tmp_path / "m64.tw"), tw.compile(model)
    assert loaded.version == 3 and loaded.manifest == direct.manifest
    x = np.linspace(-2, 2, 17, dtype=np.float32).reshape(1, 17)
    for a, b in zip(loaded(x), direct(x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_program_for_another_machine(tmp_path: Path) -> None:
    """The file of such a program is whole, and loading it here is an error that names both machines."""
    program = tw.compile_program(policy_suite.m64(), target="neoverse-v1")
    assert "aarch64" in repr(program)
    path = tmp_path / "m64.tw"
    program.save(path)
    stored, version = artifact.read(path)
    assert version == 0 and dict(stored.objects) == dict(program.objects)
    assert all(image[:4] == b"\x7fELF" and image[18:20] == b"\xb7\x00" for image in stored.objects.values())
    with pytest.raises(ArtifactError, match=r"the code is for another machine.*x86_64.*aarch64"):
        tw.load(path)


def test_weights_are_retained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model keeps the weights that the import has read; a caller's arrays are copied, for they may change."""
    monkeypatch.setattr(left, "LARGE", 1)
    read = import_model(policy_suite.m64())
    for case, shared in ((read, True), ((read.graph, read.weights), False)):
        held = tw.compile(case).weights
        assert held and all(np.shares_memory(held[name], read.weights[name]) == shared for name in held)
