"""Some of the random cases of `tests/fuzz/split_values.py`; `make split-values` runs 10^5."""

from __future__ import annotations

import pytest

from tests.codegen.llvm.amx_run import needs_compiler
from tests.fuzz import split_values
from tests.fuzz.split_values import failures


@needs_compiler
@pytest.mark.costly(2)
def test_numbers_in_any_place() -> None:
    assert not list(failures(300, 1, "product x6"))


@needs_compiler
def test_cases_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(split_values.COMPONENTWISE, 6, -1.0)
    assert next(failures(10, 1, "product x6"))[2] == "numbers are outside the bound"
