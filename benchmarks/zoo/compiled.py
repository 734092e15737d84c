"""One architecture under `torch.compile(model, backend="tilewright")`: right or not, and into how much it was cut."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.zoo import built
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.probe import DRAWN, WrongError, brief, compare, leaves, timed
from benchmarks.zoo.row import Row
from tilewright.dynamo.backend import tilewright
from tilewright.dynamo.report import GraphReport
from tilewright.support.coverage import totals

WHOLE, IN_PARTS, NOT_TRACED = "whole", "in parts", "not traced"


def probe(name: str, rounds: int) -> Row:
    """The row of one architecture. What is wrong, or ends in an error, under PyTorch's own `aot_eager` too is not ours
    ("not traced")."""
    entry = built(name)
    with torch.inference_mode(False), torch.no_grad():
        expected = leaves(entry.call(entry.module))
        try:
            compare(expected, leaves(entry.call(entry.module)))
        except WrongError:
            return Row(name, "not built", DRAWN)
        reports: list[GraphReport] = []
        function = torch.compile(entry.module, backend=tilewright, options={"report": reports.append})
        row = Row(name, "", load=os.getloadavg()[0])
        start = time.process_time()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            problem = difference(entry, expected, function, row)
        row.compile = time.process_time() - start
        told(row, reports, [str(w.message) for w in heard if "runs in PyTorch" in str(w.message)])
        if problem is None:
            return timed(row, entry, lambda: entry.call(function), None, rounds)
        row.outcome, row.detail = problem
        torch._dynamo.reset()
        theirs = difference(entry, expected, torch.compile(entry.module, backend="aot_eager"), Row(name, ""))
        if theirs is not None:
            row.outcome, row.detail = NOT_TRACED, f"{row.detail}; aot_eager: {theirs[1]}"
        return row


def difference(
    entry: Entry, expected: Sequence[torch.Tensor], function: Callable[..., Any], row: Row
) -> tuple[str, str] | None:
    """An outcome and what is said of it, where the first call or the second is not eager's; else the row has the
    error."""
    row.error = 0.0
    for call in ("first", "second"):
        try:
            result = leaves(entry.call(function))
            row.error = max(row.error, compare(expected, result))
        except WrongError as wrong:
            return "wrong", f"{call} call: {wrong}"
        except Exception as error:
            row.foreign = True
            return "crashed", f"{call} call: {type(error).__name__}: {brief(error)}"
    return None


def told(row: Row, reports: Sequence[GraphReport], defects: Sequence[str]) -> None:
    """Write the counts of a run into its row: graphs, parts, operators and what of them PyTorch runs."""
    counts = totals(pair for report in reports for pair in report.operators)
    left = Counter(f"{u.operator}: {u.reason}" for report in reports for u in report.uncompiled)
    row.graphs = len(reports)
    row.breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    row.parts = sum(report.coverage().compiled_parts for report in reports)
    row.operators = sum(total for _, total, _ in counts)
    row.left = row.operators - sum(selected for _, _, selected in counts)
    row.outcome = WHOLE if row.parts == row.graphs == 1 and not row.left else IN_PARTS
    reasons = [*defects, *(f"{n} x {what}" for what, n in left.most_common(4))]
    row.detail = "; ".join(reasons) if reports else "TorchDynamo makes no graph of it"
