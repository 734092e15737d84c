"""The table of models as StableHLO and linalg; `python -m benchmarks.bench_mlir_out` runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_mlir_out


def test_a_way_that_takes_too_long_is_ended() -> None:
    assert bench_mlir_out.in_process("m64", "keys", 0.01) == "nothing in 0 s"


def test_of_two_rows_the_later_counts_and_large_differences_are_counted(tmp_path: Path) -> None:
    rows = [("m64", "xla", "2e-04"), ("m64", "iree", "3e-05"), ("nat", "keys", "yes, NO"), ("m64", "xla", "1e-06")]
    rows.append(("nat", "linalg", "nothing in 9 s"))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(dict(zip(("model", "way", "found"), row, strict=True))) + "\n" for row in rows))
    text = bench_mlir_out.report(bench_mlir_out.read(path))
    assert "| m64 | 1e-06 | 3e-05 |  |  |" in text and "| nat |  |  | nothing in 9 s | yes, NO |" in text
    assert "1 of 2 runs differ by more than 1e-05." in text


def test_keys() -> None:
    pytest.importorskip("jaxlib", reason="StableHLO is read by jaxlib: `make jax`")
    assert bench_mlir_out.keys("hok1") == "yes, yes"
