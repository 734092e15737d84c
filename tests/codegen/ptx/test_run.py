"""The command line of the run over whole models."""

from __future__ import annotations

import sys

import pytest

from tests.codegen.ptx import run


def test_unknown_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "--models", "m64,m63"])
    with pytest.raises(SystemExit) as caught:
        run.main()
    assert caught.value.code == 2
    assert "no model is called m63: there are m64," in capsys.readouterr().err
