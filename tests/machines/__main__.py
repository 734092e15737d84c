"""`python -m tests.machines`: a share of the tests under four pretended machines, other machines and shares each day.

Each machine of `targets/machines.py` runs a share of the tests (`tests/shares.py`) with its caches and
constants (TILEWRIGHT_HOST). `--machines a,b` chooses the machines, `--share K` the share of the first, and what follows
`--` goes to pytest.
"""

from __future__ import annotations

import os

from tests import shares
from tilewright.support import flags
from tilewright.targets.machines import MACHINES

TESTS = ("arith", "builder", "codegen", "compiler", "models", "ops", "plans", "schedule", "transform", "tuning")
"""Folders whose tests compile or decide."""


def chosen(day: int) -> list[str]:
    """The four machines of a day; all have had their turn after three days."""
    names = list(MACHINES)
    return [names[(4 * day + i) % len(names)] for i in range(4)]


def main() -> int:
    options = shares.arguments("python -m tests.machines", __doc__)
    day = shares.today()
    machines = options.machines.split(",") if options.machines else chosen(day)
    first = 4 * day if options.share is None else options.share
    failed = []
    for i, machine in enumerate(machines):
        share = f"{(first + i) % options.shares}/{options.shares}"
        line = [*options.pytest, *(f"tests/{name}" for name in TESTS)]
        if not shares.passes(machine, share, line, os.environ | {flags.HOST.name: machine}):
            failed.append(f"{machine} ({share})")
    return shares.ended(failed)


if __name__ == "__main__":
    raise SystemExit(main())
