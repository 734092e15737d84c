"""The notes: facts on loops, blocks and functions that schedules and passes state for later passes and code generation.

Each note is a class; its docstring says who writes and who reads it. To add one, add its class, with `register`, to its
writer's or its reader's file, whichever the other may import, or here if several do; text, verifier, keys and the table
in docs/ir.md follow. The scopes of buffers and the hardware indices of GPU loops are here as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

from tilewright.ir.attributes import NO_ATTRS, Attrs
from tilewright.ir.notetable import (
    NOTES,
    BlockNote,
    BufferName,
    Count,
    FuncNote,
    LoopNote,
    Note,
    all_notes,
    find,
    register,
    signature,
    similar_name,
    with_note,
    without,
)
from tilewright.ir.scopes import GROUPS, SCOPES, THREADS, Group, Scope, Thread, known_scopes
from tilewright.support.classes import dataclass
from tilewright.support.errors import VerifyError

# Loops


@register
@dataclass(frozen=True, slots=True)
class Prefetch(LoopNote):
    """Each iteration prefetches what it reads of some buffers, a distance further on.

        for k in 0..128 @prefetch(buffers=[w], nbytes=4096)     the lines of each step's part of w, 4096 bytes on

    Iterations may share what is to be prefetched, so that memory is busy all the time and not only while the first
    ones wait for it: the `rows` that read the same, the `tiles` that do, or, by turns, the runs that differ in another
    buffer's first index. It changes no result; addresses after the buffer do no harm.

    Args:
        buffers: what is prefetched: the first element that the iteration reads, and what follows it.
        nbytes: bytes from what an iteration reads to what it prefetches.
        level: the level of cache that the lines go into.
        lines: cache lines for one iteration; None: those that the next iteration does not prefetch.
        rows: this many rows, of which each run of the loop has a few, read the same: each run prefetches the part of
            its rows.
        strip: rows are numbered modulo this; where there are fewer than `rows` in all, these share. None: all rows
            together are `rows`.
        fewer_than: fewer rows than these do not share: each prefetches `distance` bytes after what it reads.
        distance: bytes; None: nothing.
        prefetch_level: the level that these lines go into in a kernel for a known number of rows below `fewer_than`;
            None: `level`.
        tiles: this many runs of the loop, in enclosing loops that do not move what is read, read the same: each
            prefetches its part. Where there are fewer runs, at the end of a map, none prefetches.
        turn: runs that differ in the first index of this buffer read the same: each prefetches `lines` lines, the next
            one those after.
        turns: how many such runs share.

    Written by the plans, read by `codegen/llvm/prefetch.py`.
    """

    buffers: tuple[BufferName, ...]
    nbytes: Count
    level: Literal[1, 2] = 2
    lines: Count | None = None
    rows: Count | None = None
    strip: Count | None = None
    fewer_than: Count | None = None
    distance: Count | None = None
    prefetch_level: Literal[1, 2] | None = None
    tiles: Count | None = None
    turn: BufferName | None = None
    turns: Count | None = None

    def conflicts(self) -> Iterator[str]:
        shared = [name for name in ("rows", "tiles", "turn") if getattr(self, name) is not None]
        if len(shared) > 1:
            yield f"{' and '.join(shared)} say different things about who shares"
        for name, other in (
            ("strip", "rows"),
            ("fewer_than", "strip"),
            ("distance", "fewer_than"),
            ("prefetch_level", "distance"),
        ):
            if getattr(self, name) is not None and getattr(self, other) is None:
                yield f"{name!r} needs {other!r}"
        if (self.turn is None) != (self.turns is None):
            yield "'turn' and 'turns' go together"


@register
@dataclass(frozen=True, slots=True)
class PrefetchTile(LoopNote):
    """Each iteration prefetches all that it writes or reads of some buffers in its unrolled and vectorised loops.

    Without the note, the stores at the end of a long iteration would wait for these lines.

    Args:
        buffers: what is prefetched, into the second level of cache.

    Written by `plans/matmul/contraction.py`, read by `codegen/llvm/prefetch.py`.
    """

    buffers: tuple[BufferName, ...]


@register
@dataclass(frozen=True, slots=True)
class PrefetchShare(LoopNote):
    """All iterations together prefetch the first bytes of a buffer that a later kernel reads, each its part in order.

    Args:
        source: the buffer, a parameter which the function does not read itself.
        nbytes: bytes to prefetch, into the second level of cache.

    Written by `transform/loops/prefetch_share.py`, read by `codegen/llvm/prefetch.py`.
    """

    source: BufferName
    nbytes: Count


@register
@dataclass(frozen=True, slots=True)
class Streaming(LoopNote):
    """A vectorised loop writes whole lines past the caches, with non-temporal stores, where that is possible.

    Written by `plans/framework/common.py` (stream_outputs), removed by `transform/loops/reuse.py` where the output is
    read again, read by `codegen/llvm/stmt.py`.
    """


@register
@dataclass(frozen=True, slots=True)
class Unroll(LoopNote):
    """LLVM unrolls the loop: so many copies of the body in one iteration, and a loop for the rest.

    The code is that of an unrolled inner loop, and takes a fraction of the time to compile.

    Args:
        times: copies of the body.

    Written by the plans and `ops/loopnest.py`, read by `codegen/llvm/stmt.py`.
    """

    times: Count


@register
@dataclass(frozen=True, slots=True)
class InOrder(LoopNote):
    """The iterations run one after another, as each may read what earlier ones wrote: a recurrence.

    Written by `te/blocks.py`, read by `schedule/loops.py` and `schedule/kinds.py`, which leave the loop as it is.
    """


@register
@dataclass(frozen=True, slots=True)
class DoubleBuffer(LoopNote):
    """Each iteration fills some buffers for the next one, in another half of their memory, before it reads its own.

    Args:
        buffers: which live in the loop alone.

    Written by `schedule/storage.py`, read and removed by `transform/loops/double.py`.
    """

    buffers: tuple[BufferName, ...]


# Blocks


@register
@dataclass(frozen=True, slots=True)
class Origin(BlockNote):
    """The block computes a stage of an operator of the graph.

        block product (...) @origin(op="lowered.conv_winograd", stage=product, attrs={tile = 4, window = 3, ...})

    A plan asks this for what the function is about; users' own tensor expressions have no origin.

    Args:
        op: the operator.
        stage: what the operator's tensor expression calls the block.
        attrs: the operator's attributes.

    Written by `transform/lower.py`, read by the plans through `plans/framework/analysis.py`.
    """

    op: str
    stage: str
    attrs: Attrs = NO_ATTRS


# Functions


@register
@dataclass(frozen=True, slots=True)
class SingleThread(FuncNote):
    """One thread runs all of the function: sharing it would take longer.

    Written by `plans/framework/base.py`, read by `codegen/llvm/threads.py`.
    """


@register
@dataclass(frozen=True, slots=True)
class MayAlias(FuncNote):
    """Parameters may share memory: a pointwise kernel may write over an operand that nothing reads later.

    Written by `kernels.py`, read by `transform/loops/reuse.py`, `transform/loops/overlap.py`,
    `transform/loops/whole_tiles.py`, `plans/framework/decision_key.py` and `codegen/llvm/emit.py`.
    """


@register
@dataclass(frozen=True, slots=True)
class PastCaches(FuncNote):
    """The program as a whole touches or writes so much that these outputs are written past the caches, of any size.

    Written by `kernels.py`, read by `plans/framework/common.py` (streams) and `plans/framework/decision_key.py`.
    """


SharedLevel = Literal["l3", "memory"]
"""The levels of memory that cores share."""


@register
@dataclass(frozen=True, slots=True)
class NonresidentWeights(FuncNote):
    """The weights of the whole program do not fit a nearer level of memory than `level`: each call reads its own there.

    Args:
        level: where they are, l3 or memory.

    Written by `transform/nonresident.py`, read through `plans/framework/cost.py` (working_set) and by
    `transform/loops/unread.py`.
    """

    level: SharedLevel = "memory"


@register
@dataclass(frozen=True, slots=True)
class Workspaces(FuncNote):
    """The last parameters are memory that the function needs and nothing else reads.

    Args:
        count: how many of the parameters.

    Written by `transform/loops/workspace.py`, read through `PrimFunc.workspaces`.
    """

    count: Count


# Scopes of buffers and hardware indices (`ir/scopes.py`): their names in text

K = TypeVar("K", bound=str)


def scope_named(name: str) -> Scope:
    """The scope called `name`. Raises VerifyError if there is none."""
    return _one_of("scope", name, known_scopes())


def thread_named(name: str) -> Thread:
    """The hardware index called `name`. Raises VerifyError if there is none."""
    return _one_of("hardware index", name, THREADS)


def group_named(name: str) -> Group:
    """The group of threads called `name`. Raises VerifyError if there is none."""
    return _one_of("group of threads", name, GROUPS)


def _one_of(what: str, name: str, known: tuple[K, ...]) -> K:
    for each in known:
        if each == name:
            return each
    raise VerifyError(
        f"no {what} is called {name!r}", expected=f"one of {', '.join(known)}", hint=similar_name(name, known)
    )


def markdown() -> str:
    """The table of all notes, scopes and hardware indices for docs/ir.md."""
    rows = [(f"@{signature(kind)}", kind.place, _summary(kind)) for _, kind in sorted(all_notes().items())]
    rows += [(f"in {scope}", "buffer", meaning) for scope, meaning in SCOPES.items()]
    rows.append((f"thread({' | '.join(THREADS)})", "loop", "An index of a GPU runs through the loop."))
    lines = [f"| `{text.replace('|', chr(92) + '|')}` | {place} | {meaning} |" for text, place, meaning in rows]
    return "\n".join(["| text | stands on a | meaning |", "|---|---|---|", *lines])


def _summary(kind: type[Note]) -> str:
    """The first paragraph of a class's docstring, on one line."""
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


__all__ = [
    "NOTES",
    "SCOPES",
    "THREADS",
    "BlockNote",
    "BufferName",
    "NonresidentWeights",
    "Count",
    "DoubleBuffer",
    "FuncNote",
    "LoopNote",
    "MayAlias",
    "Note",
    "Origin",
    "PastCaches",
    "Prefetch",
    "PrefetchShare",
    "PrefetchTile",
    "Scope",
    "SingleThread",
    "Streaming",
    "Thread",
    "Unroll",
    "Workspaces",
    "all_notes",
    "find",
    "group_named",
    "markdown",
    "register",
    "scope_named",
    "thread_named",
    "with_note",
    "without",
]
