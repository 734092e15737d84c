"""PyTorch's own tests of `torch.distributed` on our backend.

    python -m tests.collective.pytorch_suite [--ranks 3] [--match all_reduce] [--every 4]

Each test runs in processes that are copies of this one. Prints the tests that fail and those that are skipped, with the
reason; exits with 1 if fewer than 95 % of what applies to CPUs pass.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import unittest
from collections import Counter
from typing import Any

BAR = 0.95


def suite_class() -> type[unittest.TestCase]:
    """PyTorch's test case with its backend set to ours; WORLD_SIZE and TEMP_DIR are in the environment.

    Whether a test applies is decided while its module is imported, by the backend's name. It is therefore imported as
    for Gloo, which computes on CPUs, and as for MPI, which has tests of its own of all-to-all.
    """
    import torch

    import tilewright.collective  # noqa: F401 - registers the backend

    modules = [_tests_of(backend) for backend in ("gloo", "mpi")]
    os.environ["BACKEND"] = "tilewright"
    for module in modules:
        module.BACKEND = _LikeGloo("tilewright")
    base, others = (module.DistributedTest._DistTestBase for module in modules)

    class TestTilewright(modules[0].TestDistBackend, base):  # type: ignore[misc, valid-type]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    for name in unittest.TestLoader().getTestCaseNames(base):
        if _is_skipped(getattr(base, name)) and not _is_skipped(getattr(others, name)):
            setattr(TestTilewright, name, getattr(others, name))
    return TestTilewright


def _tests_of(backend: str) -> Any:
    """PyTorch's module of tests, as it is for a backend."""
    os.environ["BACKEND"] = backend
    name = "torch.testing._internal.distributed.distributed_test"
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.setdefault(name, module)  # its classes travel between ranks by name
    return module


class _LikeGloo(str):
    """The name of a backend whose tests do what they do for Gloo."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def _is_skipped(test: Any) -> bool:
    return bool(getattr(test, "__unittest_skip__", False))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--match", default="", help="only tests whose names hold this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one test of N")
    options = parser.parse_args(arguments)
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
