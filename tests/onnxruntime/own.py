"""Runs ONNX Runtime's own Python tests of sessions on `tilewright.onnxruntime`:
`python -m tests.onnxruntime.own onnxruntime/test/python/onnxruntime_test_python.py` of a checkout of ONNX Runtime.

Nothing of the file changes but its imports: `onnxruntime` becomes `tilewright.onnxruntime`. The file looks for its
models in `testdata` below the current folder or beside its own. Each test passes, fails, or does not apply: it says so
itself, or the table below does (the body of many a GPU's test is an `if`, which would pass without one).
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import types
import unittest
import warnings
from pathlib import Path
from typing import Any

NOT_APPLICABLE = {
    "test_adater_export_read": "an adapter (LoRA)",
    "test_get_and_set_tuning_results": "a GPU's",
    "test_model_meta": "a model that is not in the repository",
    "test_multiple_devices": "several GPUs",
    "test_ort_value_dlpack": "is_dlpack_uint8_tensor, which ONNX Runtime's own releases lack",
    "test_ort_value_gh_issue9799": "a GPU's",
    "test_register_custom_e_ps_library": "a library of another execution provider",
    "test_register_custom_ops_library": "a library of custom operators",
    "test_run_model_with_cuda_copy_stream": "a GPU's",
    "test_run_with_adapter": "an adapter (LoRA)",
    "test_session_providers": "a GPU's",
    "test_set_providers": "a GPU's",
    "test_set_providers_with_options": "a GPU's",
    "test_tvm_imported": "another execution provider",
}
"""Tests that say nothing about sessions on the processor, with what they need."""


def load(path: Path, package: str) -> types.ModuleType:
    """The tests as a module whose imports of `onnxruntime` are imports of the package."""
    text = re.sub(r"(?m)^(\s*)import onnxruntime$", rf"\1import {package} as onnxruntime", path.read_text())
    text = re.sub(r"(?m)^(\s*(?:import|from) )onnxruntime\b", rf"\1{package}", text)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.path.insert(0, str(path.parent))  # where helper.py is
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


class _Result(unittest.TestResult):
    """The outcome of each test, by its name: "passes", "fails" or "does not apply", and why."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: dict[str, tuple[str, str]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._note(test, "passes", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        if not hasattr(test, "test_case"):  # of a part: the rest of the test counts
            self._note(test, "does not apply", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, "fails", repr(err[1]))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._note(test, "fails", repr(err[1]))

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, "fails", repr(err[1]))

    def _note(self, test: unittest.TestCase, fate: str, why: str) -> None:
        name = re.sub(r"[ (].*", "", test.id()).rpartition(".")[2]
        if name in NOT_APPLICABLE:
            fate, why = "does not apply", NOT_APPLICABLE[name]
        self.fates[name] = (fate, why.splitlines()[0][:160] if why else "")


def main() -> int:
    """Run a file of tests and print what becomes of each; 1 if one in ten of those that apply does not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a file of onnxruntime/test/python/")
    parser.add_argument("--package", default="tilewright.onnxruntime", help="or onnxruntime, to see what its own does")
    parser.add_argument("--errors", action="store_true", help="print the traceback of each test that fails")
    arguments = parser.parse_args()
    tests = unittest.TestLoader().loadTestsFromModule(load(arguments.path.resolve(), arguments.package))
    result = _Result()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests.run(result)
    for name, (fate, why) in sorted(result.fates.items()):
        print(f"{fate:14} {name}{': ' + why if why else ''}")
    for test, text in (*result.errors, *result.failures) if arguments.errors else ():
        print(f"\n{test}\n{text}")
    counts = collections.Counter(fate for fate, _ in result.fates.values())
    applicable = counts["passes"] + counts["fails"]
    print(f"{counts['passes']} of {applicable} that apply pass, {counts['does not apply']} do not apply")
    return int(counts["passes"] < 0.9 * applicable)


if __name__ == "__main__":
    sys.exit(main())
