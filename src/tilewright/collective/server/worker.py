"""`connect`: a worker's end of one or several parameter servers of its machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

import numpy as np

from tilewright.collective.group import Group, join
from tilewright.collective.server.frames import Frame, decode, encode, whole
from tilewright.collective.server.log import frame_of
from tilewright.collective.server.server import connection
from tilewright.collective.server.shard import Array, Push
from tilewright.support.errors import CollectiveError

Rows = Mapping[str, tuple[Array, Array]]
Span = tuple[str, int, int]
"""A name, and the rows that a server has of it."""


def ranges(values: Mapping[str, Array], servers: int) -> list[dict[str, Array]]:
    """Weights divided over servers by ranges of rows, with as many bytes on each as there can be: for each server its
    part, views by `name@begin`. Numbers of rows are of the whole array."""
    total = sum(v.nbytes for v in values.values())
    parts: list[dict[str, Array]] = [{} for _ in range(servers)]
    at = 0
    for name, value in values.items():
        rows = np.atleast_1d(value)
        row = rows[0].nbytes if len(rows) else 0
        begin = 0
        while begin < len(rows):
            server = min(servers - 1, at * servers // max(total, 1))
            room = (server + 1) * total // servers - at
            end = len(rows) if server == servers - 1 or not row else min(len(rows), begin + max(1, room // row))
            parts[server][f"{name}@{begin}"] = rows[begin:end]
            at += (end - begin) * row
            begin = end
    return parts


class Worker:
    """A worker of `connect`. One thread at a time.

    Attributes:
        clock: how many times it has pushed.
    """

    def __init__(
        self, names: Sequence[str], worker: int, timeout: float, directory: str | os.PathLike[str] | None
    ) -> None:
        self.worker = worker
        self.timeout = timeout
        self.clock = 0
        self._directory = directory
        self._names = names
        self._groups: list[Group | None] = [None] * len(names)
        self._known: dict[int, dict[str, Span]] = {}
        clocks = [whole(self._call(k, Frame("hello", {}, {})).facts, "clock") for k in range(len(names))]
        self.clock = min(clocks)

    def pull(self, names: Iterable[str] | None = None, rows: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Weights that are new enough for this worker's clock, which it may have to wait for.

        Args:
            names: of those that are wanted; None: all.
            rows: numbers of the rows of some of them, i64: what comes is these rows.
        """
        rows = rows or {}
        if len(self._names) == 1:
            arrays = {f"rows {n}": np.asarray(r, np.int64) for n, r in rows.items()}
            wanted = [*(names if names is not None else rows)] if names is not None or rows else None
            answer = self._call(0, Frame("pull", {"names": wanted}, arrays))
            return {name: array.copy() for name, array in answer.arrays.items()}
        if rows:
            raise CollectiveError("rows of several servers are pulled whole", where="pull", hint="pull without rows")
        parts: dict[str, list[tuple[int, Array]]] = {}
        for k in range(len(self._names)):
            for key, array in self._call(k, Frame("pull", {"names": None}, {})).arrays.items():
                name, _, begin = key.rpartition("@")
                if names is None or name in names:
                    parts.setdefault(name, []).append((int(begin), array))
        return {name: np.concatenate([a for _, a in sorted(some, key=_first)]) for name, some in parts.items()}

    def push(self, gradients: Mapping[str, Array] | None = None, rows: Rows | None = None) -> None:
        """Give a step's gradients: of whole arrays by name, and of some rows of others, as (numbers, gradients). A
        server that is started anew meanwhile has them once."""
        dense, sparse = dict(gradients or {}), dict(rows or {})
        if len(self._names) == 1:
            numbered = {n: (np.ascontiguousarray(i, np.int64), g) for n, (i, g) in sparse.items()}
            self._call(0, frame_of(Push(self.worker, self.clock, dense, numbered)))
        else:
            self._push_parts(dense, sparse)
        self.clock += 1

    def _push_parts(self, dense: Mapping[str, Array], sparse: Rows) -> None:
        for k in range(len(self._names)):
            theirs = self._spans(k)
            mine = {key: np.atleast_1d(dense[n])[b:e] for key, (n, b, e) in theirs.items() if n in dense}
            some = {}
            for key, (name, begin, end) in theirs.items():
                if name in sparse:
                    numbers, values = np.asarray(sparse[name][0], np.int64), sparse[name][1]
                    here = (numbers >= begin) & (numbers < end)
                    some[key] = (numbers[here] - begin, values[here])
            self._call(k, frame_of(Push(self.worker, self.clock, mine, some)))

    def _spans(self, server: int) -> dict[str, Span]:
        """The ranges that a server has, by its names."""
        if server not in self._known:
            sizes = self._call(server, Frame("sizes", {}, {})).facts
            spans = {}
            for key in sizes:
                name, _, begin = key.rpartition("@")
                first = int(begin) if begin.isdecimal() else 0
                spans[key] = (name, first, first + whole(sizes, key))
            self._known[server] = spans
        return self._known[server]

    def _call(self, server: int, frame: Frame) -> Frame:
        """A server's answer. One that dies is waited for, and the message sent once more."""
        deadline = time.monotonic() + self.timeout
        data = np.frombuffer(encode(frame), np.uint8)
        while True:
            try:
                group = self._group(server, deadline)
                group.timeout = max(0.1, deadline - time.monotonic())
                group.send(data, 0)
                answer = decode(group.message(0))
                break
            except CollectiveError as error:
                self._drop(server)
                if time.monotonic() > deadline:
                    where = f"worker {self.worker}, clock {self.clock}: {frame.kind}"
                    what = f"server {self._names[server]!r} does not answer"
                    raise CollectiveError(what, where=where, got=str(error)) from None
                time.sleep(0.01)
        if answer.kind == "error":
            raise CollectiveError("the server refuses", where=f"worker {self.worker}", got=answer.facts.get("text"))
        return answer

    def _group(self, server: int, deadline: float) -> Group:
        group = self._groups[server]
        if group is None:
            left = min(max(0.1, deadline - time.monotonic()), 2.0)
            name = connection(self._names[server], self.worker)
            group = self._groups[server] = join(name, 1, 2, timeout=left, directory=self._directory)
        return group

    def _drop(self, server: int) -> None:
        group, self._groups[server] = self._groups[server], None
        if group is not None:
            group.close()

    def close(self) -> None:
        """Leave the servers."""
        for k in range(len(self._groups)):
            self._drop(k)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    name: str | Sequence[str],
    worker: int,
    *,
    timeout: float = 60.0,
    directory: str | os.PathLike[str] | None = None,
) -> Worker:
    """Become a worker of a server, or of several that share the weights by `ranges`.

    Args:
        name: the server's, or theirs.
        worker: this one's number, from 0.
        timeout: seconds to wait for an answer, while a server is started anew too.

    Raises CollectiveError if a server does not answer.
    """
    return Worker([name] if isinstance(name, str) else list(name), worker, timeout, directory)


def _first(part: tuple[int, Array]) -> int:
    return part[0]


__all__ = ["Worker", "connect", "ranges"]
