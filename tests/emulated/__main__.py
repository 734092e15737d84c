"""`python -m tests.emulated`: a share of the tests of operators and plans on each emulated machine, another each day.

`--machines a,b` chooses the machines, `--share K` the share of the first (the next one has the next share),
`--shares N` into how many they are divided, and what follows `--` goes to pytest.
"""

from __future__ import annotations

from tests import shares
from tests.emulated.machines import MACHINES

TESTS = ("tests/ops", "tests/plans")


def main() -> int:
    options = shares.arguments("python -m tests.emulated", __doc__)
    first = shares.today() if options.share is None else options.share
    failed = []
    for i, name in enumerate(options.machines.split(",") if options.machines else MACHINES):
        if (missing := MACHINES[name].missing) is not None:
            print(f"==> {name} is left out: there is no {missing}", flush=True)
            continue
        share = f"{(first + i) % options.shares}/{options.shares}"
        line = ["-q", "-p", "tests.emulated.plugin", "--emulator", name, *options.pytest, *TESTS]
        if not shares.passes(name, share, line):
            failed.append(f"{name} ({share})")
    return shares.ended(failed)


if __name__ == "__main__":
    raise SystemExit(main())
