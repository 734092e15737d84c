"""`python -m tests.machines`: a share of the tests under four pretended machines, other machines and shares each day.

Each machine of `targets/machines.py` runs the tests of one of `SHARES` shares (`pytest --share`) with its caches and
constants (TILEWRIGHT_HOST). `--machines a,b` chooses the machines, `--share K` the share of the first, and what follows
`--` goes to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tilewright.support import flags
from tilewright.targets.machines import MACHINES

ROOT = Path(__file__).parents[2]
TESTS = ("arith", "builder", "codegen", "compiler", "models", "ops", "plans", "schedule", "transform", "tuning")
"""Folders whose tests compile or decide."""
SHARES = 16
"""Shares of the tests; a run takes four of them."""


def chosen(day: int) -> list[str]:
    """The four machines of a day; all have had their turn after three days."""
    names = list(MACHINES)
    return [names[(4 * day + i) % len(names)] for i in range(4)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("--machines", help="names with commas between, in place of those of the day")
    parser.add_argument("--share", type=int, help=f"the first machine's share of {SHARES}, in place of the day's")
    parser.add_argument("--shares", type=int, default=SHARES, help="into how many shares the tests are divided")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest")
    options = parser.parse_args()
    day = int(time.time()) // 86400
    machines = options.machines.split(",") if options.machines else chosen(day)
    first = 4 * day if options.share is None else options.share
    failed = []
    for i, machine in enumerate(machines):
        share = f"{(first + i) % options.shares}/{options.shares}"
        print(f"==> share {share} under {flags.HOST.name}={machine}", flush=True)
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "--share", share, *options.pytest, *(f"tests/{name}" for name in TESTS)],
            cwd=ROOT,
            env=os.environ | {flags.HOST.name: machine},
        )
        if run.returncode not in (0, 5):  # 5: no test is in the share
            failed.append(f"{machine} ({share})")
    if failed:
        print(f"failed under {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
