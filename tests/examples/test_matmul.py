"""The example runs, and each of its steps computes the product."""

from __future__ import annotations

import pytest

from examples import matmul


def test_steps_on_a_small_product(capsys: pytest.CaptureFixture[str]) -> None:
    # Whether it beats NumPy is not asked here: the product is small and the machine busy.
    assert matmul.main(["--size", "64", "--rounds", "3"]) in (0, 1)
    shown = capsys.readouterr().out
    for step in ("naive", "tiled", "reordered", "vectorised", "packed", "register-tiled", "parallel"):
        assert f"=== {step}: " in shown
    assert "of NumPy's speed" in shown
