"""A server's log: a snapshot of weights, and every push since, in the order in which they were applied.

A push is written to the log before its worker gets an answer. A record is its length, a checksum and a frame; an
incomplete record, whose writer was killed, ends the log. Replaying gives the same bits, as it runs the same code.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tilewright.collective.server.frames import Frame, decode, encode, whole
from tilewright.collective.server.shard import Array, Push, Shard
from tilewright.support.errors import CollectiveError

_RECORD = struct.Struct("<QI")
SNAPSHOT_BYTES = 1 << 28
"""Bytes of pushes after which a new snapshot is written."""


class Log:
    """The log of a shard in a folder of its own, `weights` and `pushes`.

    Args:
        folder: created if it does not exist.
        durable: whether a push is flushed to the disk before its worker gets an answer, so that it survives a crash of
            the machine, not only of the process.
    """

    def __init__(self, folder: str | os.PathLike[str], *, durable: bool = False) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._durable = durable
        self._file = -1

    def restore(self, shard: Shard) -> bool:
        """Replay the log into a new shard and continue it; returns whether there was a log."""
        weights = self.folder / "weights"
        there = weights.exists()
        if there:
            frame = decode(weights.read_bytes())
            self._load(shard, frame)
            for push in self._pushes(self._number(frame)):
                shard.push(push)
        self.snapshot(shard)
        return there

    def append(self, push: Push, shard: Shard) -> None:
        """Write a push to the log, before it is applied."""
        data = encode(frame_of(push))
        os.writev(self._file, [_RECORD.pack(len(data), zlib.crc32(data)), data])
        if self._durable:
            os.fdatasync(self._file)
        self._size += len(data)

    @property
    def is_long(self) -> bool:
        """Whether a snapshot is due."""
        return self._size > SNAPSHOT_BYTES

    def snapshot(self, shard: Shard) -> None:
        """Write a snapshot of weights and clocks, and begin a new list of pushes; a crash at any time leaves one
        complete pair."""
        number = self._after()
        pushes = self.folder / f"pushes-{number}"
        file = os.open(pushes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        facts = {"clocks": list(shard.clocks), "steps": shard.steps, "pushes": number}
        waiting = {f"{k}:{n}": a for k, p in enumerate(shard.waiting()) for n, a in frame_of(p).arrays.items()}
        facts["waiting"] = [frame_of(p).facts for p in shard.waiting()]
        temporary = self.folder / "weights.new"
        with open(temporary, "wb") as out:
            out.write(encode(Frame("weights", facts, {f"value:{n}": a for n, a in shard.values.items()} | waiting)))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self.folder / "weights")
        self.close()
        self._file, self._size = file, 0
        for old in self.folder.glob("pushes-*"):
            if old != pushes:
                old.unlink()

    def close(self) -> None:
        """Close the file to which pushes are appended, if it is open; the files in the log's folder remain."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _after(self) -> int:
        names = [p.name.partition("-")[2] for p in self.folder.glob("pushes-*")]
        return 1 + max((int(n) for n in names if n.isdecimal()), default=0)

    def _number(self, frame: Frame) -> int:
        return whole(frame.facts, "pushes")

    def _load(self, shard: Shard, frame: Frame) -> None:
        where, clocks = str(self.folder), frame.facts.get("clocks")
        if not isinstance(clocks, list) or len(clocks) != len(shard.clocks):
            raise CollectiveError("the log is of other workers", where=where, expected=len(shard.clocks), got=clocks)
        stated = {n.partition(":")[2]: a for n, a in frame.arrays.items() if n.startswith("value:")}
        for name, value in shard.values.items():
            array = stated.get(name)
            if (
                array is None
                or array.shape != value.shape
                or array.dtype != value.dtype
                or len(stated) != len(shard.values)
            ):
                raise CollectiveError("the log is of other weights", where=where, expected=name, got=sorted(stated)[:8])
            np.copyto(value, array)
        waiting = frame.facts.get("waiting")
        pushes = [
            push_of(
                Frame("push", facts, {n.partition(":")[2]: a for n, a in frame.arrays.items() if n.startswith(f"{k}:")})
            )
            for k, facts in enumerate(waiting if isinstance(waiting, list) else [])
        ]
        counted = {p.worker: sum(q.worker == p.worker for q in pushes) for p in pushes}
        shard.clocks[:] = [whole({"clock": c}, "clock") - counted.get(w, 0) for w, c in enumerate(clocks)]
        shard.steps = whole(frame.facts, "steps")
        for push in pushes:
            shard.push(push)

    def _pushes(self, number: int) -> Iterator[Push]:
        try:
            data = (self.folder / f"pushes-{number}").read_bytes()
        except FileNotFoundError:
            return
        at = 0
        while at + _RECORD.size <= len(data):
            length, checksum = _RECORD.unpack_from(data, at)
            body = data[at + _RECORD.size : at + _RECORD.size + length]
            if len(body) < length or zlib.crc32(body) != checksum:
                return
            yield push_of(decode(body))
            at += _RECORD.size + length


def frame_of(push: Push) -> Frame:
    """A push as a frame."""
    arrays: dict[str, Array] = {f"dense {name}": a for name, a in push.dense.items()}
    for name, (numbers, gradient) in push.rows.items():
        arrays |= {f"rows {name}": numbers, f"values {name}": gradient}
    return Frame("push", {"worker": push.worker, "clock": push.clock}, arrays)


def push_of(frame: Frame) -> Push:
    """The push of a frame."""
    dense, rows = {}, {}
    for key, array in frame.arrays.items():
        kind, _, name = key.partition(" ")
        if kind == "dense":
            dense[name] = array
        elif kind == "rows":
            values = frame.arrays.get(f"values {name}")
            if values is None:
                raise CollectiveError("rows without values", where="parameter server", got=name[:80])
            rows[name] = (array, values)
    return Push(whole(frame.facts, "worker"), whole(frame.facts, "clock"), dense, rows)
