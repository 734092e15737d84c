"""The demonstration of `make demo-serve` runs through, with a load that any machine can do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def test_demo(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.serving_demo", "--seconds", "0.8", "--capacity", "60"]
    environment = os.environ | {"TILEWRIGHT_STORE_DIR": str(tmp_path)}
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=True).stdout
    assert "weights are version" in page
    assert len(re.findall(r"offered, \d+/s in time", page)) == 3
    assert not list(tmp_path.iterdir())  # the store is gone
