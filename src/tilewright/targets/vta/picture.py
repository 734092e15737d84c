"""The timeline of a program as text and as a picture: a row for each queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.support.errors import MissingPackageError
from tilewright.targets.vta.access import Queue
from tilewright.targets.vta.isa import Instruction
from tilewright.targets.vta.timing import Timeline

_MARKS = {"Load": "L", "Store": "S", "Gemm": "G", "Alu": "A", "Finish": "."}
_COLORS = {"Load": "#4c78a8", "Store": "#54a24b", "Gemm": "#e45756", "Alu": "#f58518", "Finish": "#888888"}


def text(program: Sequence[Instruction], times: Timeline, width: int = 100, cycles: int | None = None) -> str:
    """Three lines of `width` characters, one for each queue; each character stands for equally many cycles, and shows
    what the queue mostly does in them.

    The cycles and the share of peak follow. `cycles` is what the width stands for, if not the program's own cycles.
    """
    total = cycles or times.cycles
    lines = []
    for queue in Queue:
        filled: list[dict[str, float]] = [{} for _ in range(width)]
        for span in times.spans:
            if span.queue is queue:
                kind = type(program[span.instruction]).__name__
                begin, end = span.begin * width / total, span.end * width / total
                for k in range(int(begin), min(width, int(end) + 1)):
                    part = min(end, k + 1) - max(begin, k)
                    filled[k][kind] = filled[k].get(kind, 0.0) + part
        row = "".join(_MARKS[max(f, key=f.__getitem__)] if sum(f.values()) >= 0.5 else " " for f in filled)
        lines.append(f"{queue.name.lower():8}|{row.ljust(width)}| {times.busy(queue):4.0%}")
    return "\n".join([*lines, f"{times.cycles} cycles, {times.share:.0%} of the peak of the GEMM core"])


def png(pictures: Mapping[str, tuple[Sequence[Instruction], Timeline]], path: str | Path) -> None:
    """Draw programs by title, one above the other on one scale of time, as the PNG file `path`. Raises
    MissingPackageError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError("pictures need matplotlib", hint="pip install 'tilewright[plot]'") from error
    figure = Figure(figsize=(11, 1.9 * len(pictures)), layout="constrained")
    axes = figure.subplots(len(pictures), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (title, (program, times)) in zip(axes, pictures.items(), strict=True):
        for kind, color in _COLORS.items():
            for queue in Queue:
                bars = [
                    (s.begin, s.end - s.begin)
                    for s in times.spans
                    if s.queue is queue and type(program[s.instruction]).__name__ == kind
                ]
                axis.broken_barh(bars, (2 - queue - 0.4, 0.8), facecolors=color)
        axis.set_yticks([2, 1, 0], [q.name.lower() for q in Queue])
        axis.set_title(f"{title}: {times.cycles} cycles, {times.share:.0%} of peak", fontsize=10, loc="left")
    axes[-1].set_xlabel("cycles")
    figure.savefig(path, dpi=120)
