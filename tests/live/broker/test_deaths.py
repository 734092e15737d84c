"""Processes are forked and killed: living processes go on, and no call waits for the dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.live.broker.stage import SCENES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, policy: Any, store: Path, tmp_path: Path) -> None:
    program = tmp_path / "policy.tw"
    policy.save(program)
    done = subprocess.run(
        [sys.executable, "-m", "tests.live.broker.stage", scene, str(program)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
