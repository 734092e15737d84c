"""Give every value of a graph a slot: which values share memory, and from which call to which each temporary lives.

Aliases (reshape) take their source's slot; views stand in a part of another value's memory; a pointwise kernel may
write over an operand that dies with it. Offsets of temporaries are chosen later, on numbers (`runtime/arena.py`), since
sizes may depend on symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from tilewright import ops
from tilewright.arith import prove_equal, simplify, symbolic_bounds
from tilewright.arith.overflow import check_bytes
from tilewright.ir.expr import Expr, Var, const, is_const, product
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.rewrite import substitute, variables
from tilewright.ops.lowered.append import AppendAttrs
from tilewright.ops.shape import SliceAttrs
from tilewright.runtime.specs import RegionSpec, StepSpec, TempSpec, Work, evaluate
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError
from tilewright.transform.call import Call, KernelCall, Marker, Workspace
from tilewright.transform.graph.fuse import Group, same_shape
from tilewright.transform.work import polynomial


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory plan of a list of calls: the slot of each value, the size of each temporary, and the calls as steps
    that name slots."""

    slots: dict[Value, int]
    temps: tuple[TempSpec, ...]
    sizes: tuple[Expr, ...]
    steps: tuple[StepSpec, ...]
    owners: tuple[str, ...] = field(default=())
    """The contents of each temporary, for reports."""
    bounds: Mapping[Var, Expr] = field(default_factory=dict)
    """The symbols that data decides, with their bounds."""


def nbytes(value: Value) -> Expr:
    return value.type.size * value.dtype.itemsize


ZERO = const(0)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value without memory of its own: in the memory of `base`, from its element `offset` on."""

    base: Value
    offset: Expr = ZERO


def places(nodes: Iterable[Node]) -> dict[Value, Place]:
    """For each value without memory of its own its place: results of aliases and slices, and parts of
    concatenations."""
    result: dict[Value, Place] = {}
    for node in nodes:
        if not ops.is_alias(node):
            continue
        source = node.inputs[0]
        assert source is not None
        match node.op:
            case "concat":
                result.update(_parts(node, result))
            case "lowered.append":
                result[node.output] = Place(source)
                result[_root(node.inputs[1], result)] = Place(source, _linear((node.of(AppendAttrs).length,), source))
            case "slice":
                result[node.output] = Place(source, _linear(node.of(SliceAttrs).begin, source))
            case _:
                result[node.output] = Place(source)
    return result


def _parts(node: Node, known: Mapping[Value, Place]) -> dict[Value, Place]:
    """The places of a concatenation's operands in its result, where they lie one after the other."""
    result: dict[Value, Place] = {}
    start: Expr = ZERO
    for value in node.inputs:
        assert value is not None
        result[_root(value, known)] = Place(node.output, start)
        start = simplify(start + value.type.size)
    return result


def _root(value: Value | None, known: Mapping[Value, Place]) -> Value:
    """The value whose memory holds `value`, by the places in `known`."""
    assert value is not None
    while value in known:
        value = known[value].base
    return value


def _linear(begin: Sequence[int | Expr], source: Value) -> Expr:
    """The element offset in `source` of a slice that begins at the indices `begin`."""
    index: Expr = const(0)
    for k, first in enumerate(begin):
        index = index + first * product(source.shape[k + 1 :])
    return simplify(index)


def is_alias(group: Group) -> bool:
    """True when the group is a single alias or view, which needs no kernel."""
    return len(group.nodes) == 1 and ops.is_alias(group.nodes[0])


def touched(graph: Graph) -> int:
    """The bytes that a call reads or writes, as far as they are known: inputs, results, parameters, and the largest
    total of the values between them at any time."""
    where = places(graph.nodes)
    own = {*graph.inputs, *graph.params, *graph.outputs}
    last = {_root(v, where): k for k, n in enumerate(graph.nodes) for v in (*n.inputs, *n.outputs) if v is not None}
    ends: dict[int, int] = {}
    alive = most = 0
    for k, node in enumerate(graph.nodes):
        for v in node.outputs:
            if v not in where and v not in own:
                alive += v.known_bytes
                ends[last[v]] = ends.get(last[v], 0) + v.known_bytes
        most = max(most, alive)
        alive -= ends.get(k, 0)
    return most + sum(v.known_bytes for v in own)


def written_last(
    groups: Iterable[Group], outputs: Iterable[Value], where: Mapping[Value, Place], least: int
) -> frozenset[Value]:
    """Outputs of at least `least` bytes that kernels write and no kernel reads."""
    kernels = [group for group in groups if not is_alias(group)]
    read = {_root(v, where) for group in kernels for v in group.inputs}
    large = {v for v in outputs if v.known_bytes >= least} - read
    return frozenset(v for group in kernels for v in group.outputs if _root(v, where) in large)


UPDATES = ("scatter_nd", "scatter_elements")
"""Operators that copy their first input, element by element, before they change parts of the copy."""


def overwritable(group: Group) -> tuple[tuple[Value, Value], ...]:
    """The pairs (output, input) of a kernel that may share memory, because each element is read before it is written at
    the same place. Pointwise kernels and updates of a copy have such pairs."""
    if len(group.nodes) == 1 and group.nodes[0].op in UPDATES:
        data, *others = group.nodes[0].inputs
        return ((group.outputs[0], data),) if data is not None and data not in others else ()
    if any(n.op != "constant" and ops.get(n.op).kind != "pointwise" for n in group.nodes) or len(group.outputs) != 1:
        return ()
    (out,) = group.outputs
    return tuple((out, v) for v in group.inputs if v.dtype.itemsize == out.dtype.itemsize and same_shape(v, out))


def assign_slots(
    calls: Sequence[Call], leading: Sequence[Value], where: Mapping[Value, Place], symbols: Sequence[Var]
) -> Storage:
    """Assign slots to `leading` (inputs, outputs, packed parameters, in the manifest's order), then to the temporaries
    of `calls`."""
    return _Assigner(calls, leading, where, symbols).run()


class _Assigner:
    def __init__(
        self,
        calls: Sequence[Call],
        leading: Sequence[Value],
        where: Mapping[Value, Place],
        symbols: Sequence[Var],
    ) -> None:
        self.calls = calls
        self.where = where
        extents = [c for c in calls if isinstance(c, Marker) and c.kind == "extent" and c.number is not None]
        self.symbols = {s: i for i, s in enumerate((*symbols, *(c.number for c in extents if c.number is not None)))}
        self.bounds = {c.number: c.trip for c in extents if c.number is not None and c.trip is not None}
        self.leading = len(leading)
        self.home: dict[Value, int] = {}
        for i, value in enumerate(leading):
            self.home.setdefault(self.root(value), i)
        self.forks = _forks(calls)
        self.life = self.lives()
        self.temps: list[TempSpec] = []
        self.sizes: list[Expr] = []
        self.owners: list[str] = []

    def root(self, value: Value) -> Value:
        """The value that owns the memory of `value`, which may be `value` itself."""
        return self.place(value).base

    def place(self, value: Value) -> Place:
        offset: Expr = const(0)
        while value in self.where:
            offset, value = offset + self.where[value].offset, self.where[value].base
        return Place(value, simplify(offset))

    def lives(self) -> dict[Value, tuple[int, int]]:
        """For each value with memory the first and the last call that use it. A value that is used both in a loop and
        outside is in use during the whole loop, since the next iteration may read it. A value that is used in a fork is
        in use during the whole fork, since other branches may be at any of their calls."""
        uses: dict[Value, tuple[int, int]] = {}
        loops: list[tuple[int, int]] = []
        begun: list[tuple[int, Marker]] = []
        for i, call in enumerate(self.calls):
            for root in map(self.root, call.args):
                uses[root] = uses.get(root, (i, i))[0], i
            if isinstance(call, Marker):
                if call.kind in ("loop", "if"):
                    begun.append((i, call))
                elif call.kind == "end":
                    start, marker = begun.pop()
                    loops += [(start, i)] if marker.kind == "loop" else []
        for start, end in loops:  # inner ones stand before those around them
            for root, (first, last) in uses.items():
                meets = first <= end and start <= last
                if meets and (first < start or last > end):
                    uses[root] = min(first, start), max(last, end)
        return {root: (self.during(first)[0], self.during(last)[1]) for root, (first, last) in uses.items()}

    def during(self, i: int) -> tuple[int, int]:
        """(first call, last call) of the fork that call `i` belongs to; (i, i) if it belongs to none."""
        call = self.calls[i]
        return self.forks[call.branch[0]] if isinstance(call, KernelCall) and call.branch is not None else (i, i)

    def run(self) -> Storage:
        steps = []
        for i, call in enumerate(self.calls):
            for value in call.args:
                if self.root(value) not in self.home:
                    self.home[self.root(value)] = self.temporary(i, call, value)
            if isinstance(call, Marker):
                steps.append(StepSpec("", (), label=call.label, region=self.region(call)))
                continue
            code = call.code
            slots = [self.home[self.root(v)] for v in call.args]
            slots += [self.scratch(i, w, call) for w in code.workspaces]
            known = dict(call.sizes)
            passed = tuple(self.symbols[s] for s in code.symbols if s not in known)
            sizes = tuple(known[s] for s in code.symbols if s in known)
            flops, traffic = (_work(w, known) for w in code.work)
            shifts = self.shifts(call.args, len(code.workspaces))
            about = call.label, flops, traffic, code.alone
            steps.append(StepSpec(code.symbol, tuple(slots), passed, *about, shifts, branch=call.branch, sizes=sizes))
        slots_of = {v: self.home[self.root(v)] for c in self.calls for v in c.args}
        return Storage(slots_of, tuple(self.temps), tuple(self.sizes), tuple(steps), tuple(self.owners), self.bounds)

    def region(self, marker: Marker) -> RegionSpec:
        """The manifest's entry for the begin or end of a region, with slots for values."""
        trip = None if marker.trip is None else self.polynomial(marker.trip)
        count, condition, counter = (
            None if v is None else self.home[self.root(v)] for v in (marker.count, marker.condition, marker.counter)
        )
        number = "" if marker.number is None else marker.number.name
        shifts = self.shifts((marker.count, marker.condition, marker.counter))
        return RegionSpec(marker.kind, trip, count, condition, number, counter, shifts, marker.check)

    def shifts(self, values: Sequence[Value | None], more: int = 0) -> tuple[Work, ...]:
        """For each value the bytes from the start of its slot to its first byte, as polynomials, then `more` zeros; ()
        if all are 0."""
        if self.where.keys().isdisjoint(values):
            return ()
        results = [const(0) if v is None else simplify(self.place(v).offset * v.dtype.itemsize) for v in values]
        results += [const(0)] * more
        return () if all(is_const(e, 0) for e in results) else tuple(self.polynomial(e) for e in results)

    def polynomial(self, shift: Expr) -> Work:
        """A shift in bytes as a polynomial of the symbols. Views have been checked to have one
        (`transform/graph/views.py`)."""
        work = polynomial(shift)
        assert work is not None, f"a view stands at {shift}, which is no polynomial of the symbols"
        return work

    def temporary(self, i: int, call: Call, value: Value) -> int:
        root = self.root(value)
        first, last = self.life[root]
        alias = self.overwritten(i, call, value) if isinstance(call, KernelCall) else None
        return self.add(TempSpec(first, last, _number(nbytes(root)), alias), nbytes(root), root.name)

    def overwritten(self, i: int, call: KernelCall, value: Value) -> int | None:
        """The number of the temporary whose memory the output `value` of call number `i` takes over, as that value is
        last used by this call; None if there is none."""
        for out, operand in call.over:
            slot = self.home.get(self.root(operand), -1)
            dies = self.life.get(self.root(operand), (-1, -1))[1] == i and call.branch is None
            whole = self.is_whole(value) and self.is_whole(operand) and self.is_read_once(call, operand)
            if out == value and dies and whole and slot >= self.leading:
                return slot - self.leading
        return None

    def is_read_once(self, call: KernelCall, operand: Value) -> bool:
        """Whether `operand` is the only argument of a call in its memory."""
        return all(v == operand or self.root(v) != self.root(operand) for v in call.args)

    def is_whole(self, value: Value) -> bool:
        """Whether a value fills all of the memory that it lies in."""
        return prove_equal(self.root(value).type.size, value.type.size)

    def scratch(self, i: int, workspace: Workspace, call: KernelCall) -> int:
        size = substitute(workspace.nbytes, {s: const(n) for s, n in call.sizes})
        each = workspace.per_thread and call.branch is None
        return self.add(TempSpec(*self.during(i), _number(size), None, each), size, f"workspace of {call.label}")

    def add(self, spec: TempSpec, size: Expr, owner: str) -> int:
        size = check_bytes(bounded(size, self.bounds), owner)
        spec = replace(spec, nbytes=_number(size))
        self.temps.append(spec)
        self.sizes.append(size)
        self.owners.append(owner)
        return self.leading + len(self.temps) - 1


def _forks(calls: Sequence[Call]) -> dict[int, tuple[int, int]]:
    """(first call, last call) of each fork, by the fork's number."""
    result: dict[int, tuple[int, int]] = {}
    for i, call in enumerate(calls):
        if isinstance(call, KernelCall) and call.branch is not None:
            result[call.branch[0]] = result.get(call.branch[0], (i, i))[0], i
    return result


def bounded(size: Expr, bounds: Mapping[Var, Expr]) -> Expr:
    """A size in which each symbol that data decides is replaced by its greatest value, in `bounds`."""
    for symbol, bound in reversed(list(bounds.items())):  # a bound may mention symbols defined before
        if symbol in variables(size):
            result = symbolic_bounds(size, {symbol: bound + 1})
            if result is None:
                raise UnsupportedError("a size that depends on data has no bound that is known", got=size)
            size = simplify(result[1])
    return size


def _work(work: Work | None, known: Mapping[Var, int]) -> Work | None:
    """The polynomial `work` as a number for `known` values of its symbols; unchanged if there are none."""
    if work is None or not known:
        return work
    return ((evaluate(work, {s.name: n for s, n in known.items()}), ()),)


def _number(size: Expr) -> int | None:
    return int(size.value) if is_const(size) else None  # type: ignore[attr-defined]
