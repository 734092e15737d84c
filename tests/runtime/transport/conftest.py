"""A folder of stores for each test, two structures of the telling model, and a log that no test may overlook."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.weights.lab import WIDTHS, telling_model
from tilewright.runtime.model import Model


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
def models() -> tuple[Model, Model]:
    """The telling model in two structures."""
    return telling_model(WIDTHS[0]), telling_model(WIDTHS[1])
