"""Collective operations among the processes of a machine, through memory that they share.

    group = tilewright.collective.join("learners", rank=0, ranks=2)
    group.all_reduce(gradients)                     # in place, in each of the processes

Each operation is an exchange: every rank copies a window of its data to shared memory, all meet at a barrier, and each
reads what it needs from the others' windows; then follows the next window. Two windows alternate, so that one barrier
for each window suffices: a rank that reuses a window has met all others after they read it. In large all-reductions of
more than two ranks, each rank reduces a slice, followed by one more barrier.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from functools import partial
from types import TracebackType

import numpy as np

from tilewright.collective.calls import Call
from tilewright.collective.kernels import reduction
from tilewright.collective.meeting import ABSENT, DIED, HEADER, LINE_SIZE, LINES_AT, OVER, PLACE, broken_by, meetings
from tilewright.collective.reductions import DTYPES, Array, address_of, check_reduction, native, reduce_into
from tilewright.collective.segment import (
    BOX,
    CALL_AT,
    CALL_SIZE,
    MAX_RANKS,
    PIECE,
    RECEIVED_AT,
    Segment,
    open_segment,
    path_of,
)
from tilewright.collective.small import DIRECT, Small, SmallReductions
from tilewright.collective.windows import EMPTY, bytes_of, elements_of, take_part, taking_rows
from tilewright.runtime.layout import Memory
from tilewright.support.errors import CollectiveError

SLICE_NS = 50_000_000
"""Nanoseconds that native code waits before Python checks whether a rank has died."""


class Group:
    """The ranks of `join`, seen by one of them. Its methods are called by all ranks in the same order, by one thread at
    a time; `send` and `receive` by the two that they are about.

    Attributes:
        rank: this process's number.
        ranks: how many there are.
        timeout: seconds that a rank waits for the others in one operation.

    Every method raises CollectiveError, which names rank, operation and number of the call, if a rank has died or left,
    does not come in time (the group is broken then, for all), or calls something else.
    """

    def __init__(self, name: str, segment: Segment, rank: int, ranks: int, timeout: float) -> None:
        self.name = name
        self.rank = rank
        self.ranks = ranks
        self.timeout = timeout
        self.bytes_shown = 0
        """Bytes that this rank has shown to the others in all operations."""
        self._segment = segment
        self._code = meetings()
        self._words = np.zeros(5, np.int64)
        self._words_at = address_of(self._words)
        tables = [np.array([address_of(w) for w in windows], np.int64) for windows in segment.windows]
        self._tables = [(table, address_of(table)) for table in tables]
        self._own_windows = [int(table[rank]) for table in tables]
        self._place = Memory(PLACE.size)
        head = [segment.address, rank, ranks, SLICE_NS]
        self._place.write(0, head + self._own_windows + [address for _, address in self._tables])
        self._window = segment.window
        self._small = SmallReductions(segment.window if ranks == 2 else DIRECT)
        self._count = 0
        self._calls = 0
        self._turn = 0
        self._lock = threading.RLock()
        self._boxes = [threading.Lock() for _ in range(2 * ranks)]
        self._unread: list[list[tuple[int, Array]]] = [[] for _ in range(ranks)]

    # -- operations ----------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until all ranks of the group have called this method."""
        self._exchange(Call("barrier"), EMPTY, lambda begin, windows: None)

    def all_reduce(self, array: Array, operation: str = "sum", *, dtype: str | None = None) -> Array:
        """Reduce over the ranks, in place, with equal bits on all of them.

        Args:
            array: C-contiguous and writable.
            operation: sum, avg, prod, min, max, band, bor or bxor.
            dtype: the name of its type where NumPy has none, as "bf16" for u16.
        """
        if type(array) is np.ndarray and array.flags.carray:
            small = self._small.get((array.dtype, operation, array.size, dtype))
            if small is not None:
                self._reduce_small(small, addressof(c_char.from_buffer(array.data)))
                return array
        flat, name = self._flat(array, dtype, "all_reduce")
        check_reduction(operation, name, partial(self._where, "all_reduce"))
        small = self._small.find(name, operation, flat.size)
        if small is not None:
            self._small.keep((array.dtype, operation, flat.size, dtype), small)
            self._reduce_small(small, address_of(flat))
            return array

        call = Call("all_reduce", name, operation, elements=flat.size)
        kernel = native(name, operation, flat.size)
        at, nbytes, item = address_of(flat), flat.nbytes, flat.itemsize

        def take(begin: int, windows: list[Array]) -> None:
            shown = min(self._window, nbytes - begin)
            if self.ranks == 1:
                return
            if kernel is not None and (self.ranks == 2 or shown <= DIRECT):
                kernel(at + begin, self._tables[self._turn ^ 1][1], self.ranks, shown // item)
                return
            part = elements_of(flat, begin, self._window)
            seen = [window[:shown].view(flat.dtype) for window in windows]
            if self.ranks == 2 or shown <= DIRECT:
                reduce_into(part, seen, name, operation)
                return
            slices = [slice(part.size * r // self.ranks, part.size * (r + 1) // self.ranks) for r in range(self.ranks)]
            own = slices[self.rank]
            reduce_into(part[own], [one[own] for one in seen], name, operation)
            seen[self.rank][own] = part[own]
            self.bytes_shown += part[own].nbytes
            self._meet(call)
            for r, one in enumerate(slices):
                if r != self.rank:
                    part[one] = seen[r][one]

        self._exchange(call, bytes_of(flat), take)
        return array

    def all_reduce_at(self, data: int, elements: int, dtype: str, operation: str) -> bool:
        """Do `all_reduce` on the `elements` elements of type `dtype` at address `data` by one native call, and return
        True; or do nothing and return False, if they are too many or no kernel reduces them."""
        small = self._small.find(dtype, operation, elements)
        if small is not None:
            self._reduce_small(small, data)
        return small is not None

    def _reduce_small(self, small: Small, data: int) -> None:
        with self._lock:
            if self._segment.file < 0:
                raise CollectiveError("the group is closed", where=self._where("all_reduce"))
            self._count += 1
            turn, self._turn = self._turn, self._turn ^ 1
            self.bytes_shown += small.nbytes
            line = CALL_AT + (self._calls & 1) * CALL_SIZE
            result = self._code.reduce(
                self._place.address,
                self._count,
                turn,
                small.words_at,
                line,
                data,
                small.nbytes,
                small.kernel,
                small.elements,
            )
            if result:
                if result == OVER:
                    self._come(small.call)
                self._agree(small.call)
                call = small.call
                reduction(call.dtype, call.reduction)(data, self._tables[turn][1], self.ranks, small.elements)
            self._calls += 1

    def reduce(self, array: Array, root: int = 0, operation: str = "sum", *, dtype: str | None = None) -> Array:
        """Reduce the arrays of all ranks by `operation` into the array of rank `root`, in place; the arrays of the
        other ranks do not change. Returns `array`. `dtype` names the element type where NumPy has none, such as "bf16".
        Raises CollectiveError if ranks disagree or the operation is unknown."""
        flat, name = self._flat(array, dtype, "reduce")
        check_reduction(operation, name, partial(self._where, "reduce"))

        def take(begin: int, windows: list[Array]) -> None:
            if self.rank == root:
                part = elements_of(flat, begin, self._window)
                reduce_into(part, [w[: part.nbytes].view(flat.dtype) for w in windows], name, operation)

        self._exchange(Call("reduce", name, operation, self._root(root, "reduce"), flat.size), bytes_of(flat), take)
        return array

    def broadcast(self, array: Array, root: int = 0, *, dtype: str | None = None) -> Array:
        """Copy the array of rank `root` into the arrays of all other ranks, and return it. `dtype` names the element
        type where NumPy has none, such as "bf16"."""
        flat, name = self._flat(array, dtype, "broadcast")
        shown = bytes_of(flat) if self.rank == root else EMPTY

        def take(begin: int, windows: list[Array]) -> None:
            if self.rank != root:
                part = bytes_of(flat)[begin : begin + self._window]
                part[:] = windows[root][: part.size]

        self._exchange(Call("broadcast", name, root=self._root(root, "broadcast"), elements=flat.size), shown, take)
        return array

    def all_gather(self, array: Array, out: Array | None = None, *, dtype: str | None = None) -> Array:
        """The arrays of all ranks, [ranks, *array.shape], written to `out` or to a new array. `dtype` names the element
        type where NumPy has none, such as "bf16"."""
        flat, name = self._flat(np.ascontiguousarray(array), dtype, "all_gather", writes=False)
        result = np.empty((self.ranks, *array.shape), array.dtype) if out is None else out
        rows = self._flat(result, dtype, "all_gather")[0].reshape(self.ranks, -1)
        if rows.shape[1] != flat.size:
            raise CollectiveError(
                "the result has another size", where=self._where("all_gather"), expected=flat.size, got=rows.shape[1]
            )
        self._exchange(Call("all_gather", name, elements=flat.size), bytes_of(flat), taking_rows(rows))
        return result

    def gather(self, array: Array, root: int = 0, *, dtype: str | None = None) -> Array | None:
        """The arrays of all ranks, [ranks, *array.shape], on rank `root`; None on the others. `dtype` names the element
        type where NumPy has none, such as "bf16"."""
        flat, name = self._flat(np.ascontiguousarray(array), dtype, "gather", writes=False)
        call = Call("gather", name, root=self._root(root, "gather"), elements=flat.size)
        if self.rank != root:
            self._exchange(call, bytes_of(flat), lambda begin, windows: None)
            return None
        result = np.empty((self.ranks, *array.shape), array.dtype)
        self._exchange(call, bytes_of(flat), taking_rows(result.reshape(self.ranks, -1)))
        return result

    def scatter(self, out: Array, parts: Array | None = None, root: int = 0, *, dtype: str | None = None) -> Array:
        """Copy row `rank` of the array `parts` of rank `root`, [ranks, *out.shape], into `out`, and return that; the
        other ranks pass no parts. `dtype` names the element type where NumPy has none, such as "bf16"."""
        flat, name = self._flat(out, dtype, "scatter")
        shown = EMPTY
        if self.rank == self._root(root, "scatter"):
            expected = (self.ranks, *out.shape)
            if parts is None or parts.shape != expected or parts.dtype != out.dtype:
                got = None if parts is None else (parts.shape, str(parts.dtype))
                raise CollectiveError(
                    "there is no row for each rank", where=self._where("scatter"), expected=expected, got=got
                )
            shown = bytes_of(np.ascontiguousarray(parts).reshape(-1))
        target = bytes_of(flat)
        first = self.rank * target.size
        call = Call("scatter", name, root=root, elements=flat.size)
        self._exchange(call, shown, lambda begin, windows: take_part(target, first, begin, windows[root]))
        return out

    def reduce_scatter(
        self, array: Array, out: Array | None = None, operation: str = "sum", *, dtype: str | None = None
    ) -> Array:
        """Reduce `array`, [ranks, ...], over all ranks by `operation`, and return row `rank` of the result, in `out` if
        that is passed: each rank gets its own row. `dtype` names the element type where NumPy has none, such as "bf16".
        Raises CollectiveError if the array has not one row for each rank."""
        flat, name = self._flat(np.ascontiguousarray(array), dtype, "reduce_scatter", writes=False)
        check_reduction(operation, name, partial(self._where, "reduce_scatter"))
        if array.ndim == 0 or array.shape[0] != self.ranks:
            raise CollectiveError(
                "there is no row for each rank",
                where=self._where("reduce_scatter"),
                expected=self.ranks,
                got=array.shape,
            )
        result = np.empty(array.shape[1:], array.dtype) if out is None else out
        own = self._flat(result, dtype, "reduce_scatter")[0]
        if own.size * self.ranks != flat.size:
            raise CollectiveError(
                "the result has another size",
                where=self._where("reduce_scatter"),
                expected=flat.size // self.ranks,
                got=own.size,
            )
        first, item = self.rank * own.nbytes, flat.itemsize

        def take(begin: int, windows: list[Array]) -> None:
            low, high = max(begin, first), min(begin + self._window, first + own.nbytes)
            if low < high:
                seen = [w[low - begin : high - begin].view(flat.dtype) for w in windows]
                reduce_into(own[(low - first) // item : (high - first) // item], seen, name, operation)

        self._exchange(Call("reduce_scatter", name, operation, elements=flat.size), bytes_of(flat), take)
        return result

    def all_to_all(self, parts: Sequence[Array], outs: Sequence[Array], *, dtype: str | None = None) -> None:
        """Fill `outs[r]` with rank r's part for this rank; parts may have any sizes, including 0.

        If a part's size differs from that of its output, only the receiving rank gets an error.
        """
        if len(parts) != self.ranks or len(outs) != self.ranks:
            where = self._where("all_to_all")
            raise CollectiveError("there is no part for each rank", where=where, expected=self.ranks, got=len(parts))
        pieces = [self._flat(np.ascontiguousarray(p), dtype, "all_to_all", writes=False)[0] for p in parts]
        targets = [bytes_of(self._flat(o, dtype, "all_to_all")[0]) for o in outs]
        name = self._flat(outs[0], dtype, "all_to_all")[1]
        sizes = self.all_gather(np.array([piece.nbytes for piece in pieces], np.int64))
        wrong = [r for r in range(self.ranks) if sizes[r, self.rank] != targets[r].size]
        firsts = [int(sizes[r, : self.rank].sum()) for r in range(self.ranks)]
        shown = bytes_of(np.concatenate(pieces))

        def take(begin: int, windows: list[Array]) -> None:
            for target, first, window in zip(targets, firsts, [] if wrong else windows, strict=not wrong):
                take_part(target, first, begin, window)

        self._exchange(Call("all_to_all", name, elements=-1), shown, take, int(sizes.sum(1).max()))
        if wrong:
            r = wrong[0]
            raise CollectiveError(
                f"rank {r} has another size for this rank",
                where=self._where("all_to_all"),
                expected=f"{targets[r].size} bytes",
                got=f"{sizes[r, self.rank]} bytes",
            )

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Send an array's bytes; returns when the last piece of 64 KB has been written to the mailbox."""
        where = self._where(f"send to rank {self._root(to, 'send')}")
        data = bytes_of(np.ascontiguousarray(array).reshape(-1))
        segment, box = self._segment, self._segment.box(self.rank, to)
        with self._boxes[to]:
            for begin in range(0, max(data.size, 1), PIECE):
                sent = int(segment.words[(box + BOX.sent) >> 3])
                self._await(box + RECEIVED_AT, sent, to, where)
                piece = data[begin : begin + PIECE]
                segment.piece(box)[: piece.size] = piece
                segment.words[(box + BOX.nbytes) >> 3] = data.size
                segment.words[(box + BOX.tag) >> 3] = tag
                self._code.post(segment.address, segment.address + box + BOX.sent, sent + 1)

    def receive(self, array: Array, source: int, tag: int = 0) -> None:
        """Fill the C-contiguous `array` with the next message of rank `source` with this tag, of equal size."""
        target = bytes_of(self._flat(array, None, "receive", any_type=True)[0])
        data = self.message(source, tag)
        if data.size != target.size:
            where, expected = self._where(f"receive from rank {source}"), f"{target.size} bytes"
            raise CollectiveError(
                "the message has another size", where=where, expected=expected, got=f"{data.size} bytes"
            )
        target[:] = data

    def message(self, source: int, tag: int = 0) -> Array:
        """Wait for the next message of rank `source` with this tag, and return its bytes, u8[bytes]."""
        where = self._where(f"receive from rank {self._root(source, 'receive')}")
        with self._boxes[self.ranks + source]:
            unread = self._unread[source]
            index = next((k for k, (other, _) in enumerate(unread) if other == tag), None)
            data = unread.pop(index)[1] if index is not None else None
            while data is None:
                other, message = self._message(source, where)
                if other == tag:
                    data = message
                else:
                    unread.append((other, message))
        return data

    def has_message(self, source: int) -> bool:
        """Whether a piece of a message from rank `source` to this rank lies in the mailbox; does not wait."""
        segment, box = self._segment, self._segment.box(source, self.rank)
        words = segment.words
        return int(words[(box + BOX.sent) >> 3]) > int(words[(box + RECEIVED_AT) >> 3])

    def first_message(self, sources: Sequence[int], tag: int = 0) -> int:
        """The rank among `sources` whose message with this tag arrives first."""
        deadline = time.monotonic() + self.timeout
        where = self._where("receive from any rank")
        while True:
            for source in sources:
                with self._boxes[self.ranks + source]:
                    unread = self._unread[source]
                    while self.has_message(source) and not any(other == tag for other, _ in unread):
                        unread.append(self._message(source, where))
                    if any(other == tag for other, _ in unread):
                        return source
            if time.monotonic() > deadline:
                self._give_up(f"no message came within the timeout of {self.timeout:g} s", where)
            time.sleep(0.0001)

    def _message(self, source: int, where: str) -> tuple[int, Array]:
        """(tag, bytes) of the next message from rank `source`, assembled from its pieces in the mailbox. `where` is for
        errors."""
        segment, box = self._segment, self._segment.box(source, self.rank)
        data: Array | None = None
        begin = tag = 0
        while data is None or begin < data.size:
            received = int(segment.words[(box + RECEIVED_AT) >> 3])
            self._await(box + BOX.sent, received + 1, source, where)
            if data is None:
                data = np.empty(int(segment.words[(box + BOX.nbytes) >> 3]), np.uint8)
                tag = int(segment.words[(box + BOX.tag) >> 3])
            piece = data[begin : begin + PIECE]
            piece[:] = segment.piece(box)[: piece.size]
            begin += PIECE
            self._code.post(segment.address, segment.address + box + RECEIVED_AT, received + 1)
        return tag, data

    # -- meeting -------------------------------------------------------------------------------------------------------

    def _exchange(
        self, call: Call, shown: Array, take: Callable[[int, list[Array]], None], most: int | None = None
    ) -> None:
        """Show the bytes `shown` to all ranks, one window at a time, and pass each window of all ranks to `take(begin,
        windows)`, where `begin` is its offset. `most`: the largest number of bytes that any rank shows, if that is
        known."""
        with self._lock:
            total = self._total(call, shown.size) if most is None else most
            data, size = address_of(shown) if shown.size else 0, shown.size
            for begin in range(0, max(total, 1), self._window):
                turn = self._show(call, begin == 0, data + begin, max(0, min(self._window, size - begin)))
                if total:
                    take(begin, self._segment.windows[turn])
            self._calls += 1

    def _show(self, call: Call, is_first: bool, data: int, nbytes: int) -> int:
        """Copy `nbytes` bytes at `data` into this rank's window, and wait until all ranks have done so; returns which
        of two windows was used. In an operation's first window all ranks' calls are compared."""
        segment = self._segment
        if segment.file < 0:
            raise CollectiveError("the group is closed", where=self._where(call.operation))
        self._count += 1
        turn, self._turn = self._turn, self._turn ^ 1
        self.bytes_shown += nbytes
        words = 0
        if is_first:
            words = self._words_at
            _PACK(self._words.data, 0, *call.words)
        line = CALL_AT + (self._calls & 1) * CALL_SIZE
        window = self._own_windows[turn]
        result = self._code.show(
            segment.address, self.rank, self.ranks, self._count, SLICE_NS, words, line, window, data, nbytes
        )
        if result == OVER:
            self._come(call)
        if result and is_first:
            self._agree(call)
        return turn

    def _total(self, call: Call, shown: int) -> int:
        """The largest number of bytes that any rank shows in `call`. In a broadcast or scatter it follows from the
        call, as only the root shows any; in others all ranks show as many as this one, `shown`."""
        if call.root >= 0 and call.operation in ("broadcast", "scatter"):
            rows = self.ranks if call.operation == "scatter" else 1
            return call.elements * DTYPES[call.dtype].itemsize * rows
        return shown

    def _meet(self, call: Call) -> None:
        self._count += 1
        if self._segment.file < 0:
            raise CollectiveError("the group is closed", where=self._where(call.operation))
        if self._code.meet(self._segment.address, self.rank, self.ranks, self._count, SLICE_NS):
            self._come(call)

    def _come(self, call: Call) -> None:
        """Wait longer for ranks that have not reached the meeting of `call`, until the timeout."""
        segment, count = self._segment, self._count

        def missing() -> list[int]:
            return [r for r in range(self.ranks) if self._meetings(r) < count]

        def attempt() -> int:
            return self._code.meet(segment.address, self.rank, self.ranks, count, SLICE_NS)

        self._persist(attempt, missing, self._where(str(call)))

    def _meetings(self, rank: int) -> int:
        """How many meetings `rank` has reached; 0 before it has joined."""
        return int(self._segment.words[(LINES_AT + rank * LINE_SIZE) >> 3])

    def _await(self, at: int, count: int, other: int, where: str) -> None:
        """Wait until the word at offset `at`, which rank `other` increments, is at least `count`."""
        segment = self._segment
        if segment.file < 0:
            raise CollectiveError("the group is closed", where=where)

        def attempt() -> int:
            return self._code.wait(segment.address, segment.address + at, count, SLICE_NS)

        if attempt():
            self._persist(attempt, lambda: [other] if int(segment.words[at >> 3]) < count else [], where)

    def _persist(self, attempt: Callable[[], int], missing: Callable[[], list[int]], where: str) -> None:
        """Call `attempt` until it returns 0. Raises CollectiveError if the group breaks, a rank of `missing()` has
        died, or the timeout passes; `where` is for errors."""
        deadline = time.monotonic() + self.timeout
        broken = HEADER.broken >> 3
        while attempt():
            if self._segment.words[broken]:
                raise CollectiveError(broken_by(int(self._segment.words[broken])), where=where)
            dead = [r for r in missing() if self._meetings(r) and not self._segment.lives(r)]
            if dead := [r for r in dead if r in missing()]:
                self._give_up(f"rank {dead[0]} has died or left", where, dead[0], DIED)
            if time.monotonic() > deadline:
                absent = missing()
                names = ", ".join(map(str, absent))
                what = f"rank {names} did not come within the timeout of {self.timeout:g} s"
                self._give_up(what, where, min(absent, default=-1), ABSENT)

    def _give_up(self, what: str, where: str, culprit: int = -1, why: int = 0) -> None:
        self._break(culprit, why)
        raise CollectiveError(what, where=where, hint="the group is broken: join another")

    def _agree(self, call: Call) -> None:
        """Raise CollectiveError on every rank unless all make equal calls."""
        calls = [self._segment.call_words(r, self._calls & 1) for r in range(self.ranks)]
        if all(tuple(words.tolist()) == call.words for words in calls):
            return
        self._calls += 1
        texts = [f"rank {r} calls {Call.of(words.tolist())}" for r, words in enumerate(calls)]
        raise CollectiveError(
            "ranks call different things", where=self._where(call.operation), got="; ".join(texts[:8])
        )

    def _where(self, operation: str) -> str:
        return f"group {self.name!r}, rank {self.rank} of {self.ranks}, call {self._calls}: {operation}"

    def _root(self, root: int, operation: str) -> int:
        if not 0 <= root < self.ranks:
            raise CollectiveError(
                "no such rank", where=self._where(operation), expected=f"0 to {self.ranks - 1}", got=root
            )
        return root

    def _flat(
        self, array: Array, dtype: str | None, operation: str, *, writes: bool = True, any_type: bool = False
    ) -> tuple[Array, str]:
        """(`array` as one dimension, the name of its element type, which is `dtype` if that is passed). Raises
        CollectiveError, about `operation`, unless the array is C-contiguous, writable if the operation `writes` it, and
        of a supported type or `any_type`."""
        name = dtype or _NAMES.get(np.asarray(array).dtype)
        if not isinstance(array, np.ndarray) or (name not in DTYPES and not any_type):
            got = str(getattr(array, "dtype", type(array).__name__))
            raise CollectiveError("not such an array", where=self._where(operation), expected=list(DTYPES), got=got)
        if not array.flags.c_contiguous or (writes and not array.flags.writeable):
            raise CollectiveError("the array must be C-contiguous and writable", where=self._where(operation))
        return array.reshape(-1), name or "u8"

    # -- end -----------------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Break the group: all operations that wait in it, on any rank and in any thread, fail."""
        self._break(-1, 0)

    def _break(self, culprit: int, why: int) -> None:
        """Mark the group as broken by rank `culprit`, for the reason `why`: all later calls raise an error."""
        if not self._segment.words[HEADER.broken >> 3]:
            self._segment.words[HEADER.broken >> 3] = self.rank + 1 | culprit + 1 << 16 | why << 32
        self._code.ring(self._segment.address)

    def close(self) -> None:
        """Leave the group by releasing this rank's lock; later operations of the other ranks fail."""
        self._segment.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def join(
    name: str, rank: int, ranks: int, *, timeout: float = 300.0, directory: str | os.PathLike[str] | None = None
) -> Group:
    """Become one of the `ranks` processes of a group, and wait until all have come.

    Args:
        name: of the group, equal on all ranks; it may be reused as soon as all have joined.
        rank: this process's number, from 0.
        ranks: how many there are, up to 64.
        timeout: seconds to wait for the others, here and in each operation.
        directory: where they find each other; None: that of weight stores, in shared memory.

    Raises:
        CollectiveError: a rank does not join, joins twice, or expects another number of ranks.
        StoreError: the name is invalid, or the folder is not the user's own.
    """
    where = f"group {str(name)[:60]!r}"
    if not 1 <= ranks <= MAX_RANKS or not 0 <= rank < ranks:
        raise CollectiveError(
            "no such rank", where=where, expected=f"0 <= rank < ranks <= {MAX_RANKS}", got=f"rank {rank} of {ranks}"
        )
    segment = open_segment(name, rank, ranks, time.monotonic() + timeout, directory)
    group = Group(name, segment, rank, ranks, timeout)
    try:
        group.barrier()
        if rank == 0:
            path_of(name, directory).unlink(missing_ok=True)
        group.barrier()
    except BaseException:
        group.close()
        raise
    return group


_PACK = struct.Struct("5q").pack_into
_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "bf16"}
