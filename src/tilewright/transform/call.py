"""Data structures for the calls of kernels, which passes after lowering fill in until the manifest is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir.expr import Expr, Var
from tilewright.ir.graph import Value
from tilewright.ir.loops import PrimFunc
from tilewright.runtime.specs import CheckSpec, RegionKind, Work
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import Group
from tilewright.transform.loops.prefetch_share import WeightPrefetch


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory of one kernel: its size in bytes, which is that of each thread if `per_thread`."""

    nbytes: Expr
    per_thread: bool = False


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Object code that defines `symbol`; the scratch memory that the kernel needs; whether one thread executes all of
    it; the estimated cycles of a call; its operations and bytes (`transform/work.py`).

    `code()` waits until the object is compiled, and raises the error of a compilation that failed.
    """

    symbol: str
    code: Callable[[], bytes]
    workspaces: tuple[Workspace, ...]
    symbols: tuple[Var, ...]
    alone: bool
    cycles: int
    work: tuple[Work | None, Work | None]

    @property
    def object(self) -> bytes:
        return self.code()


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A group of nodes as a kernel, with the values that it is called on. Lowering creates the call, later passes add
    their results to it, and the manifest keeps its `StepSpec`.

    func      the loop program
    args      the values of its parameters, in order: the group's inputs, its outputs, then the value that it prefetches
    label     a description of the computation, for people
    group     the nodes
    prefetch  the part of its last argument that it prefetches for a later kernel (`transform/prefetch_across.py`)
    over      (output, input) pairs where the output may be written over the input
    branch    the number of the fork that it belongs to, and of its branch there (`transform/forks.py`)
    sizes     the values of its function's symbols that the program knows (`transform/passed_sizes.py`)
    compiled  its code, once it is compiled
    """

    func: PrimFunc
    args: tuple[Value, ...]
    label: str
    group: Group
    prefetch: WeightPrefetch | None = None
    over: tuple[tuple[Value, Value], ...] = ()
    branch: tuple[int, int] | None = None
    sizes: tuple[tuple[Var, int], ...] = ()
    compiled: CompiledKernel | None = None

    @property
    def code(self) -> CompiledKernel:
        """The code of the kernel, which must have been compiled: `compiled` is set."""
        assert self.compiled is not None, f"{self.label} is not compiled yet"
        return self.compiled

    def on(self, target: Target) -> Target:
        """The target for which the kernel is compiled: with one thread where the call belongs to a branch."""
        return target if self.branch is None else replace(target, threads=1)


@dataclass(frozen=True, slots=True)
class Marker:
    """The begin or end of a region: calls that run several times, or only under a condition.

    kind       "loop", "if", "else" or "end"; or "extent": data decides a symbol of later calls; or "check": the
               call ends here unless the condition holds
    label      a description of the region, for people
    trip       of a loop: the most iterations, by the symbols (None: no such bound); of an extent: its bound
    count      of a loop: a number of iterations that is data; of an extent: its value; of a check:
               the number that decides it
    condition  whether the loop is entered, whether `if` or the check holds; at a loop's end: whether there is another
               iteration
    number     of a loop: the number of the iteration, as addresses of the calls inside use it; of an extent: the symbol
    counter    of a loop: a value that is this number; at its end: a value that becomes how many iterations there were
    check      the message of a check that fails
    """

    kind: RegionKind
    label: str
    trip: Expr | None = None
    count: Value | None = None
    condition: Value | None = None
    number: Var | None = None
    counter: Value | None = None
    check: CheckSpec | None = None

    @property
    def args(self) -> tuple[Value, ...]:
        """The values that the region's begin or end reads or writes."""
        return tuple(v for v in (self.count, self.condition, self.counter) if v is not None)


Call = KernelCall | Marker
"""An element of a program's list of calls: a call, or the begin or end of a region of calls."""
