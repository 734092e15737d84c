"""A store folder of its own for each test, in shared memory where there is some, and files of the telling models."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.weights.lab import WIDTHS, telling_model


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where stores are, for this process and its children."""
    shm = Path("/dev/shm")
    base = shm if shm.is_dir() and os.access(shm, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="tilewright-test-", dir=base))
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def telling(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """telling.tw in its two structures."""
    folder = tmp_path_factory.mktemp("telling")
    paths = []
    for width in WIDTHS:
        path = folder / f"telling{width}.tw"
        telling_model(width).save(path)
        paths.append(path)
    return paths[0], paths[1]
