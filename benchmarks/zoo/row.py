"""The outcome of one architecture of the zoo."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 1e-4
"""The error that is allowed, relative to the largest magnitude of an output in eager PyTorch, which itself rounds in
another order."""


@dataclass(slots=True)
class Row:
    """A row of the table.

    outcome   the way that took it ("native", "native, fixed sizes", "torch.compile"), or "wrong", "refused", "crashed",
              "time limit", "not built"
    detail    why the ways before it did not, or what is wrong
    foreign   whether a way ended in an exception that is not a `tw.Error`
    error     largest difference from eager over the output's largest magnitude
    compile   CPU seconds of all threads for the first compilation, export or tracing included: on a quiet machine no
              more pass
    eager, ours   microseconds of a call, medians
    ratio     eager's time by ours, the median of the turns
    slowest   the kinds of kernels that take most, where eager is faster
    load      the machine's load average

    Under `--compile` the outcome is "whole" (one graph, one part), "in parts" or "not traced" (wrong under `aot_eager`
    too), and there are

    graphs, breaks   of TorchDynamo
    parts            that are compiled
    operators, left  how many operators the graphs have, and how many of them PyTorch runs
    """

    name: str
    outcome: str
    detail: str = ""
    foreign: bool = False
    error: float | None = None
    compile: float | None = None
    eager: float | None = None
    ours: float | None = None
    ratio: float | None = None
    slowest: str = ""
    load: float | None = None
    graphs: int | None = None
    breaks: int | None = None
    parts: int | None = None
    operators: int | None = None
    left: int | None = None
