"""PyTorch's own tests of `torch.distributed` on our backend.

    python -m tests.collective.pytorch_suite [--ranks 3] [--match all_reduce] [--every 4]

Each test runs in processes that are copies of this one. Prints the tests that fail and those that are skipped, with the
reason; exits with 1 if fewer than 95 % of what applies to CPUs pass.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import unittest
from collections import Counter

BAR = 0.95


def suite_class() -> type[unittest.TestCase]:
    """PyTorch's test case with its backend set to ours; BACKEND, WORLD_SIZE and TEMP_DIR are in the environment."""
    import torch
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    import tilewright.collective  # noqa: F401 - registers the backend

    for feature in ("ddp", "subgroup"):
        common_distributed.DistTestCases.backend_feature[feature].add("tilewright")

    class TestTilewright(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return TestTilewright


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--match", default="", help="only tests whose names hold this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one test of N")
    options = parser.parse_args(arguments)
    os.environ.setdefault("BACKEND", "tilewright")
    os.environ["WORLD_SIZE"] = str(options.ranks)
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    os.environ["INIT_METHOD"] = f"file://{os.environ['TEMP_DIR']}/shared"

    case = suite_class()
    names = [name for name in unittest.TestLoader().getTestCaseNames(case) if options.match in name][:: options.every]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(case(name) for name in names))
    wrong = [test.id().rsplit(".", 1)[1] for test, _ in (*result.failures, *result.errors)]
    skipped = Counter(reason for _, reason in result.skipped)
    ran = len(names) - len(result.skipped)
    for reason, count in skipped.most_common():
        print(f"{count:4} skipped: {reason.strip().splitlines()[0][:150]}")
    print(f"{ran - len(wrong)} of {ran} pass; fail: {', '.join(wrong) or 'none'}")
    return int(ran - len(wrong) < BAR * ran)


if __name__ == "__main__":
    sys.exit(main())
