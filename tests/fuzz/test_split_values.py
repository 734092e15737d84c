"""Some of the random cases of `tests/fuzz/split_values.py`; `make split-values` runs 10^5."""

from __future__ import annotations

import pytest

from tests.codegen.llvm.amx_run import needs_compiler
from tests.fuzz import split_values
from tests.fuzz.split_values import LANES, failures
from tilewright.targets.target import Target


@needs_compiler
@pytest.mark.costly(2)
def test_numbers_in_any_place() -> None:
    assert not list(failures(300, 1, "product x6"))


@pytest.mark.daily(3)
@needs_compiler
@pytest.mark.skipif(Target.host().lanes(4) != LANES, reason="convolutions by pieces need vectors of 16 numbers")
@pytest.mark.parametrize("name", ["groups of a block x6", "one channel x6", "three taps x6"])
def test_convolutions(name: str) -> None:
    assert not list(failures(60, 1, name))


@needs_compiler
def test_cases_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(split_values.COMPONENTWISE, 6, -1.0)
    assert next(failures(10, 1, "product x6"))[2] == "numbers are outside the bound"
