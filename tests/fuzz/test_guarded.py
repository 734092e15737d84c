"""Random symbolic models at sizes from 0 up, between pages that nobody may touch: none reads or writes outside of its
inputs and outputs. `TILEWRIGHT_FUZZ` is how many models are tried."""

from __future__ import annotations

import os
import subprocess
import sys

COUNT = int(os.environ.get("TILEWRIGHT_FUZZ", "6"))


def test_nothing_is_read_or_written_outside() -> None:
    for first, count in ((9, 1), (44, 1), (1000, COUNT)):
        command = [sys.executable, "-m", "tests.fuzz.guarded", str(first), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1:]
        assert done.returncode == 0, f"ended with {done.returncode} at {last}: {done.stderr[-2000:]}"
        assert last[0].startswith("ran ")
