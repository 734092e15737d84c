"""A folder of stores for each test that asks, in shared memory where there is some."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where stores are, for this process and its children."""
    shm = Path("/dev/shm")
    base = shm if shm.is_dir() and os.access(shm, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="tilewright-test-", dir=base))
    monkeypatch.setenv("TILEWRIGHT_STORE_DIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
