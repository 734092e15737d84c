"""Progress bars for long work: on a terminal's stderr, silent everywhere else.

with progress("compile resnet50", total=60) as step:
    for kernel in kernels:
        ...
        step(f"kernel {kernel.name}")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Step = Callable[[str], None]


@contextmanager
def progress(title: str, total: int | None = None, *, enabled: bool = True) -> Iterator[Step]:
    """Show a bar while the body runs; each call of what it yields is one step done, with a word on the next one.

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

        def step(text: str) -> None:
            bars.update(task, advance=1, note=text)

        yield step
