"""Stores of these tests stand in a folder of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # one machine, one user


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a store that no other store has."""
    with tempfile.TemporaryDirectory(prefix="tilewright-rl-", dir="/dev/shm") as folder:
        monkeypatch.setenv("TILEWRIGHT_STORE_DIR", folder)
        yield "policy"
