"""`connect`: a worker's connection to one or several parameter servers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

import numpy as np

from tilewright.collective.server.frames import Frame, whole
from tilewright.collective.server.link import Access, Links
from tilewright.collective.server.log import frame_of
from tilewright.collective.server.shard import Array, Push

Rows = Mapping[str, tuple[Array, Array]]
Span = tuple[str, int, int]
"""The name of a weight, and the range of its rows that a server holds."""


def ranges(values: Mapping[str, Array], servers: int) -> list[dict[str, Array]]:
    """The weights `values`, by name, divided among `servers` servers by ranges of rows, with about equal bytes: for
    each server a dictionary of views, by `name@begin`. Row numbers always refer to the whole array."""
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
    """A process's access to weight servers, from which it pulls weights and to which it pushes gradients; created by
    `connect`. One thread may use it at a time.

    Attributes:
        clock: how many times it has pushed.
    """

    def __init__(self, links: Links, worker: int) -> None:
        self.worker = worker
        self.clock = 0
        self._links = links
        self._servers = len(links.names)
        self._known: dict[int, dict[str, Span]] = {}
        clocks = [whole(self._call(k, Frame("hello", {}, {})).facts, "clock") for k in range(self._servers)]
        self.clock = min(clocks)

    @property
    def timeout(self) -> float:
        """Seconds to wait for an answer."""
        return self._links.timeout

    def pull(self, names: Iterable[str] | None = None, rows: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Pull weights that are recent enough for this worker's clock; may have to wait for them.

        Args:
            names: of the weights to pull; None for all.
            rows: for some of them, the numbers of the rows to pull, i64.
        """
        rows = rows or {}
        if self._servers == 1:
            arrays = {f"rows {n}": np.asarray(r, np.int64) for n, r in rows.items()}
            wanted = [*(names if names is not None else rows)] if names is not None or rows else None
            answer = self._call(0, Frame("pull", {"names": wanted}, arrays))
            return {name: array.copy() for name, array in answer.arrays.items()}
        wanted = [*(names if names is not None else rows)] if names is not None or rows else None
        return self._pull_parts(wanted, {name: np.asarray(numbers, np.int64) for name, numbers in rows.items()})

    def _pull_parts(self, names: Sequence[str] | None, rows: Mapping[str, Array]) -> dict[str, Array]:
        parts: list[dict[str, Array]] = []
        result: dict[str, Array] = {}
        for k in range(self._servers):
            spans = {key: s for key, s in self._spans(k).items() if names is None or s[0] in names}
            mine = {
                key: (rows[name] >= begin) & (rows[name] < end)
                for key, (name, begin, end) in spans.items()
                if name in rows
            }
            asked = {f"rows {key}": rows[spans[key][0]][here] - spans[key][1] for key, here in mine.items()}
            arrays = self._call(k, Frame("pull", {"names": [*spans]}, asked)).arrays
            for key, here in mine.items():
                name = spans[key][0]
                new = (len(rows[name]), *arrays[key].shape[1:])
                result.setdefault(name, np.empty(new, arrays[key].dtype))[here] = arrays[key]
            parts.append({key: array for key, array in arrays.items() if key not in mine})
        return joined(parts) | result

    def push(self, gradients: Mapping[str, Array] | None = None, rows: Rows | None = None) -> None:
        """Push a step's gradients: of whole arrays by name, and of some rows of others, as (numbers, gradients). They
        are applied once, even if a server is restarted meanwhile."""
        dense, sparse = dict(gradients or {}), dict(rows or {})
        if self._servers == 1:
            numbered = {n: (np.ascontiguousarray(i, np.int64), g) for n, (i, g) in sparse.items()}
            self._call(0, frame_of(Push(self.worker, self.clock, dense, numbered)))
        else:
            self._push_parts(dense, sparse)
        self.clock += 1

    def _push_parts(self, dense: Mapping[str, Array], sparse: Rows) -> None:
        for k in range(self._servers):
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
        """Name in `server` -> (weight, first row, end row), for all ranges of weights that it holds."""
        if server not in self._known:
            sizes = self._call(server, Frame("sizes", {}, {})).facts
            spans = {}
            for key in sizes:
                name, first = _ranged(key)
                spans[key] = (name, first, first + whole(sizes, key))
            self._known[server] = spans
        return self._known[server]

    def _call(self, server: int, frame: Frame) -> Frame:
        return self._links.call(server, frame, f"worker {self.worker}, clock {self.clock}")

    def close(self) -> None:
        """Disconnect from the servers."""
        self._links.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The weights of several servers combined: ranges `name@begin` are concatenated, other arrays unchanged."""
    pieces: dict[str, list[tuple[int, Array]]] = {}
    for part in parts:
        for key, array in part.items():
            name, begin = _ranged(key)
            pieces.setdefault(name, []).append((begin, array))
    return {
        name: some[0][1] if len(some) == 1 else np.concatenate([a for _, a in sorted(some, key=_first)])
        for name, some in pieces.items()
    }


def _ranged(key: str) -> tuple[str, int]:
    """(name of the weight, first row) from a server's key `name@begin`; of a key without a range (the key, 0)."""
    name, _, begin = key.rpartition("@")
    return (name, int(begin)) if name and begin.isdecimal() else (key, 0)


def connect(
    name: str | Sequence[str],
    worker: int,
    *,
    timeout: float = 60.0,
    directory: str | os.PathLike[str] | None = None,
    secret: str | bytes | None = None,
    tls: ssl.SSLContext | None = None,
    limit: int = 1 << 30,
) -> Worker:
    """Become a worker of a server, or of several that share the weights by `ranges`.

    Args:
        name: of the server or servers; for servers on other machines the address, `tcp://host:port/name`.
        worker: this one's number, from 0.
        timeout: seconds to wait for an answer, including the restart of a server.
        secret, tls: as of the ports of servers on other machines.
        limit: the most bytes of an answer from these.

    Raises CollectiveError if a server does not answer.
    """
    listed = [name] if isinstance(name, str) else list(name)
    return Worker(Links(listed, worker, timeout, Access(directory, secret, tls, limit)), worker)


def _first(part: tuple[int, Array]) -> int:
    return part[0]


__all__ = ["Worker", "connect", "joined", "ranges"]
