"""`tilewright coverage FILE:FUNCTION`: what becomes of a PyTorch module, with the line of its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.cli.main import main

pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

SOURCE = """
import torch

class Spectrum(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.linalg.matrix_exp(torch.relu(x) * 2) + 1).sum(-1)

def make():
    return Spectrum(), torch.randn(8, 8)
"""


def test_a_module_by_its_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spectrum.py"
    file.write_text(SOURCE)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.argv", ["tilewright", "coverage", f"{file}:make"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    text = capsys.readouterr().out
    assert "operators are compiled" in text and "linalg_matrix_exp" in text and "spectrum.py" in text
