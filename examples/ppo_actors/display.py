"""The run in the terminal: a table that changes in place, or a line now and then where there is no terminal."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.ppo_actors.monitor import Monitor

_BLOCKS = "▁▂▃▄▅▆▇█"
_EVERY_SECONDS = 3.0


class Display:
    """Shows a monitor until it is left."""

    def __init__(self, monitor: Monitor, console: Console) -> None:
        self._monitor, self._console = monitor, console
        self._live = Live(console=console, refresh_per_second=5, transient=True) if console.is_terminal else None
        self._next = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self) -> None:
        """Show the newest row."""
        now = time.monotonic()
        if self._live is not None:
            if now >= self._next:
                self._next = now + 0.2
                self._live.update(picture(self._monitor))
        elif now >= self._next:
            self._next = now + _EVERY_SECONDS
            self._console.print(line(self._monitor), highlight=False, soft_wrap=True)


def line(monitor: Monitor) -> str:
    """The newest row as one line of text."""
    row = monitor.rows[-1]
    return (
        f"{monitor.config.label:>13} {row.seconds:5.1f} s  steps {row.steps:7}  return {row.returned:6.1f}  "
        f"version {row.version:4}  behind {row.stale:.2f} (most {row.stalest})  age {row.age * 1e3:4.0f} ms  "
        f"{row.calls:6.0f} calls/s of {row.call_us:5.1f} µs  replaced {sum(a.lives - 1 for a in monitor.actors)}"
    )


def picture(monitor: Monitor) -> Group:
    """The whole state: totals, the course of the return, a row an actor."""
    row, config = monitor.rows[-1], monitor.config
    head = Text.assemble(
        (f"{config.label} actors, {config.env}", "bold"),
        f"   {row.seconds:5.1f} s   {row.steps:,} of {config.steps:,} steps   version {row.version}\n",
        f"return of the last {len(monitor.returns)} episodes ",
        (f"{row.returned:6.1f}  ", "bold green"),
        (sparkline([r.returned for r in monitor.rows], 50), "green"),
        f"\nversions behind: mean {row.stale:.2f}, most {row.stalest}   ",
        f"{row.calls:,.0f} calls/s of {row.call_us:.1f} µs for {config.envs} environments",
    )
    table = Table("actor", "pid", "started", "calls/s", "µs a call", "version", "age ms", "MB (PSS)")
    for column in table.columns:
        column.justify = "right"
    for index, a in enumerate(monitor.actors):
        started = Text(str(a.lives), "red" if a.lives > 1 else "")
        rates: list[Any] = [f"{a.calls:,.0f}", _number(a.call_us, 1), str(a.version), f"{a.age * 1e3:.0f}"]
        table.add_row(str(index), str(a.pid), started, *rates, _number(a.memory, 0))
    return Group(head, table)


def sparkline(values: list[float], width: int) -> str:
    """The values in so many characters, from the least to the greatest."""
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return ""
    picked = [known[i * len(known) // width] for i in range(width)] if len(known) > width else known
    low, span = min(picked), max(max(picked) - min(picked), 1e-9)
    return "".join(_BLOCKS[min(7, int((v - low) / span * 8))] for v in picked)


def results(monitors: list[Monitor]) -> Table:
    """The runs side by side."""
    columns = [monitor.summary() for monitor in monitors]
    table = Table("actors on", *(monitor.config.label for monitor in monitors))
    for name in columns[0]:
        table.add_row(name, *(_number(column[name], 0 if isinstance(column[name], int) else 2) for column in columns))
    return table


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"
