"""`tilewright coverage FILE:FUNCTION`: what becomes of a PyTorch module, with the line of its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.cli.coverage import coverage

pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

SOURCE = """
import torch

class Spectrum(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.linalg.matrix_exp(torch.relu(x) * 2) + 1).sum(-1)

def make():
    return Spectrum(), torch.randn(8, 8)
"""


def test_a_module_by_its_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spectrum.py"
    file.write_text(SOURCE)
    coverage(f"{file}:make")
    text = capsys.readouterr().out
    assert "operators are compiled" in text and "linalg_matrix_exp" in text and "spectrum.py" in text
