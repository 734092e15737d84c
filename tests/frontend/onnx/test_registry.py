"""The registry has the rules of ONNX's operators, whether their file is imported at the start or when it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.frontend.onnx import rules
from tilewright.frontend.onnx.registry import CHECKS, FIRST, find
from tilewright.frontend.onnx.rules import families, usual

FOLDER = Path(rules.__file__).parent


def test_every_file_of_rules_is_registered_once() -> None:
    files = {path.stem for path in FOLDER.glob("*.py") if "@rule(" in path.read_text()}
    registered = [*usual.__all__, *families.__all__]
    assert sorted(FIRST) == sorted(usual.__all__)
    assert files <= set(registered) and len(set(registered)) == len(registered)


@pytest.mark.parametrize(("domain", "name"), [("", "Gemm"), ("ai.onnx", "STFT"), ("com.microsoft", "FastGelu")])
def test_the_first_question_has_an_answer(domain: str, name: str) -> None:
    """In a process that has asked for nothing else."""
    code = f"""
from tilewright.frontend.onnx.registry import find
assert find({domain!r}, {name!r}) is not None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_rule() -> None:
    """Every check is registered then: an operator without a rule may have one."""
    assert find("", "NoSuchOperator") is None and find("com.example", "Gemm") is None
    assert CHECKS
