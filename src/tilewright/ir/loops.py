"""Loop programs: a `PrimFunc` is a loop tree over buffers.

    stmt := For | Block | Store | Let | If | Allocate | Seq | Intrinsic | Barrier

A *block* is a unit of computation that schedule primitives move. It is written over its own iteration variables, whose
values the surrounding loops bind; so moving or splitting loops only changes the bindings. A block whose iterators are
all spatial writes each element once; with reduce iterators it updates what it wrote, starting from `init`.

Names are unique inside a function: loops are addressed by their variable's name, blocks by theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from tilewright.ir.expr import Buffer, Const, Expr, Load, Var, const
from tilewright.ir.notes import BlockNote, FuncNote, LoopNote, Thread, Workspaces, find
from tilewright.ir.scopes import Group
from tilewright.support.classes import dataclass
from tilewright.support.errors import ExpressionError

LoopKind = Literal["serial", "parallel", "vectorized", "unrolled", "thread"]
IterKind = Literal["spatial", "reduce"]

TRUE: Const = const(True)

TID = Var("tid", lo=0)
"""The calling thread's number: every function that has the symbol `nthreads` may use it, without declaring it."""

NTHREADS = Var("nthreads", lo=1)
"""The number of threads that call the function: a reserved symbol, the leading extent of buffers with a part for each
thread."""


class Stmt:
    """The base class of statements; all are frozen dataclasses compared by value."""

    __slots__ = ("known_inside", "known_loads", "known_outside")
    known_inside: tuple[Stmt, ...]
    """The cached result of `rewrite.walk`, without the statement itself; unset until computed."""
    known_loads: tuple[Load, ...]
    """The cached result of `rewrite.own_loads`; unset until computed."""
    known_outside: tuple[Stmt, ...]
    """The cached result of `schedule.state.outside_blocks`, without the statement itself; unset until computed."""

    def __str__(self) -> str:
        from tilewright.ir.printer import stmt_text

        return stmt_text(self)

    @property
    def children(self) -> tuple[Stmt, ...]:
        """The statements directly inside this one."""
        return ()


keep_inside: Callable[[Stmt, tuple[Stmt, ...]], None] = Stmt.__dict__["known_inside"].__set__
"""A setter of the cache `known_inside`, since statements are frozen."""
keep_loads: Callable[[Stmt, tuple[Load, ...]], None] = Stmt.__dict__["known_loads"].__set__
"""A setter of the cache `known_loads`, since statements are frozen."""
keep_outside: Callable[[Stmt, tuple[Stmt, ...]], None] = Stmt.__dict__["known_outside"].__set__
"""A setter of the cache `known_outside`, since statements are frozen."""


@dataclass(frozen=True, slots=True, repr=False)
class For(Stmt):
    """The loop `for var in 0..extent`. Kind "thread": bound to a hardware index named by `thread` ("blockIdx.x")."""

    var: Var
    extent: Expr
    body: Stmt
    kind: LoopKind = "serial"
    thread: Thread | None = None
    notes: tuple[LoopNote, ...] = ()

    @property
    def children(self) -> tuple[Stmt, ...]:
        return (self.body,)


@dataclass(frozen=True, slots=True)
class BlockIter:
    """A block's iteration variable over `0..extent`, bound to the value `binding` by the loops around the block."""

    var: Var
    extent: Expr
    kind: IterKind
    binding: Expr


@dataclass(frozen=True, slots=True, repr=False)
class Block(Stmt):
    """A unit of computation over its own iterators.

    `body` (and `init`) mention the iterators' variables, buffers, symbols and, inside, variables they bind themselves;
    never surrounding loops. Runs only where `predicate` (over surrounding loops) holds. `init` runs before the first
    reduction step of each spatial point.
    """

    name: str
    iters: tuple[BlockIter, ...]
    body: Stmt
    init: Stmt | None = None
    predicate: Expr = TRUE
    notes: tuple[BlockNote, ...] = ()

    @property
    def children(self) -> tuple[Stmt, ...]:
        return (self.body,) if self.init is None else (self.init, self.body)

    @property
    def is_reduction(self) -> bool:
        return any(it.kind == "reduce" for it in self.iters)


@dataclass(frozen=True, slots=True, repr=False)
class Store(Stmt):
    """The statement `buffer[indices] = value`."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.buffer.shape):
            raise ExpressionError(
                f"{self.buffer.name} has {len(self.buffer.shape)} dimensions, not {len(self.indices)}"
            )
        if self.value.dtype is not self.buffer.dtype:
            raise ExpressionError(f"storing {self.value.dtype} into {self.buffer.name} of {self.buffer.dtype}")


@dataclass(frozen=True, slots=True, repr=False)
class Let(Stmt):
    """The statement `let var = value`, for the statements of `body`."""

    var: Var
    value: Expr
    body: Stmt

    @property
    def children(self) -> tuple[Stmt, ...]:
        return (self.body,)


@dataclass(frozen=True, slots=True, repr=False)
class If(Stmt):
    """The statement `if condition { then } else { orelse }`."""

    condition: Expr
    then: Stmt
    orelse: Stmt | None = None

    @property
    def children(self) -> tuple[Stmt, ...]:
        return (self.then,) if self.orelse is None else (self.then, self.orelse)


@dataclass(frozen=True, slots=True, repr=False)
class Allocate(Stmt):
    """A buffer that exists while `body` runs; its elements are undefined at first. Only in lowered functions."""

    buffer: Buffer
    body: Stmt

    @property
    def children(self) -> tuple[Stmt, ...]:
        return (self.body,)


@dataclass(frozen=True, slots=True, repr=False)
class Seq(Stmt):
    """Statements one after another. Never nested, never of length one (see `seq`)."""

    stmts: tuple[Stmt, ...]

    @property
    def children(self) -> tuple[Stmt, ...]:
        return self.stmts


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a buffer: `(start, extent)` for each dimension."""

    buffer: Buffer
    ranges: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Intrinsic(Stmt):
    """A hardware instruction sequence, by registered name, that reads `inputs` and writes (or updates) `outputs`."""

    name: str
    outputs: tuple[Region, ...]
    inputs: tuple[Region, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Barrier(Stmt):
    """The threads of a GPU's block (or warp) wait here for each other: what one of them wrote before, all can read.

    It stands between loops of threads or inside of them, where all threads of the group pass. In sequential execution
    it does nothing. `transform/loops/barriers.py` inserts barriers, and so do plans with several running copies.

    pending     asynchronous copies started since the last `pending` barriers of the block may still run after this
                barrier; 0: all are complete
    """

    group: Group = "block"
    pending: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class PrimFunc:
    """A function over `params` (destination passing: outputs are parameters too).

    `buffers` are intermediates whose place is not yet decided (while scheduling); lowering turns them into `Allocate`.
    `notes` are facts for later passes (`ir/notes.py`).
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    buffers: tuple[Buffer, ...] = ()
    notes: tuple[FuncNote, ...] = ()

    def __str__(self) -> str:
        from tilewright.ir.printer import func_text

        return func_text(self)

    __repr__ = __str__

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The symbolic dimensions of the parameters, by first appearance: what a caller passes besides the buffers."""
        from tilewright.ir.rewrite import variables

        result: dict[Var, None] = {}
        for buffer in self.params:
            for extent in buffer.shape:
                result.update(dict.fromkeys(variables(extent)))
        return tuple(result)

    @property
    def workspaces(self) -> tuple[Buffer, ...]:
        """The last parameters, which are memory for the function's own use (the note `Workspaces`)."""
        note = find(self.notes, Workspaces)
        return () if note is None else self.params[-note.count :]

    def with_body(self, body: Stmt) -> PrimFunc:
        return replace(self, body=body)


def seq(stmts: Iterable[Stmt]) -> Stmt:
    """A statement that runs `stmts` in order: a flat `Seq`, or the statement itself if it is only one."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.stmts if isinstance(stmt, Seq) else (stmt,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))
