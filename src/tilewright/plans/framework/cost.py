"""Estimated time of a kernel, in cycles of one core: a roofline with a few stages, on the target's ceilings.

A plan states for each setting of its knobs how much work there is and where the data come from,

    inner = Cost(compute=fma_cycles(products, lanes, target),    multiply-adds the tile executes
                 load=load_cycles(bytes_loaded, target),         register loads, all hits in the first level
                 store=store_cycles(bytes_stored, target))
    cost = inner | Cost(memory=fetch_cycles(weight_bytes, working_set, target))     at the same time
    cost = cost + Cost(overhead=...)                                                afterwards
    Candidate((("rows", 6), ("width", 16)), cost)

and sorts its candidates by `cycles`. Stages of one `Cost` overlap: the longest counts, and `EXPOSED` of what comes from
beyond the first level or, if that is longer, of the work beside it, for prefetching does not hide all. Phases that run
one after another are added, which keeps both the stages' sums and the total. `roofline` estimates any function without
its schedule. All sizes are bytes; a working set is all data accessed between two uses of the same byte, so it
determines which level holds the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf, prod

from tilewright.ir.expr import Buffer, Expr, Load, Op, as_int, is_const
from tilewright.ir.functions import FUNCTIONS as SCALAR_FUNCTIONS
from tilewright.ir.loops import Block, For, Stmt, Store
from tilewright.ir.notes import NonresidentWeights, Note, SharedLevel, find
from tilewright.ir.rewrite import loads, walk, walk_expr
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

EXPOSED = 0.3
"""The share of a transfer from beyond the first level that simultaneous work does not hide."""
SYMBOL = 8
"""The number that a symbolic extent counts as if nothing better is known."""

FUNCTIONS = {row.name: row.weight for row in SCALAR_FUNCTIONS.values() if row.weight} | {"pow": 100.0, "fmod": 12.0}
"""For each function that is expanded its cost in multiply-adds: half of its operations, since other units work beside
the multipliers (`pow` computes in f64). On machines without such units the cost `function` corrects this. Other
operations count as one, or as the machine's costs of slow instructions."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles by stage: arithmetic, loads into registers, stores, transfers from beyond the first level of cache;
    `overhead` overlaps with nothing."""

    compute: float = 0.0
    load: float = 0.0
    store: float = 0.0
    memory: float = 0.0
    overhead: float = 0.0

    @property
    def stages(self) -> dict[str, float]:
        return {"compute": self.compute, "load": self.load, "store": self.store, "memory": self.memory}

    @property
    def cycles(self) -> float:
        busy, memory = max(self.compute, self.load, self.store), self.memory
        return (busy + EXPOSED * memory if busy > memory else memory + EXPOSED * busy) + self.overhead

    @property
    def bound(self) -> str:
        """The name of the longest stage."""
        longest = max(self.stages, key=lambda name: self.stages[name])
        return "overhead" if self.overhead > self.stages[longest] else longest

    def __or__(self, other: Cost) -> Cost:
        """The cost of two phases at the same time, which overlap."""
        return Cost(
            self.compute + other.compute,
            self.load + other.load,
            self.store + other.store,
            self.memory + other.memory,
            self.overhead + other.overhead,
        )

    def __add__(self, other: Cost) -> Cost:
        """The cost of two phases one after the other: `cycles` are added."""
        both = self | other
        lost = self.cycles + other.cycles - both.cycles
        return Cost(both.compute, both.load, both.store, both.memory, both.overhead + lost)

    def __mul__(self, times: float) -> Cost:
        return Cost(
            times * self.compute, times * self.load, times * self.store, times * self.memory, times * self.overhead
        )

    def microseconds(self, target: Target) -> float:
        return self.cycles / target.frequency / 1e3


def sharing(parts: int, target: Target) -> float:
    """The longest share of a thread relative to an equal share, if the threads of a call share `parts` equal parts:
    three parts are two rounds of two threads, which could do four."""
    return ceil(parts / target.threads) * target.threads / parts


def fma_cycles(count: float, lanes: int, target: Target) -> float:
    """Cycles of `count` multiply-adds (or other simple operations) in vectors of `lanes`."""
    return count / lanes / target.fma_per_cycle


def load_cycles(nbytes: float, target: Target) -> float:
    """Cycles of register loads that hit the first level of cache; a broadcast of one element loads a full vector."""
    return nbytes / target.l1_bandwidth


def store_cycles(nbytes: float, target: Target) -> float:
    """Cycles of stores into the first level of cache."""
    return target.costs.arithmetic.store_per_load * nbytes / target.l1_bandwidth


def level(working_set: float, target: Target) -> str:
    """The level that holds `working_set` bytes of data: "l1", "l2", "l3" or "memory". Less than its size counts, since
    other data pass through, and other users share it."""
    return LEVELS[_level(working_set, target)]


def bandwidth(working_set: float, target: Target) -> float:
    """Bytes a cycle that one core reads from the level which holds the working set."""
    ceilings = target.ceilings
    match _level(working_set, target):
        case 0:
            return ceilings.l1_bandwidth
        case 1:
            return ceilings.l2_bandwidth
        case 2:
            return ceilings.l3_bandwidth
    return ceilings.memory_bandwidth


LEVELS = ("l1", "l2", "l3", "memory")
SHARED_LEVELS = LEVELS[2:]
"""The levels of memory that cores share."""


def _level(working_set: float, target: Target) -> int:
    # Estimates ask this most of all.
    retained, caches = target.costs.traffic, target.caches
    if working_set <= retained.resident_l1 * caches.l1:
        return 0
    if working_set <= retained.resident_l2 * caches.l2:
        return 1
    return 2 if working_set <= retained.resident_l3 * caches.l3 else 3


def weights_level(weights: float, target: Target) -> SharedLevel | None:
    """The level from which each call reads the weights of a whole program, `weights` bytes; None: from the core's own
    caches."""
    if from_memory(weights, target):
        return "memory"
    return "l3" if level(weights, target) in SHARED_LEVELS else None


def working_set(weights: float, notes: Sequence[Note], target: Target) -> float:
    """The bytes that decide from which level of cache a function reads its `weights` bytes: their own number, or a
    larger one if the note `NonresidentWeights` in `notes` says that other weights of the program evict them between
    calls."""
    note = find(notes, NonresidentWeights)
    return weights if note is None else max(weights, beyond(note.level, target))


def beyond(away: SharedLevel | None, target: Target) -> float:
    """The smallest working set that no cache nearer than `away` holds; 0 for None, infinite for memory."""
    if away is None:
        return 0.0
    return inf if away == "memory" else target.costs.traffic.resident_l2 * target.l2 + 1.0


def from_memory(weights: float, target: Target) -> bool:
    """Whether each call reads its `weights` bytes of weights from memory, because they exceed the last level of
    cache."""
    return weights > target.costs.traffic.next_call_l3 * target.l3


def fetch_cycles(nbytes: float, working_set: float, target: Target) -> float:
    """Cycles to bring `nbytes` into the first level from where the working set lives; 0.0 if it lives in the first."""
    if level(working_set, target) == "l1":
        return 0.0
    return nbytes / bandwidth(working_set, target)


def write_cycles(nbytes: float, working_set: float, target: Target) -> float:
    """Cycles to write `nbytes` back to where the working set lives: lines are read before they are written."""
    return target.costs.traffic.written_back * fetch_cycles(nbytes, working_set, target)


def number(e: Expr, symbol: int = SYMBOL) -> int:
    """An extent as a number: its value, `symbol` if it is not known, and of a minimum the smallest of its parts."""
    known = as_int(e)
    if known is None and isinstance(e, Op) and e.name == "min":
        return min(number(part, symbol) for part in e.args)
    return symbol if known is None else known


def nbytes_of(buffer: Buffer, symbol: int = SYMBOL) -> int:
    return prod(number(d, symbol) for d in buffer.shape) * buffer.dtype.itemsize


def weight(value: Expr, target: Target) -> float:
    """The cost of an expression in multiply-adds. Operations in indices are left out, and a product that is added is
    free."""
    results = list(_operations(value))
    free = {
        part
        for e in results
        if e.name in ("add", "sub")
        for part in e.args
        if isinstance(part, Op) and part.name == "mul"
    }
    return _multiply_adds(
        [e.name for e in results if e not in free and (e.dtype.is_float or e.name == "select")], target
    )


def operations(value: Expr, target: Target) -> float:
    """The cost of all operations of an expression in multiply-adds, including integer ones, conversions, and added
    products."""
    return _multiply_adds([e.name for e in _operations(value)], target)


def _multiply_adds(names: Sequence[str], target: Target) -> float:
    """The total cost, in multiply-adds, of operations with these names."""
    costs = target.costs.arithmetic
    slow = {"div": costs.divide, "sqrt": costs.square_root, "rsqrt": costs.reciprocal_root}
    return sum(costs.function * FUNCTIONS[n] if n in FUNCTIONS else slow.get(n, 1.0) for n in names)


def instructions(block: Block) -> float:
    """The floating-point instructions that compute one element of a block, with a function such as exp counted by its
    cost: an estimate of recomputing an element, and of the registers that it needs."""
    results = [e for stmt in walk(block.body) if isinstance(stmt, Store) for e in _operations(stmt.value)]
    return sum(FUNCTIONS.get(e.name, 1.0) for e in results if e.dtype.is_float)


def _operations(value: Expr) -> Iterator[Op]:
    """The distinct operators of an expression, without those in indices."""
    seen: set[Expr] = set()
    stack = [value]
    while stack:
        e = stack.pop()
        if e in seen or isinstance(e, Load):
            continue
        seen.add(e)
        if isinstance(e, Op):
            yield e
        stack.extend(e.children)


def roofline(structure: Structure, target: Target, symbol: int = SYMBOL, *, expanded: bool = False) -> Cost:
    """The approximate cycles of a good schedule of the function: all operations in full vectors, loads of pointwise
    stages from the first level, and all parameters once from the level that holds them together.

    A symbolic extent counts as `symbol`. If only a part of a parameter is loaded (a slice, or rows of a table that data
    select), the part counts. `expanded`: constant matrices are straight-line code.
    """
    func = structure.func
    written = {b for stage in structure.stages for b in stage.writes}
    compute = passed = 0.0
    loaded: dict[Buffer, float] = {}
    for store, times in stores(func.body, symbol):
        written.add(store.buffer)
        work = times * weight(store.value, target) * (written_out(store.value) if expanded else 1.0)
        compute += fma_cycles(work, target.lanes(max(4, store.buffer.dtype.itemsize)), target)
        sources = loads(store.value)
        for load in sources:
            loaded[load.buffer] = loaded.get(load.buffer, 0.0) + times * load.buffer.dtype.itemsize
        if all(load.buffer != store.buffer for load in sources):
            passed += times * sum(load.buffer.dtype.itemsize for load in sources)
    ins = sum(min(loaded.get(b, inf), nbytes_of(b, symbol)) for b in func.params if b not in written)
    outs = sum(nbytes_of(b, symbol) for b in func.params if b in written)
    # What a kernel reads another one wrote, or the last call used: at best it is in the second level.
    touched = max(ins + outs, target.l1)
    memory = fetch_cycles(ins, touched, target) + write_cycles(outs, touched, target)
    return Cost(compute, load_cycles(passed, target), store_cycles(outs, target), memory)


def least(structure: Structure, target: Target, symbol: int = SYMBOL) -> Cost:
    """An approximate lower bound of the cycles of any schedule of the function: its longest stage alone, since others
    may hide after it.

    This counts multiply-adds in full vectors, with constant matrices as straight-line code, half of other operations
    (other units work beside the multipliers), and each parameter once from the level that would hold it alone.
    """
    func, products = structure.func, {b for stage in structure.anchors for b in stage.writes}
    written: set[Buffer] = set()
    picked: set[Buffer] = set()
    compute = 0.0
    for store, times in stores(func.body, symbol):
        written.add(store.buffer)
        sources = [load for load in loads(store.value) if load.buffer != store.buffer]
        picked.update(load.buffer for load in sources if any(map(loads, load.indices)))
        if store.buffer in products:
            lanes = target.lanes(min(load.buffer.dtype.itemsize for load in sources))
            compute += fma_cycles(times, lanes, target)
        else:
            work = weight(store.value, target) * BESIDE * written_out(store.value)
            compute += fma_cycles(times * work, target.lanes(max(4, store.buffer.dtype.itemsize)), target)
    sizes = [nbytes_of(b, symbol) for b in func.params if b in written or b not in picked]
    memory = sum(fetch_cycles(size, size, target) for size in sizes)
    return Cost(compute=compute) if compute >= memory else Cost(memory=memory)


def surrounding(structure: Structure, anchor: Stage, target: Target) -> Cost:
    """The cycles of the stages before and after a contraction, one after another: their operations, with constant
    matrices as straight-line code, and the stores and loads of reductions and outputs. An ordinary epilogue of two
    operations is part of the contraction's estimate."""
    after, total = structure.after(anchor), Cost()
    for stage in structure.stages:
        if stage is not anchor:
            for cost in stage_costs(structure, stage, target):
                total += cost
    ordinary = ORDINARY * sum(nbytes_of(b) / b.dtype.itemsize for b in anchor.writes) if after else 0.0
    free = fma_cycles(ordinary, target.lanes(max(4, anchor.writes[0].dtype.itemsize)), target)
    return total if free == 0.0 else Cost(max(0.0, total.compute - free), total.load, total.store, 0.0, total.overhead)


def outside(structure: Structure, own: Sequence[Stage], target: Target, symbol: int = SYMBOL) -> Cost:
    """The cost of all stages but those in `own`, the stages of one operator: pointwise work before and after it."""
    names = {stage.name for stage in own}
    others = [stage for stage in structure.stages if stage.name not in names]
    return sum((cost for stage in others for cost in stage_costs(structure, stage, target, symbol)), Cost())


def stage_costs(structure: Structure, stage: Stage, target: Target, symbol: int = SYMBOL) -> Iterator[Cost]:
    """The cost of each store in a stage, where symbols without a value count as `symbol`: its arithmetic, and the loads
    and stores of elements that are in memory (of reductions and outputs)."""
    retained = stage.block.is_reduction or structure.is_output(stage)
    for store, times in stores(structure.func.body, symbol):
        if store.buffer not in stage.writes:
            continue
        work = times * weight(store.value, target) * written_out(store.value)
        itemsize = store.buffer.dtype.itemsize
        compute = fma_cycles(work, target.lanes(max(4, itemsize)), target)
        elements = nbytes_of(store.buffer, symbol) if retained else 0
        reads = elements if stage.block.is_reduction else 0
        yield Cost(compute, load_cycles(reads, target), store_cycles(elements, target))


ORDINARY = 2.0
"""The operations per element that a product's own estimate includes: adding a bias and storing."""
BESIDE = 0.5
"""The share of operations other than multiply-adds that multiply-adds do not hide."""
WRITTEN_OUT = 0.5
"""The operations of straight-line code per nonzero entry of a constant matrix, since `arith/straight.py` shares
sums."""
WRITTEN_OUT_LARGE = 0.2
"""The figure `WRITTEN_OUT` for matrices of more than `LARGE` entries, which are Fourier's."""
LARGE = 100


def written_out(value: Expr) -> float:
    """The factor on a stage's arithmetic where `value` multiplies by a constant matrix, which expansion turns into
    straight-line code without its zeros; 1 without such a matrix."""
    tables = [e.args[1:] for e in walk_expr(value) if isinstance(e, Op) and e.name == "lookup"]
    if not tables:
        return 1.0
    (table, *_) = tables
    entries = sum(not is_const(e, 0) for e in table) / len(table)
    return entries * (WRITTEN_OUT_LARGE if len(table) > LARGE else WRITTEN_OUT)


def stores(stmt: Stmt, symbol: int, times: float = 1.0) -> Iterator[tuple[Store, float]]:
    """Every store in `stmt`, with the number of times that it is executed; the initial values of reductions are left
    out. Symbolic extents count as `symbol`."""
    match stmt:
        case For():
            times *= number(stmt.extent, symbol)
        case Store():
            yield stmt, times
        case Block():
            yield from stores(stmt.body, symbol, times)
            return
    for child in stmt.children:
        yield from stores(child, symbol, times)
