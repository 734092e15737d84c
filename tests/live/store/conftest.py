"""Files of the telling models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.store.lab import WIDTHS, telling_model


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
