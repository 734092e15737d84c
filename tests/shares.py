"""Runs of a share of the tests on each of several machines: each has the share after that of the one before it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARES = 16
"""Shares into which the tests are divided."""


def today() -> int:
    """The number of the day, by which machines and shares take turns."""
    return int(time.time()) // 86400


def arguments(prog: str, description: str | None) -> argparse.Namespace:
    """The command line: machines, which share the first one has, and what goes to pytest."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--machines", help="names with commas between, in place of the usual ones")
    parser.add_argument("--share", type=int, help="the first machine's share, in place of the day's")
    parser.add_argument("--shares", type=int, default=SHARES, help="into how many shares the tests are divided")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest")
    return parser.parse_args()


def passes(machine: str, share: str, line: Sequence[str], environment: Mapping[str, str] | None = None) -> bool:
    """Whether the tests of a share, such as 3/16, pass by pytest with these arguments."""
    print(f"==> share {share} on {machine}", flush=True)
    command = [sys.executable, "-m", "pytest", "--share", share, *line]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode in (0, 5)  # 5: no test is in the share


def ended(failed: Sequence[str]) -> bool:
    """Say what has failed; whether anything has, which is the status of the process."""
    if failed:
        print(f"failed on {', '.join(failed)}", file=sys.stderr)
    return bool(failed)
