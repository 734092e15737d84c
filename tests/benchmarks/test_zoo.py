"""The zoo's table and its comparison with eager PyTorch; `make zoo` runs the architectures."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the zoo's models are PyTorch's; `make torch` installs it")

from benchmarks import bench_zoo  # noqa: E402 (needs torch)
from benchmarks.zoo import FAMILIES, builders, entry, probe  # noqa: E402
from benchmarks.zoo.row import Row  # noqa: E402


def test_names_are_of_one_model_each() -> None:
    assert len(builders()) == sum(len(models) for models in FAMILIES.values()) >= 120


def test_a_policy_is_right_and_timed() -> None:
    row = probe.probe("control-PPO", rounds=1)
    assert row.outcome == "native" and not row.detail
    assert row.error is not None and row.error <= probe.TOLERANCE
    assert row.ratio is not None and row.ratio > 0


@pytest.mark.parametrize(
    ("got", "says"),
    [
        ([torch.tensor([1.0, 2.001])], "differs from eager"),
        ([torch.tensor([1.0, math.nan])], "differs from eager"),
        ([torch.tensor([1.0])], "expected torch.float32"),
        ([torch.tensor([1, 2])], "expected torch.float32"),
        ([], "expected 1 outputs, got 0"),
    ],
)
def test_what_is_not_eagers_is_wrong(got: list[torch.Tensor], says: str) -> None:
    with pytest.raises(probe.WrongError, match=says):
        probe.compare([torch.tensor([1.0, 2.0])], got)


def test_nan_and_infinity_must_stand_where_eagers_do() -> None:
    both = [torch.tensor([math.nan, math.inf, 1.0])]
    assert probe.compare(both, both) == 0
    with pytest.raises(probe.WrongError):
        probe.compare(both, [torch.tensor([math.nan, -math.inf, 1.0])])


def test_of_two_rows_of_a_name_the_later_counts(tmp_path: Path) -> None:
    rows = [Row("a", "wrong"), Row("b", "native", error=0.0, compile=2.0, ratio=1.5), Row("a", "refused", "why")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    result = bench_zoo.read(file)
    assert result == {"a": rows[2], "b": rows[1]}
    assert bench_zoo.refusals(list(result.values())) == [["why", "a"]]
    assert "| refused | 1 |" in bench_zoo.summary(list(result.values()))


def test_parameters_of_nearly_nothing_get_random_numbers() -> None:
    layer = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.ones_(layer.bias)
    entry.awaken(layer)
    assert layer.weight.abs().min() > 0
    assert torch.equal(layer.bias.detach(), torch.ones(3))
