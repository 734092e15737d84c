"""The runner of ONNX Runtime's own tests: what it says of tests that pass, fail, and do not apply."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import unittest
import onnxruntime
import onnxruntime as onnxrt
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from helper import ONE

class TestSessions(unittest.TestCase):
    def test_right(self):
        from onnxruntime import SessionOptions
        self.assertIn("Tilewright", onnxrt.get_build_info())
        self.assertIs(onnxruntime.SessionOptions, SessionOptions)
        for one in (ONE, 2):
            with self.subTest(one=one):
                if one == 2:
                    self.skipTest("a part")

    def test_wrong(self):
        self.assertTrue(False)

    def test_right_again(self):
        pass

    def test_multiple_devices(self):
        raise Fail("no devices")

    @unittest.skip("on Tuesdays")
    def test_skipped(self):
        pass
"""
WANT = """\
does not apply test_multiple_devices: several GPUs
passes         test_right
passes         test_right_again
does not apply test_skipped: on Tuesdays
fails          test_wrong: AssertionError('False is not true')
2 of 3 that apply pass, 2 do not apply
"""


def test_each_test_passes_fails_or_does_not_apply(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("ONE = 1")
    (tmp_path / "tests_of_theirs.py").write_text(TESTS)
    command = [sys.executable, "-m", "tests.onnxruntime.own", "tests_of_theirs.py"]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.stdout == WANT, done.stderr
    assert done.returncode == 1  # less than nine of ten
