"""Two structures of the telling model, and a log that no test may overlook."""

from __future__ import annotations

import pytest

from tests.live.store.lab import WIDTHS, telling_model
from tilewright.runtime.model import Model


@pytest.fixture(scope="session")
def models() -> tuple[Model, Model]:
    """The telling model in two structures."""
    return telling_model(WIDTHS[0]), telling_model(WIDTHS[1])
