"""A twentieth of the operators of PyTorch that must compile and agree with eager; run by `make torch`, all of them by
`make torch-ops`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
pytest.importorskip("expecttest", reason="PyTorch's own tests need it: `make torch` installs it")

from tests.torch_opinfo.cases import chosen, entry_name, operators
from tests.torch_opinfo.run import Row, expected, run_entry, table

EVERY = 20
SAMPLED = sorted(expected())[::EVERY]


@pytest.mark.costly(2)
@pytest.mark.parametrize(("name", "dtype"), SAMPLED, ids=[f"{n}-{t}" for n, t in SAMPLED])
def test_operator_is_as_in_eager(name: str, dtype: str) -> None:
    entry = next(e for e in operators() if entry_name(e) == name)
    row = run_entry(entry, dtype, 2)
    assert row.kind == "native", row.reason


def test_samples_that_are_chosen_are_the_awkward_ones() -> None:
    assert chosen([6, 1, 0, 8, 9], 4) == [(0, True), (4, False), (2, True), (1, True)]
    assert chosen([6], 4) == [(0, True), (0, False)]
    assert chosen([], 4) == []


def test_table_counts_entries_and_leaves_out_those_without_samples() -> None:
    rows = [Row("a", "f32", "native"), Row("b", "f32", "refused", "x"), Row("c", "f32", "left out")]
    assert table(rows).splitlines()[-1] == "| f32 | 2 | 1 | 0 | 1 | 0 | 0 | 0 | 50.0 |"
