"""Progress bars for long work: on a terminal's stderr, silent everywhere else.

with progress("compile resnet50", total=60) as step:
    for kernel in kernels:
        ...
        step(f"kernel {kernel.name}")

Nested code tells the active bar how many steps follow (`expect`) and which are done (`tell`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

Step = Callable[[str], None]


class Bar(Protocol):
    """A display of progress. `expect` adds to the number of steps; `step` marks one as done."""

    def expect(self, steps: int) -> None: ...

    def step(self, text: str) -> None: ...


_shown: ContextVar[Bar | None] = ContextVar("tilewright_progress", default=None)


def expect(steps: int) -> None:
    """Add `steps` to the number of steps of the bar that is active in this context; does nothing if there is none."""
    if (bar := _shown.get()) is not None:
        bar.expect(steps)


def tell(text: str) -> None:
    """Mark the step `text` as done on the bar that is active in this context; does nothing if there is none."""
    if (bar := _shown.get()) is not None:
        bar.step(text)


@contextmanager
def showing(bar: Bar) -> Iterator[None]:
    """Within the `with` block, `expect` and `tell` go to `bar`; afterwards to the one before."""
    token = _shown.set(bar)
    try:
        yield
    finally:
        _shown.reset(token)


@contextmanager
def progress(title: str, total: int | None = None, *, enabled: bool = True) -> Iterator[Step]:
    """Show a bar during the context; each call of the yielded function marks one step as done, with a text about the
    next one.

    Args:
        title: what is going on.
        total: number of steps, None if unknown.
        enabled: False never shows it (`--json`, `--quiet`).
    """
    if not enabled or not sys.stderr.isatty():
        yield lambda _text: None
        return
    # Imported here: it takes tens of milliseconds that a silent compile should not pay.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    columns += [TimeElapsedColumn(), TextColumn("[dim]{task.fields[note]}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=total, note="")

        class Shown:
            def expect(self, steps: int) -> None:
                bars.update(task, total=(bars.tasks[0].total or 0) + steps)

            def step(self, text: str) -> None:
                bars.update(task, advance=1, note=text)

        shown = Shown()
        with showing(shown):
            yield shown.step
