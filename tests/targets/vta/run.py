"""Many random programs, each with its tokens taken out one by one: `make vta`, which no test has the time for.

Prints how many programs were looked at; fails at the first of which the checker says too little or too much.
"""

from __future__ import annotations

import argparse
import time

from tests.targets.vta.test_order import examine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--length", type=int, default=14)
    options = parser.parse_args()
    begin, total = time.monotonic(), 0
    for k in range(options.programs):
        total += examine(options.seed + k, options.length)
        if (k + 1) % 100 == 0:
            seconds = time.monotonic() - begin
            print(f"{k + 1} programs, {total} with those that lack a token, {seconds:.0f} s", flush=True)
    print(f"{options.programs} programs, {total - options.programs} tokens taken out: nothing unnoticed, nothing false")


if __name__ == "__main__":
    main()
