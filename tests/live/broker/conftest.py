"""The recurrent policy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.broker.lab import recurrent_policy


@pytest.fixture(scope="session")
def policy() -> Any:
    return recurrent_policy()
