"""The pass log: every pass is announced and timed, says when it changed nothing, and can show its result.

    log = PassLog("compile policy.onnx")
    graph = log.run("fold", fold, graph)
    log.dump(2, "graph", lambda: str(graph))          # printed at TILEWRIGHT_DEBUG=2 and above
    log.dump(4, "LLVM IR", lambda: llvm_text)
    log.remark("threads do not share the rows: ...")
    print(log.summary())

Times and remarks are always kept; text goes to stderr at TILEWRIGHT_DEBUG >= 1, or where TILEWRIGHT_DUMP asks for it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Concatenate, ParamSpec, TextIO, TypeVar

from tilewright.support import flags
from tilewright.support.classes import dataclass

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass that ran: its name, its time in seconds, whether it changed the program (None: not looked at); of which
    program ("graph", "prepare", "run" or a kernel's name; empty: no pass of a driver), and how many lines of its text
    the pass added and removed, where these are counted (`listing_passes`)."""

    name: str
    seconds: float
    changed: bool | None
    program: str = ""
    added: int = 0
    removed: int = 0


_listed: ContextVar[list[PassRecord] | None] = ContextVar("listed", default=None)


@contextmanager
def listing_passes() -> Iterator[list[PassRecord]]:
    """Within the context, the passes of all compilations are listed, with the lines that each adds and removes. Caches
    are not used there, as with TILEWRIGHT_DUMP, so that every pass runs."""
    records: list[PassRecord] = []
    token = _listed.set(records)
    try:
        yield records
    finally:
        _listed.reset(token)


class PassLog:
    """The passes of one compilation, in order.

    Args:
        title: what is being compiled.
        level: overrides TILEWRIGHT_DEBUG.
        dumps: overrides TILEWRIGHT_DUMP.
        stream: where text goes; stderr if None.
    """

    def __init__(
        self,
        title: str = "",
        *,
        level: int | None = None,
        dumps: tuple[str, ...] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.title = title
        self.level = flags.DEBUG() if level is None else level
        self.dumps = flags.DUMP() if dumps is None else dumps
        self.records: list[PassRecord] = []
        self._list = _listed.get() if title else None
        self.remarks: list[str] = []
        self._stream = stream
        self._depth = 0
        self._announced = 1
        self._program = ""
        if title and self.level >= 1:
            self._write(f"== {title}")

    def run(
        self,
        name: str,
        function: Callable[Concatenate[A, P], B],
        value: A,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> B:
        """Run `function(value, ...)`, timed and announced as the pass `name`; returns its result."""
        start = time.perf_counter()
        result = function(value, *args, **kwargs)
        seconds = time.perf_counter() - start
        changed: bool | None = None
        added = removed = 0
        if result is value:
            changed = False
        elif type(result) is type(value):
            if self.level >= self._announced:
                changed = bool(result != value)
            if self._program and self._list is not None:
                added, removed = _lines_changed(str(value), str(result))
                changed = bool(added or removed)
        self._note(PassRecord(name, seconds, changed, self._program, added, removed))
        return result

    @contextmanager
    def announcing(self, level: int, program: str = "") -> Iterator[None]:
        """Within the context, announce passes from this debug level on; times are recorded at every level. `program`:
        the name of the program that these passes work on."""
        before, self._announced = self._announced, level
        outer, self._program = self._program, program
        self._depth += 1
        try:
            yield
        finally:
            self._announced, self._program = before, outer
            self._depth -= 1

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a region that is not a pass; passes inside it are shown under it."""
        start = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._note(PassRecord(name, time.perf_counter() - start, None))

    def dump(self, level: int, title: str, text: Callable[[], str]) -> None:
        """Print `text()` under `title` if the debug level is at least `level`."""
        if self.level >= level:
            self.show(title, text())

    @property
    def wants_all(self) -> bool:
        """Whether every pass has to run so that it is printed or listed, in which case caches must not be used."""
        return bool(self.dumps) or self._list is not None

    def dumps_after(self, name: str) -> bool:
        """Whether TILEWRIGHT_DUMP asks for the program around the pass of this name."""
        return name in self.dumps or "all" in self.dumps

    def show(self, title: str, text: str) -> None:
        """Print a program under a title."""
        self._write(f"-- {title}\n{text.rstrip()}")

    def remark(self, text: str) -> None:
        """Record a remark for the user, such as a refused step; printed with the passes."""
        self.remarks.append(text)
        if self.level >= 1:
            self._write(f"{'  ' * self._depth}remark: {text}")

    def seconds(self) -> dict[str, float]:
        """The seconds of each pass, with repeated runs added up."""
        times: dict[str, float] = {}
        for record in self.records:
            times[record.name] = times.get(record.name, 0.0) + record.seconds
        return times

    def summary(self) -> str:
        """A table of the passes, the longest first."""
        rows = sorted(self.seconds().items(), key=lambda row: -row[1])
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:<{width}}  {seconds * 1e3:9.2f} ms" for name, seconds in rows)

    def _note(self, record: PassRecord) -> None:
        self.records.append(record)
        if self._list is not None:
            self._list.append(record)
        if self.level >= self._announced:
            unchanged = "  (unchanged)" if record.changed is False else ""
            self._write(f"{'  ' * self._depth}{record.name:<28} {record.seconds * 1e3:9.2f} ms{unchanged}")

    def _write(self, text: str) -> None:
        print(text, file=self._stream or sys.stderr)


def _lines_changed(before: str, after: str) -> tuple[int, int]:
    """(number of lines that `after` adds to `before`, number that it lacks); a line that moves counts as neither."""
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    return (new - old).total(), (old - new).total()
