"""`python -m tests.emulated`: a share of the tests of operators and plans on each emulated machine, another each day.

`--machines a,b` chooses the machines, `--share K` the share of the first (the next one has the next share),
`--shares N` into how many they are divided, and what follows `--` goes to pytest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.emulated.machines import MACHINES

ROOT = Path(__file__).parents[2]
TESTS = ("tests/ops", "tests/plans")
SHARES = 16


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulated", description=__doc__)
    parser.add_argument("--machines", help="names with commas between; all if left out")
    parser.add_argument("--share", type=int, help="the first machine's share, in place of the day's")
    parser.add_argument("--shares", type=int, default=SHARES, help="into how many shares the tests are divided")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest")
    options = parser.parse_args()
    first = int(time.time()) // 86400 if options.share is None else options.share
    failed = []
    for i, name in enumerate(options.machines.split(",") if options.machines else MACHINES):
        if (missing := MACHINES[name].missing) is not None:
            print(f"==> {name} is left out: there is no {missing}", flush=True)
            continue
        share = f"{(first + i) % options.shares}/{options.shares}"
        print(f"==> share {share} on {name}", flush=True)
        line = [sys.executable, "-m", "pytest", "-q", "-p", "tests.emulated.plugin", "--emulator", name]
        run = subprocess.run([*line, "--share", share, *options.pytest, *TESTS], cwd=ROOT)
        if run.returncode not in (0, 5):  # 5: no test is in the share
            failed.append(f"{name} ({share})")
    if failed:
        print(f"failed on {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
