"""Reports of a module's coverage under `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

import tilewright as tw  # noqa: E402
from tests.dynamo.test_torch_compile import Custom, mlp  # noqa: E402
from tilewright.support.errors import CallError  # noqa: E402


def test_a_whole_module() -> None:
    report = tw.coverage(mlp(), torch.randn(8, 17))
    assert report.share == 1 and report.compiled_parts == len(report.parts) == 1 and not report.uncompiled


def test_an_operator_that_no_one_knows() -> None:
    report = tw.coverage(Custom(), (torch.randn(8, 17),))
    assert report.share < 1 and report.compiled_parts == 2
    assert [p.runs_by for p in report.parts] == ["Tilewright", "PyTorch", "Tilewright"]
    (lacking,) = report.uncompiled
    assert lacking.reason == "the operator tilewright_tests.turned is not supported"
    assert lacking.where.startswith("test_torch_compile.py:") and lacking.where.endswith("y = flipped(y)")


def test_a_lone_cheap_operator_is_no_part() -> None:
    def alone(x: Any) -> Any:
        return torch.sin(x)

    report = tw.coverage(alone, torch.randn(3))
    assert report.compiled_parts == 0
    assert [u.reason for u in report.uncompiled] == ["a part of its own would cost more than it saves"]


def test_graph_breaks_are_named() -> None:
    def broken(x: Any) -> Any:
        y = torch.sin(x) * 2 + 1
        torch._dynamo.graph_break()
        return torch.cos(y) * y

    report = tw.coverage(broken, {"x": torch.randn(3)})
    assert report.compiled_parts == 2
    (item,) = report.uncompiled
    assert item.operator == "graph break" and "graph_break()" in item.where


def test_no_example() -> None:
    with pytest.raises(CallError, match="needs an example"):
        tw.coverage(mlp(), None)
