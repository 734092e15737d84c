"""The terminal while they learn: a table that changes in place with curves of the loss, or lines without a terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 32


@dataclass(slots=True)
class Row:
    """One learner of one network: losses by epoch, accuracy on what it has not seen, and seconds, the first epoch with
    its compilation separately."""

    network: str
    learner: str
    losses: list[float] = field(default_factory=list)
    accuracy: float = math.nan
    first: float = math.nan
    seconds: float = 0.0


def curve(losses: list[float]) -> str:
    """Losses on a logarithmic scale, as blocks."""
    if not losses:
        return ""
    picked = [losses[k * len(losses) // min(WIDTH, len(losses))] for k in range(min(WIDTH, len(losses)))]
    logs = [math.log(max(loss, 1e-12)) for loss in picked]
    low, high = min(logs), max(logs)
    scale = (len(BLOCKS) - 1) / ((high - low) or 1)
    return "".join(BLOCKS[round((value - low) * scale)] for value in logs)


def picture(rows: list[Row], missing: list[str]) -> Table:
    table = Table(title="Digits of 8x8 pixels, one thread", title_justify="left")
    for name in ("network", "learner", "loss", "last"):
        table.add_column(name)
    for name in ("accuracy", "first epoch s", "all others s"):
        table.add_column(name, justify="right")
    for row in rows:
        last = f"{row.losses[-1]:.4f}" if row.losses else "-"
        right = "-" if math.isnan(row.accuracy) else f"{row.accuracy:.2%}"
        first = "-" if math.isnan(row.first) else f"{row.first:.2f}"
        table.add_row(row.network, row.learner, curve(row.losses), last, right, first, f"{row.seconds:.3f}")
    if missing:
        table.caption = f"not installed: {', '.join(missing)}"
    return table


def lines(rows: list[Row], console: Console) -> None:
    """A console like a terminal, for logs."""
    for row in rows:
        console.print(
            f"{row.network}, {row.learner}: loss {row.losses[-1]:.4f}, accuracy {row.accuracy:.2%}, first epoch "
            f"{row.first:.2f} s, all others {row.seconds:.3f} s",
            highlight=False,
            soft_wrap=True,
        )
