"""Architectures of transformers with open axes: the table, and one of them by two doors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the models are PyTorch's; `make torch` installs it")
pytest.importorskip("transformers", reason="the models are those of transformers; `make torch` installs it")

from benchmarks import bench_transformers
from benchmarks.zoo import open_probe, opened


def test_there_are_enough_of_every_kind() -> None:
    assert len(opened.CASES) >= 25
    case = opened.opened("LayoutLM")
    assert len(case.sizes) == 5 and list(case.axes) == list(case.tensors(case.sizes[0]))


@pytest.mark.parametrize("door", ["module", "torchscript"])
def test_an_encoder_whose_table_of_positions_ends_is_whole(door: str) -> None:
    row = open_probe.probe("CLIP-text", door)
    assert (row.outcome, row.right, row.detail) == ("whole", 5, "")


def test_the_table() -> None:
    rows = [
        open_probe.Row("Bert", "module", "whole", 5, None, 3.2),
        open_probe.Row("Bert", "dynamo", "refused", detail="why"),
    ]
    text = bench_transformers.report({(row.name, row.door): row for row in rows})
    assert "| Bert | whole, 5, 3 |" in text and "| Bert | dynamo | why |" in text
    assert "Not tried: Albert," in text


def test_of_two_rows_of_a_case_the_later_counts(tmp_path: Path) -> None:
    rows = [open_probe.Row("Bert", "module", outcome) for outcome in ("refused", "whole")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    assert bench_transformers.read(file) == {("Bert", "module"): rows[1]}
