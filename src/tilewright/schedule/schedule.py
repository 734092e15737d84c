"""`Schedule`: a function being scheduled, and the trace of what was done to it.

    s = Schedule(func)
    b = s.block("C")
    i, j = s.loops(b)
    io, ii = s.split(i, factor=8)
    s.reorder(io, j, ii)
    s.vectorize(ii)
    s.func, s.trace

Every method resolves its references, calls the pure function of its theme file, and records an instruction; a refused
primitive raises ScheduleError and leaves the schedule as it was. Blocks and loops may be given as references or names.
Most methods follow from their function's declaration (`primitive.py`); those below do something more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.ir.expr import Var, as_int
from tilewright.ir.loops import Block, For, IterKind
from tilewright.ir.notes import Note
from tilewright.ir.notetable import note_name, stated_fields
from tilewright.schedule import kinds, layout, loops, memory, move, requests, routines, storage, tensorize
from tilewright.schedule.expand import ExpandPrimitives
from tilewright.schedule.find import find_all
from tilewright.schedule.index_map import IndexMap
from tilewright.schedule.inline import InlinePrimitives
from tilewright.schedule.intrinsics import find_intrinsic
from tilewright.schedule.kinds import KindPrimitives
from tilewright.schedule.loops import LoopPrimitives
from tilewright.schedule.memory import MemoryPrimitives
from tilewright.schedule.primitive import names
from tilewright.schedule.recording import BlockRef, Choice, LoopRef, Recording, literal, present
from tilewright.schedule.reduction import ReductionPrimitives
from tilewright.schedule.requests import Fusion, LoopId, Split
from tilewright.schedule.state import (
    block_path,
    blocks_in,
    find_block,
    last_loop,
    loop_path,
    loops_on,
    own_loops,
    read_buffers,
    refuse,
    written_buffers,
)
from tilewright.schedule.storage import StoragePrimitives
from tilewright.schedule.trace import Instruction

Factor = int | Var | str | None
"""A factor of a split: a number, a dimension of the function's arguments, or its name, as traces have it."""


class DeclaredPrimitives(
    LoopPrimitives,
    KindPrimitives,
    InlinePrimitives,
    ExpandPrimitives,
    MemoryPrimitives,
    StoragePrimitives,
    ReductionPrimitives,
):
    """The primitives that are declared beside their functions, for `Schedule` and for `Stage`."""

    __slots__ = ()


class Schedule(DeclaredPrimitives, Recording):
    """A function being scheduled, `func`, and the trace of the primitives that led to it. Methods find blocks and
    loops, or apply a primitive. `seed` is the seed of sampling methods that are called without a decision."""

    storage_align = storage.storage_align
    pad = layout.pad

    # Finding

    def blocks(self) -> tuple[BlockRef, ...]:
        """All blocks, in program order (not recorded)."""
        return tuple(self._block_ref(b.name) for b in blocks_in(self.func.body))

    def loops(self, block: BlockRef | str) -> tuple[LoopRef, ...]:
        """The loops around a block, outermost first."""
        names = tuple(x.var.name for x in loops_on(block_path(self.func, self._name(block))))
        return self._loop_results("loops", (self._ref("b", block),), (), names)

    def producers(self, block: BlockRef | str) -> tuple[BlockRef, ...]:
        """The blocks that write what a block reads, in program order (not recorded)."""
        name = self._name(block)
        read = set(read_buffers(find_block(self.func, name)))
        results = (b for b in blocks_in(self.func.body) if b.name != name and read & set(written_buffers(b)))
        return tuple(self._block_ref(b.name) for b in results)

    def consumers(self, block: BlockRef | str) -> tuple[BlockRef, ...]:
        """The blocks that read what a block writes, in program order (not recorded)."""
        name = self._name(block)
        written = set(written_buffers(find_block(self.func, name)))
        results = (b for b in blocks_in(self.func.body) if b.name != name and written & set(read_buffers(b)))
        return tuple(self._block_ref(b.name) for b in results)

    def get(self, ref: BlockRef | LoopRef) -> Block | For:
        """The statement that a reference stands for now."""
        if isinstance(ref, BlockRef):
            return find_block(self.func, self._name(ref))
        return last_loop(loop_path(self.func, self._name(ref)))

    def find(
        self, pattern: str, block: BlockRef | str | None = None, role: IterKind | None = None
    ) -> tuple[LoopRef | BlockRef, ...]:
        """The loops or blocks that match a pattern such as "for k in _", in program order: see `find` (not
        recorded)."""
        names, loops_matched = find_all(self.func, pattern, None if block is None else self._name(block), role)
        return tuple(self.find_loop(n) if loops_matched else self._block_ref(n) for n in names)

    def has(self, loop: LoopRef) -> bool:
        """Whether a loop is still there."""
        return self._history.has(loop)

    def extent(self, loop: LoopRef | str) -> int | None:
        """The extent of a loop if it is constant."""
        return as_int(last_loop(loop_path(self.func, self._name(loop))).extent)

    # Sampling

    def sample_perfect_tile(
        self, loop: LoopRef | str, n: int, max_innermost: int = 64, decision: Sequence[int] | None = None
    ) -> tuple[Choice, ...]:
        """Sample `n` factors whose product is the loop's extent, the last at most `max_innermost`; `decision` replaces
        the sampled ones."""
        extent = self.extent(loop)
        if extent is None:
            raise refuse(self.func, f"cannot tile loop {self._name(loop)!r} perfectly: its extent is not constant")
        if extent < 1:
            raise refuse(self.func, f"cannot tile loop {self._name(loop)!r} perfectly: it has no iterations")
        if not 1 <= n <= loops.MAX_PARTS:
            raise refuse(self.func, f"cannot tile loop {self._name(loop)!r} into {n} parts")
        chosen = list(decision) if decision is not None else self._perfect_tile(extent, n, max_innermost)
        total = 1
        for factor in chosen:
            total *= factor
        if len(chosen) != n or total != extent or chosen[-1] > max_innermost or min(chosen) < 1:
            raise refuse(
                self.func,
                f"decision {chosen} is no perfect tile of loop {self._name(loop)!r}",
                expected=f"{n} factors of {extent}, the last <= {max_innermost}",
            )
        attributes = (("n", n), ("max_innermost", max_innermost))
        return self._choices("sample_perfect_tile", (self._ref("l", loop),), attributes, chosen)

    def sample_categorical(self, candidates: Sequence[int], decision: int | None = None) -> Choice:
        """Sample one of `candidates`; the recorded decision is its position among them."""
        position = self._random.randrange(len(candidates)) if decision is None else decision
        if not 0 <= position < len(candidates):
            raise refuse(self.func, f"decision {position} is not among {len(candidates)} candidates")
        (choice,) = self._choices(
            "sample_categorical", (tuple(candidates),), (), [candidates[position]], decision=position
        )
        return choice

    def _perfect_tile(self, extent: int, n: int, max_innermost: int) -> list[int]:
        factors: list[int] = []
        rest = extent
        for k in range(n - 1):
            limit = max_innermost if k == 0 else rest
            factors.append(self._random.choice([d for d in range(1, min(rest, limit) + 1) if rest % d == 0]))
            rest //= factors[-1]
        return [rest, *reversed(factors)]

    # Loops

    def split(
        self,
        loop: LoopRef | str,
        factor: Factor = None,
        *,
        nparts: Factor = None,
        factors: Sequence[Factor] | None = None,
    ) -> tuple[LoopRef, ...]:
        """Split a loop into nested ones, by a factor, a number of parts or all factors; returns them, outermost first.
        See `loops.split`."""
        size, count = self._size(loop, factor), self._size(loop, nparts)
        sizes = None if factors is None else tuple(self._size(loop, f) for f in factors)
        new, names = loops.split(self.func, self._name(loop), size, nparts=count, factors=sizes)
        named = None if factors is None else tuple(map(_by_name, factors))
        arguments = {"factor": _by_name(factor), "nparts": _by_name(nparts), "factors": named}
        inputs = (self._ref("l", loop),)
        old = self.find_loop(self._name(loop))
        results = self._loop_results("split", inputs, present(**arguments), names, new)
        parts = (None, size) if size is not None else (count, None) if sizes is None else sizes
        self._history.steps.append(Split(old, results, tuple(int(f) if isinstance(f, int) else f for f in parts)))
        return results

    def tile(
        self, first: LoopRef | str, second: LoopRef | str, first_factor: int, second_factor: int
    ) -> tuple[LoopRef, LoopRef, LoopRef, LoopRef]:
        """Split two nested loops by their factors and put the inner parts inside; returns (outer of `first`, outer of
        `second`, inner of `first`, inner of `second`). See `loops.tile`."""
        for loop, factor in ((first, first_factor), (second, second_factor)):
            if not isinstance(self._size(loop, factor), int):
                raise refuse(
                    self.func, f"tile of {self._name(loop)!r}", expected="a factor that is a number", got=factor
                )
        new, names = loops.tile(self.func, self._name(first), self._name(second), first_factor, second_factor)
        inputs = (self._ref("l", first), self._ref("l", second), literal(first_factor), literal(second_factor))
        x, y = self.find_loop(self._name(first)), self.find_loop(self._name(second))
        a, b, c, d = self._loop_results("tile", inputs, (), names, new)
        self._history.steps += (
            Split(x, (a, c), (None, int(first_factor))),
            Split(y, (b, d), (None, int(second_factor))),
        )
        return a, b, c, d

    def _size(self, loop: LoopRef | str, factor: object) -> int | Var | None:
        """A split's factor in the form that `loops` takes: a number, or the variable of a dimension that is given or
        named."""
        if factor is None or (isinstance(factor, int) and not isinstance(factor, bool)):
            return factor
        for v in self.func.symbols:
            if v is factor or v.name == factor:
                return v
        raise refuse(
            self.func,
            f"split of {self._name(loop)!r}",
            expected="a factor that is a number, or a dimension of the arguments",
            got=f"{factor} ({type(factor).__name__})",
        )

    def fuse(self, *targets: LoopRef | str) -> LoopRef:
        """Join nested loops into one: see `loops.fuse`."""
        new, name = loops.fuse(self.func, *map(self._name, targets))
        olds = tuple(self.find_loop(self._name(t)) for t in targets)
        fused = self._loop_results("fuse", tuple(self._ref("l", t) for t in targets), (), (name,), new)[0]
        if len(olds) > 1:
            self._history.steps.append(Fusion(olds, fused))
        return fused

    def reorder(self, *targets: LoopRef | str) -> None:
        """Put loops of one chain into this order: see `loops.reorder`."""
        new = loops.reorder(self.func, *map(self._name, targets))
        self._record("reorder", tuple(self._ref("l", t) for t in targets), (), new)

    def annotate(self, target: BlockRef | LoopRef | str, note: Note | str, *values: Any, **named: Any) -> None:
        """Put a note on a loop (also by its name) or block: `annotate(loop, Unroll(4))`, or as a trace has it,
        `annotate(loop, "unroll", times=4)`. See `kinds.annotate_loop`."""
        on_block = isinstance(target, BlockRef)
        annotate = kinds.annotate_block if on_block else kinds.annotate_loop
        new, placed = annotate(self.func, self._name(target), note, values, named)
        ref = self._ref("b" if on_block else "l", target)
        self._record("annotate", (ref, note_name(type(placed))), present(**stated_fields(placed)), new)

    # Blocks

    def compute_at(self, block: BlockRef | str, loop: LoopRef | str) -> None:
        """Move a producer into a loop of its consumers: see `move.compute_at`."""
        self._move("compute_at", move.compute_at, block, loop)

    def reverse_compute_at(self, block: BlockRef | str, loop: LoopRef | str) -> None:
        """Move a consumer into a loop of its producers: see `move.reverse_compute_at`."""
        self._move("reverse_compute_at", move.reverse_compute_at, block, loop)

    def _move(self, primitive: str, moving: requests.Moving, block: BlockRef | str, loop: LoopRef | str) -> None:
        """Move a block, and repeat the primitives that were applied to its loops: see `requests`."""
        name, place = self._name(block), self._name(loop)
        path = block_path(self.func, name)
        own: dict[LoopId, For] = {self.find_loop(x.var.name): x for x in own_loops(path)}
        steps = requests.steps_after(tuple(own), self._history.steps, self._history.birth("b", name))
        inputs = (self._ref("b", block), self._ref("l", loop))
        if requests.is_asked(tuple(own.values()), steps, self._history.first(own, name), name):
            roots = partial(self._history.root, block=name)
            new = requests.move(self.func, moving, name, place, steps, own, roots, self._history.has)
        else:
            new = moving(self.func, name, place)
        self._record(primitive, inputs, (), new)

    # Memory

    def cache_read(
        self, block: BlockRef | str, buffer: str, scope: str, consumers: Sequence[BlockRef | str] = ()
    ) -> BlockRef:
        """Let `block`, and the blocks `consumers`, read `buffer` through a new buffer in `scope`; returns the block
        that copies. See `memory.cache_read`."""
        new, name = memory.cache_read(self.func, self._name(block), buffer, scope, tuple(map(self._name, consumers)))
        others = tuple(self._ref("b", c) for c in consumers)
        inputs = (self._ref("b", block), buffer, scope)
        result: BlockRef = self._results("b", "cache_read", inputs, present(consumers=others or None), (name,), new)[0]
        return result

    def transform_layout(
        self, block: BlockRef | str, index_map: IndexMap | Callable[..., Any], buffer: str | None = None
    ) -> None:
        """Store a buffer in another layout: see `layout.transform_layout`."""
        new, mapping = layout.transform_layout(self.func, self._name(block), index_map, buffer)
        self._record("transform_layout", (self._ref("b", block), mapping), present(buffer=buffer), new)

    def tensorize(self, target: BlockRef | LoopRef, intrin: str) -> None:
        """Replace loops (or the innermost loops of a block) by an intrinsic: see `tensorize.tensorize`."""
        result = find_intrinsic(intrin)
        if isinstance(target, BlockRef):
            new = tensorize.tensorize_block(self.func, self._name(target), result)
        else:
            new = tensorize.tensorize(self.func, self._name(target), result)
        ref = self._ref("b" if isinstance(target, BlockRef) else "l", target)
        self._record("tensorize", (ref, intrin), (), new)

    def implement(self, routine: str, **sizes: int) -> None:
        """Put a loop program that was written for the whole function in its place: see `routines.implement`."""
        new = routines.implement(self.func, routine, sizes)
        self._record("implement", (routine,), present(**sizes), new)

    # Recording

    def execute(self, instruction: Instruction) -> None:
        """Apply one instruction of a trace. Raises ScheduleError when it does not fit."""
        if instruction.primitive not in PRIMITIVES:
            raise refuse(self.func, f"no primitive is called {instruction.primitive!r}", where=str(instruction))
        inputs = [self._resolve(v) for v in instruction.inputs]
        attributes = {name: self._resolve(v) for name, v in instruction.attributes}
        if instruction.decision is not None:
            attributes["decision"] = self._resolve(instruction.decision)
        try:
            results = getattr(self, instruction.primitive)(*inputs, **attributes)
        except (TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise refuse(self.func, f"the arguments do not fit: {error}", where=str(instruction)) from error
        created = results if isinstance(results, tuple) else () if results is None else (results,)
        if len(created) != len(instruction.outputs):
            raise refuse(self.func, f"gives {len(created)} results here", where=str(instruction))
        self._renumber(instruction.outputs, created)


def _by_name(factor: Factor) -> int | str | None:
    """A split's factor in the form of a trace: a dimension by its name."""
    return factor.name if isinstance(factor, Var) else factor


PRIMITIVES = names(Schedule) | frozenset(
    """block loop loops sample_perfect_tile sample_categorical split tile fuse reorder annotate compute_at
    reverse_compute_at cache_read transform_layout tensorize implement""".split()
)
"""The methods of `Schedule` that a trace may name."""
