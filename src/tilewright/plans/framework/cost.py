"""Estimated time of a kernel, in cycles of one core: a roofline with a few stages, on the target's ceilings.

How a plan uses it: it says for each setting of its knobs how much work there is and where the data come from,

    inner = Cost(compute=fma_cycles(products, lanes, target),    multiply-adds the tile executes
                 load=load_cycles(bytes_loaded, target),         register loads, all hits in the first level
                 store=store_cycles(bytes_stored, target))
    cost = inner | Cost(memory=fetch_cycles(weight_bytes, working_set, target))     at the same time
    cost = cost + Cost(overhead=...)                                                afterwards
    Candidate.of((("rows", 6), ("width", 16)), cost)

and sorts its candidates by `cycles`. Stages of one `Cost` overlap: the longest counts, and `EXPOSED` of what comes from
beyond the first level or, if that is longer, of the work beside it, for prefetching does not hide all. Phases that run
one after another are added, which keeps both the stages' sums and the total. `roofline` is an estimate
of any function without knowing its schedule. All sizes are bytes; a working set is what is touched again and again
between two uses of the same byte, so it says which level holds the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf, prod

from tilewright.ir.expr import Buffer, Expr, Load, Op, as_int
from tilewright.ir.loops import Block, For, Stmt, Store
from tilewright.ir.rewrite import loads, walk
from tilewright.plans.framework.analysis import Structure
from tilewright.targets.target import Target

EXPOSED = 0.3
"""The share of a transfer from beyond the first level that work beside it does not hide."""
SYMBOL = 8
"""What a symbolic extent is taken for where nothing better is known."""

FUNCTIONS = {
    "exp": 10.0,
    "exp_nonpositive": 10.0,
    "log": 12.0,
    "tanh": 16.0,
    "sigmoid": 16.0,
    "erf": 16.0,
    "gelu": 16.0,
    "gelu_tanh": 16.0,
    "sin": 20.0,
    "cos": 20.0,
    "pow": 30.0,
}
"""Functions that are written out, as about so many multiply-adds; other operations take one, or what the machine says
of its slow instructions."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles by stage: arithmetic, loads into registers, stores, transfers from beyond the first level of cache;
    `overhead` is what overlaps with nothing."""

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
        busy = max(self.compute, self.load, self.store)
        return max(busy, self.memory) + EXPOSED * min(busy, self.memory) + self.overhead

    @property
    def bound(self) -> str:
        """The name of the longest stage."""
        longest = max(self.stages, key=lambda name: self.stages[name])
        return "overhead" if self.overhead > self.stages[longest] else longest

    def __or__(self, other: Cost) -> Cost:
        """Both at once, overlapping."""
        return Cost(
            self.compute + other.compute,
            self.load + other.load,
            self.store + other.store,
            self.memory + other.memory,
            self.overhead + other.overhead,
        )

    def __add__(self, other: Cost) -> Cost:
        """One after the other: `cycles` add."""
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
    """How many times an equal share of the work the longest one is, where the threads of a call share so many equal
    parts: three parts are two rounds of two threads, which could do four."""
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
    """Where data live of which `working_set` bytes are in use: "l1", "l2", "l3" or "memory". A level is full before its
    last byte: other data pass through, and what shares it takes its part."""
    kept = target.costs.traffic
    if working_set <= kept.kept_l1 * target.l1:
        return "l1"
    if working_set <= kept.kept_l2 * target.l2:
        return "l2"
    return "l3" if working_set <= kept.kept_l3 * target.l3 else "memory"


def bandwidth(working_set: float, target: Target) -> float:
    """Bytes a cycle that one core reads from the level which holds the working set."""
    match level(working_set, target):
        case "l1":
            return target.l1_bandwidth
        case "l2":
            return target.l2_bandwidth
        case "l3":
            return target.l3_bandwidth
    return target.memory_bandwidth


def fetch_cycles(nbytes: float, working_set: float, target: Target) -> float:
    """Cycles to bring `nbytes` into the first level from where the working set lives; 0.0 if it lives in the first."""
    if level(working_set, target) == "l1":
        return 0.0
    return nbytes / bandwidth(working_set, target)


def write_cycles(nbytes: float, working_set: float, target: Target) -> float:
    """Cycles to write `nbytes` back to where the working set lives: lines are read before they are written."""
    return target.costs.traffic.written_back * fetch_cycles(nbytes, working_set, target)


def number(e: Expr, symbol: int = SYMBOL) -> int:
    """An extent as a number: the constant of a minimum with one, `symbol` for what is not known."""
    known = as_int(e)
    if known is None and isinstance(e, Op) and e.name == "min":
        return min(number(part, symbol) for part in e.args)
    return symbol if known is None else known


def nbytes_of(buffer: Buffer, symbol: int = SYMBOL) -> int:
    return prod(number(d, symbol) for d in buffer.shape) * buffer.dtype.itemsize


def weight(value: Expr, target: Target) -> float:
    """Operations of an expression in multiply-adds; those of indices are left out, a product that is added is free."""
    found = list(_operations(value))
    costs = target.costs.arithmetic
    weights = {**FUNCTIONS, "div": costs.divide, "sqrt": costs.square_root, "rsqrt": costs.reciprocal_root}
    free = {
        part
        for e in found
        if e.name in ("add", "sub")
        for part in e.args
        if isinstance(part, Op) and part.name == "mul"
    }
    return sum(weights.get(e.name, 1.0) for e in found if e not in free and (e.dtype.is_float or e.name == "select"))


def instructions(block: Block) -> float:
    """Instructions of floating point for one element: functions count what they weigh, all else counts one. This is
    what computing an element again costs, and what asks for registers beside it."""
    found = [e for stmt in walk(block.body) if isinstance(stmt, Store) for e in _operations(stmt.value)]
    return sum(FUNCTIONS.get(e.name, 1.0) for e in found if e.dtype.is_float)


def _operations(value: Expr) -> Iterator[Op]:
    """The distinct operators of an expression, those of indices left out."""
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


def roofline(structure: Structure, target: Target, symbol: int = SYMBOL) -> Cost:
    """What any schedule of the function takes at least, about: all operations in full vectors, what pointwise stages
    read once through the first level, all parameters once through the level that holds them together.

    A symbolic extent counts as `symbol`. What data select from a table is counted, not the table.
    """
    func = structure.func
    written = {b for stage in structure.stages for b in stage.writes}
    compute = passed = 0.0
    picked: dict[Buffer, float] = {}
    for store, times in _stores(func.body, 1.0, symbol):
        written.add(store.buffer)
        compute += fma_cycles(
            times * weight(store.value, target), target.lanes(max(4, store.buffer.dtype.itemsize)), target
        )
        sources = loads(store.value)
        for load in sources:
            if any(loads(i) for i in load.indices):
                picked[load.buffer] = picked.get(load.buffer, 0.0) + times * load.buffer.dtype.itemsize
        if all(load.buffer != store.buffer for load in sources):
            passed += times * sum(load.buffer.dtype.itemsize for load in sources)
    ins = sum(min(picked.get(b, inf), nbytes_of(b, symbol)) for b in func.params if b not in written)
    outs = sum(nbytes_of(b, symbol) for b in func.params if b in written)
    # What a kernel reads another one wrote, or the last call used: at best it is in the second level.
    apart = max(ins + outs, target.l1)
    memory = fetch_cycles(ins, apart, target) + write_cycles(outs, apart, target)
    return Cost(compute, load_cycles(passed, target), store_cycles(outs, target), memory)


def _stores(stmt: Stmt, times: float, symbol: int) -> Iterator[tuple[Store, float]]:
    """Every store with how often it is executed; initial values of reductions are left out."""
    match stmt:
        case For():
            times *= number(stmt.extent, symbol)
        case Store():
            yield stmt, times
        case Block():
            yield from _stores(stmt.body, times, symbol)
            return
    for child in stmt.children:
        yield from _stores(child, times, symbol)
