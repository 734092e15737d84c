"""Recomputation: values of the forward pass that the backward pass reads are computed again instead of being kept.

    a = f(x); b = g(a); ...; use(b); use(a)   ->   a = f(x); b = g(a); ...; a' = f(x); b' = g(a'); use(b'); use(a')

The pass works on calls of compiled kernels. A recomputation is the same call of the same kernel on other memory, so
that results are bit-equal and nothing is compiled twice. Values written before the middle of a program and read after
it may be dropped; of several candidates for the middle, the call that needs least memory is chosen, as weights'
gradients may be larger than activations. A sweep over two numbers, with a simulation for each pair, selects the values
to drop (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4.3). Calls are cut into segments of
a number of bytes, and values that one segment passes to another are kept; so are values whose cycles per byte exceed a
bound. Of the plans that fit, the cheapest by estimated cycles is chosen; then it keeps those values that it need not
drop. On a chain of n equal layers, segments of sqrt(n) layers hold O(sqrt(n)) values.

Memory of outputs that are written at the end, such as the new parameters of a learning step, is free for temporaries
until then (`transform/graph/overlays.py`). A plan counts all free bytes at a call, whether contiguous or not. So the
values of a plan that fits are placed, and if they take more than the budget, the next plan must fit into
correspondingly less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate, chain, pairwise

from tilewright.ir.expr import Expr, as_int
from tilewright.ir.graph import Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.transform.call import Call, KernelCall
from tilewright.transform.graph.memory import Place
from tilewright.transform.graph.overlays import MIN_HOST_BYTES

Step = tuple[int, bool]
"""(number of a call, whether this is its repetition)."""

SEGMENTS = 12
"""The number of segment lengths that are tried: all bytes, a half, a quarter and so on."""
BOUNDS = 6
"""The number of bounds of cycles per byte that are tried."""
RETURNS = 120
"""The largest number of dropped values for each of which it is tried whether the plan is as good if the value is
kept."""
SPARE = 0.01
"""The share of a program's estimated cycles that "auto" may add."""
MUCH = 1 << 24
"""The least number of bytes of temporaries for which "auto" saves memory: fewer may stay in caches."""
PLACED = 6
"""The largest number of plans whose values are placed to find one within a budget."""
MIDDLES = 8
"""The number of calls, spaced evenly, that are tried as the middle of a program, after which dropped values are
computed again, besides the call with the most live bytes."""


Placed = tuple[tuple[Call, ...], dict[Value, Place]]
"""Calls, and the place of each value without memory of its own."""


def recompute(
    calls: Sequence[Call],
    leading: Iterable[Value],
    where: Mapping[Value, Place],
    budget: str | int,
    threads: int,
    outputs: Sequence[Value],
    held: Callable[[Sequence[Call], Mapping[Value, Place]], int],
) -> Placed:
    """The calls, including those that compute values again, and the places of all values.

    Args:
        leading: inputs, outputs and weights, which have memory of their own.
        where: the place of each value without memory of its own.
        budget: bytes that temporaries may occupy; or a share ("0.5x") of the bytes live at the fullest call if all
            values are kept outside of outputs; or "auto": as little as possible at hardly any cost of time, for
            large programs of known sizes.
        threads: the number of threads, each with its own workspaces.
        outputs: the leading values whose memory temporaries may use until they are written.
        held: returns the bytes that the temporaries of calls occupy once placed.

    Raises ModelError for symbolic sizes, and for a budget that no plan meets; the message has the least possible one.
    """
    if budget == "auto" and not is_fixed(calls):
        return tuple(calls), dict(where)
    program = _Program.of(calls, leading, where, threads)
    most = program.simulate(frozenset()).peak
    if budget == "auto" and most < MUCH:
        return tuple(calls), dict(where)
    program.find_room(outputs)
    program.find_middle()
    if budget == "auto":
        results = [program.emit(plan) for plan in program.spared()]
        return results[0] if len(results) == 1 else min(results, key=lambda placed: held(*placed))
    return _within(program, int(float(budget[:-1]) * most) if isinstance(budget, str) else budget, held)


def _within(program: _Program, most: int, held: Callable[[Sequence[Call], Mapping[Value, Place]], int]) -> Placed:
    """The calls of the cheapest plan found whose temporaries take at most `most` bytes once they are placed: `held`
    returns the bytes of placed calls. Raises ModelError, which says the least bytes of the plans tried, if none
    does."""
    ordinary = program.simulate(frozenset())
    least = 1 << 63
    if ordinary.peak <= most:
        result = program.emit(ordinary)
        least = held(*result)
        if least <= most:
            return result
    plans = sorted(
        (program.simulate(d) for d in set(program.choices())),
        key=lambda p: (p.cycles, p.peak, sorted(v.name for v in p.dropped)),
    )
    bound = most
    for _ in range(PLACED):
        best = next((p for p in plans if p.peak <= bound), None)
        if best is None:
            break
        best = program.returned(best, bound)
        result = program.emit(best)
        bytes_ = held(*result)
        if bytes_ <= most:
            return result
        bound, least = best.peak - (bytes_ - most), min(least, bytes_)
    for best in smallest([ordinary, *plans]):
        result = program.emit(best)
        bytes_ = held(*result)
        if bytes_ <= most:
            return result
        least = min(least, bytes_)
    raise ModelError("no plan needs so little memory", where="memory", expected=f"{least} bytes or more", got=most)


def smallest(plans: Sequence[Plan]) -> list[Plan]:
    """The plan of `plans` with the fewest live bytes, and the one that would have the fewest if no temporary lay in
    outputs' memory: one or two plans, of which placing the values shows the better. [] for no plans."""

    def order(p: Plan, nbytes: int) -> tuple[int, int, list[str]]:
        return nbytes, p.cycles, sorted(v.name for v in p.dropped)

    if not plans:
        return []
    return list(
        dict.fromkeys((min(plans, key=lambda p: order(p, p.peak)), min(plans, key=lambda p: order(p, p.whole))))
    )


def is_fixed(calls: Sequence[Call]) -> bool:
    """Whether all sizes are known, and the calls run in a fixed order and once each."""
    ordinary = [c for c in calls if isinstance(c, KernelCall) and c.branch is None]
    return len(ordinary) == len(calls) and not any(c.func.symbols for c in ordinary)


_Life = int
"""The number of a lifetime of a value. A value has two lifetimes, before and after it is dropped, and so has each of
its parts."""
_Use = tuple[_Life, tuple[range, range]]
"""(first lifetime of a value that a call uses, (lifetimes used if the value is not dropped: by the call, by its
repetition))."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A recomputation plan. `dropped`: the values whose memory is used for others between two computations; `steps`:
    the calls in order, with the repeated ones; `peak`: the bytes live at the fullest call; `whole`: the same if no
    temporary used outputs' memory; `cycles`: those of the repeated calls."""

    dropped: frozenset[Value]
    steps: tuple[Step, ...]
    peak: int
    whole: int
    cycles: int


@dataclass(slots=True)
class _Program:
    """The calls of a program with the values that they read and write; lists have an entry for each call."""

    calls: Sequence[Call]
    where: Mapping[Value, Place]
    reads: list[list[Value]]
    writes: list[list[Value]]
    scratch: list[int]
    parts: dict[Value, list[tuple[Expr | None, Expr]]] = field(default_factory=dict)
    """For each value the (begin, end), in elements, of what each writing call writes; begin is None if it varies."""
    over: list[list[tuple[Value, Value]]] = field(default_factory=list)
    """For each call its (output, input) pairs where the output may be written over the input."""
    sizes: dict[Value, int] = field(default_factory=dict)
    split: dict[Value, list[int]] = field(default_factory=dict)
    """For each value that calls use one part after another, the bytes of its parts. Parts have lifetimes of their own,
    since other values use the rest of the memory meanwhile (`transform/graph/overlays.py`)."""
    touched: list[dict[Value, range]] = field(default_factory=list)
    """For each call the parts that it uses of each value."""
    rooms: dict[Value, list[int]] = field(default_factory=dict)
    """Outputs whose memory is free until they are written, with the calls that use them."""
    middle: int = 0
    lives: dict[Value, _Life] = field(default_factory=dict)
    """The first lifetime of each value; its second one has the next number."""
    nbytes: list[int] = field(default_factory=list)
    """The bytes of each lifetime."""
    widths: list[int] = field(default_factory=list)
    """For each lifetime the bytes of an element; 0 for values in parts, which are not placed in outputs."""
    read: list[list[_Use]] = field(default_factory=list)
    written: list[list[_Use]] = field(default_factory=list)
    overwritable: list[list[_Life]] = field(default_factory=list)
    """For each call the first lifetimes of values of equal size over which it may write a result."""

    @classmethod
    def of(
        cls, calls: Sequence[Call], leading: Iterable[Value], where: Mapping[Value, Place], threads: int
    ) -> _Program:
        created = cls(calls, where, [], [], [])
        depth = 0
        for call in calls:
            if not isinstance(call, KernelCall):
                depth += {"loop": 1, "if": 1, "end": -1}.get(call.kind, 0)
            created.add(call, depth > 0, threads)
        held = {created.place(v).base for v in leading}
        for root in {r for roots in (*created.reads, *created.writes) for r in roots} - held:
            created.sizes[root] = _number(root.type.size) * root.dtype.itemsize
        if is_fixed(calls):
            created.divide()
        created.count_lives()
        return created

    def divide(self) -> None:
        """Divide the memory of each large value that several calls write into the parts that single calls use, each
        with lifetimes of its own."""
        large = {
            r for r, candidate in self.parts.items() if len(candidate) > 1 and self.sizes.get(r, 0) >= MIN_HOST_BYTES
        }
        uses: list[dict[Value, tuple[int, int]]] = []
        for call in self.calls:
            uses.append({})
            for place, size in ((self.place(v), v.type.size) for v in call.args):
                if place.base in large:
                    begin, end = uses[-1].get(place.base, (self.sizes[place.base], 0))
                    start = _number(place.offset)
                    uses[-1][place.base] = min(begin, start), max(end, start + _number(size))
        for root in large:
            ends = sorted({x for candidate in uses if root in candidate for x in candidate[root]})
            at = {end: k for k, end in enumerate(ends)}
            self.split[root] = [(b - a) * root.dtype.itemsize for a, b in pairwise(ends)]
            for candidate, parts in zip(uses, self.touched, strict=True):
                if root in candidate:
                    parts[root] = range(at[candidate[root][0]], at[candidate[root][1]])

    def count_lives(self) -> None:
        """Number the lifetimes of values, because hundreds of plans are evaluated."""
        for root, nbytes in self.sizes.items():
            self.lives[root] = len(self.nbytes)
            parts = self.split.get(root, [])
            self.nbytes += [nbytes, nbytes, *parts, *parts]
            self.widths += [0 if parts else root.dtype.itemsize] * (2 + 2 * len(parts))
        self.read = [self.used(i, roots) for i, roots in enumerate(self.reads)]
        self.written = [self.used(i, roots) for i, roots in enumerate(self.writes)]
        self.overwritable = [
            [self.lives[r] for out, r in pairs if r in self.lives and self.sizes.get(out) == self.sizes[r]]
            for pairs in self.over
        ]

    def used(self, call: int, values: Iterable[Value]) -> list[_Use]:
        results: list[_Use] = []
        for root in values:
            life = self.lives.get(root)
            if life is not None:
                parts = self.touched[call].get(root)
                begin, count = (life, 1) if parts is None else (life + 2 + parts.start, len(parts))
                recomputed = begin + (1 if parts is None else len(self.split[root]))
                results.append((life, (range(begin, begin + count), range(recomputed, recomputed + count))))
        return results

    def find_room(self, outputs: Iterable[Value]) -> None:
        """Record the outputs whose memory is free until they are written."""
        if not is_fixed(self.calls):
            return
        for root in dict.fromkeys(self.place(v).base for v in outputs):
            if _number(root.type.size) * root.dtype.itemsize >= MIN_HOST_BYTES:
                used = [i for i in range(len(self.calls)) if root in self.reads[i] or root in self.writes[i]]
                self.rooms[root] = used

    def add(self, call: Call, repeated: bool, threads: int) -> None:
        """Add a call, with workspaces for `threads` threads. For a call in a loop or branch (`repeated`), all values
        that it uses count as written."""
        roots = {v: self.place(v).base for v in call.args}
        ordinary = isinstance(call, KernelCall) and not repeated and set(call.group.outputs) <= set(call.args)
        written = set(call.group.outputs) if ordinary and isinstance(call, KernelCall) else set(call.args)
        for v in written:
            place = self.place(v)
            self.parts.setdefault(place.base, []).append((place.offset if ordinary else None, v.type.size))
        self.touched.append({})
        self.reads.append(list(dict.fromkeys(r for v, r in roots.items() if v not in written or not ordinary)))
        self.writes.append(list(dict.fromkeys(r for v, r in roots.items() if v in written)))
        pairs = call.over if isinstance(call, KernelCall) else ()
        self.over.append([(self.place(out).base, self.place(operand).base) for out, operand in pairs])
        spaces = call.code.workspaces if isinstance(call, KernelCall) else ()
        self.scratch.append(sum(_number(w.nbytes) * (threads if w.per_thread else 1) for w in spaces))

    def place(self, value: Value) -> Place:
        offset: Expr | int = 0
        while value in self.where:
            offset, value = self.where[value].offset + offset, self.where[value].base
        return Place(value, Place(value).offset + offset)

    def cycles(self, i: int) -> int:
        call = self.calls[i]
        return call.code.cycles if isinstance(call, KernelCall) else 0

    # -- what may be dropped -------------------------------------------------------------------------------------------

    def find_middle(self) -> None:
        """Set `middle`, the call after which dropped values are computed again: of the fullest call and some evenly
        spaced ones, the one with which dropping all values, in segments of some length, needs the least memory."""
        live, overlaid = self.live(tuple((i, False) for i in range(len(self.calls))), frozenset())
        fullest = max(range(len(live)), key=lambda i: live[i] - overlaid[i], default=0)
        least: dict[int, int] = {}
        for middle in (fullest, *(len(live) * k // (MIDDLES + 1) for k in range(1, MIDDLES + 1))):
            self.middle = middle
            writers = self.writers()
            tried = {self.within(writers, k) for k in range(0, SEGMENTS, 3)} if writers else {frozenset[Value]()}
            least[middle] = min(self.simulate(dropped).peak for dropped in tried)
        self.middle = min(least, key=lambda i: least[i])

    def writers(self) -> dict[Value, list[int]]:
        """The values that may be dropped, each with the calls that compute it; no later call changes the operands of
        these. Values that nothing reads after the middle are included: recomputing others may need them."""
        by: dict[Value, list[int]] = {}
        for i, roots in enumerate(self.writes):
            for root in roots:
                by.setdefault(root, []).append(i)
        stays = {root for root in by if self.stays(root)}
        return {
            root: candidate
            for root, candidate in by.items()
            if root in stays and self.sizes.get(root) and candidate[-1] <= self.middle
            if all(r in stays or r not in by for i in candidate for r in self.reads[i])
        }

    def stays(self, root: Value) -> bool:
        """Whether each element of a value is written once: the parts that calls write have known places and do not
        overlap."""
        results: list[tuple[int, int]] = []
        for begin, size in self.parts[root]:
            start, extent = None if begin is None else as_int(begin), as_int(size)
            if start is None or extent is None:
                return False
            results.append((start, start + extent))
        results.sort()
        return all(a[1] <= b[0] for a, b in pairwise(results))

    def choices(self) -> Iterable[frozenset[Value]]:
        """Sets of values to be dropped: for each pair of a bound on the cycles per byte of repeating a value, and a
        length of segments."""
        writers = self.writers()
        price = {root: self.price(candidate) / self.sizes[root] for root, candidate in writers.items()}
        ranked = sorted(set(price.values()))
        bounds = {ranked[(len(ranked) - 1) * (k + 1) // BOUNDS] for k in range(BOUNDS)} if ranked else set()
        for bound in sorted(bounds):
            cheap = {root: candidate for root, candidate in writers.items() if price[root] <= bound}
            for k in range(SEGMENTS):
                yield self.within(cheap, k)

    def price(self, calls: Iterable[int]) -> int:
        return sum(self.cycles(i) for i in calls)

    def within(self, writers: Mapping[Value, list[int]], k: int) -> frozenset[Value]:
        """The values of `writers` that no later segment reads in the forward pass, if a segment has 1 / 2^k of all
        bytes."""
        room = sum(self.sizes[r] for r in writers) / 2**k
        ends: dict[int, int] = {}
        number = dict(zip(writers, accumulate(self.sizes[r] for r in writers), strict=True))
        for root, candidate in writers.items():
            place = self.segment(number[root], room)
            ends[place] = max(ends.get(place, 0), candidate[-1])
        last = {r: i for i in range(self.middle + 1) for r in self.reads[i]}
        return frozenset(r for r in writers if last.get(r, 0) <= ends[self.segment(number[r], room)])

    @staticmethod
    def segment(end: int, room: float) -> int:
        return int((end - 1) / room)

    def returned(self, plan: Plan, most: int) -> Plan:
        """The plan without the drops that it does not need to stay below `most` bytes; the most expensive
        recomputations are removed first."""
        writers = self.writers()
        for root in sorted(plan.dropped, key=lambda r: (-self.price(writers[r]), r.name))[:RETURNS]:
            other = self.simulate(plan.dropped - {root})
            if other.peak <= most and other.cycles <= plan.cycles:
                plan = other
        return plan

    def spared(self) -> list[Plan]:
        """Plans for the budget "auto": those that need the least memory among the ones whose repeated calls take at
        most the share `SPARE` of the program's cycles; if there are none, the plan that drops nothing."""
        most = SPARE * self.price(range(len(self.calls)))
        plans = [self.simulate(d) for d in {frozenset[Value](), *self.choices()}]
        for share in (2, 1):  # half of what is dropped is often for nothing
            results = [self.returned(p, p.peak) for p in smallest([p for p in plans if p.cycles <= share * most])]
            cheap = [p for p in results if p.cycles <= most]
            if cheap:
                return cheap
        return [self.simulate(frozenset())]

    # -- what a choice costs -------------------------------------------------------------------------------------------

    def simulate(self, dropped: frozenset[Value]) -> Plan:
        """The plan that drops the values `dropped`: each is computed again before the first call after the middle that
        reads it, with the dropped values that this needs."""
        steps: list[Step] = []
        recomputed: set[Value] = set()
        writers: dict[Value, list[int]] = {r: [] for r in dropped}
        for i in range(self.middle + 1):
            for root in self.writes[i]:
                if root in dropped:
                    writers[root].append(i)
        for i in range(len(self.calls)):
            if i > self.middle:
                steps += [(k, True) for k in self.missing(i, writers, recomputed)]
            steps.append((i, False))
        live, overlaid = self.live(tuple(steps), dropped)
        peak = max((a - b for a, b in zip(live, overlaid, strict=True)), default=0)
        cycles = sum(self.cycles(i) for i, repeated in steps if repeated)
        return Plan(dropped, tuple(steps), peak, max(live, default=0), cycles)

    def missing(self, call: int, writers: Mapping[Value, list[int]], recomputed: set[Value]) -> list[int]:
        """The calls that must be repeated before call number `call`, in order, to compute the dropped values that it
        reads; adds these values to `recomputed`. `writers` has the calls that write each value."""
        members: set[int] = set()
        asked = list(self.reads[call])
        while asked:
            root = asked.pop()
            if root in writers and root not in recomputed:
                recomputed.add(root)
                members.update(writers[root])
                asked += [r for i in writers[root] for r in self.reads[i]]
        return sorted(members)

    def live(self, steps: Sequence[Step], dropped: frozenset[Value]) -> tuple[list[int], list[int]]:
        """For each step the bytes that are live if the values `dropped` are computed again, and how many of them can be
        in outputs' memory. A result that is written over an operand takes no additional memory."""
        twice = {self.lives[root] for root in dropped}
        first: dict[_Life, int] = {}
        last: dict[_Life, int] = {}
        total = [0] * (len(steps) + 1)
        for at, (i, repeated) in enumerate(steps):
            total[at] += self.scratch[i]
            total[at + 1] -= self.scratch[i]
            later = repeated or i > self.middle
            used = [(life + later,) if life in twice else lives[0] for life, lives in self.read[i]]
            used += [(life + later,) if life in twice else lives[repeated] for life, lives in self.written[i]]
            for life in chain.from_iterable(used):
                first.setdefault(life, at)
                last[life] = at
        for life, begin in first.items():
            total[begin] += self.nbytes[life]
            total[last[life] + 1] -= self.nbytes[life]
        live = list(accumulate(total[:-1]))
        for at, (i, repeated) in enumerate(steps):
            later = repeated or i > self.middle
            over = (life for life in self.overwritable[i] if last.get(life + (later and life in twice)) == at)
            live[at] -= max((self.nbytes[life] for life in over), default=0)
        return live, self.overlaid(steps, first, last)

    def overlaid(self, steps: Sequence[Step], first: Mapping[_Life, int], last: Mapping[_Life, int]) -> list[int]:
        """For each of `steps` the bytes of live values that can lie in outputs' memory, since they die before the
        output is written. `first` and `last` are the steps at which each value's life begins and ends."""
        result = [0] * len(steps)
        at = {i: k for k, (i, repeated) in reversed(list(enumerate(steps))) if not repeated}
        begins = sorted(
            (min((at[i] for i in used), default=len(steps)), root.name, root) for root, used in self.rooms.items()
        )
        ended = sorted((last[life], begin, self.widths[life], self.nbytes[life]) for life, begin in first.items())
        change: dict[int, list[int]] = {}
        done = 0
        for begin, _, output in begins:
            while done < len(ended) and ended[done][0] < begin:
                end, start, width, nbytes = ended[done]
                overlays = change.setdefault(width, [0] * (len(steps) + 1))
                overlays[start] += nbytes
                overlays[end + 1] -= nbytes
                done += 1
            width = output.dtype.itemsize
            room = _number(output.type.size) * width
            overlays = change.setdefault(width, [0] * (len(steps) + 1))
            for k, nbytes in enumerate(accumulate(overlays[:begin])):
                result[k] += min(room, max(0, nbytes - result[k]))
        return result

    # -- the calls -----------------------------------------------------------------------------------------------------

    def emit(self, plan: Plan) -> tuple[tuple[Call, ...], dict[Value, Place]]:
        calls: list[Call] = []
        where = dict(self.where)
        for i, repeated in plan.steps:
            call = self.calls[i]
            if not isinstance(call, KernelCall) or (i <= self.middle and not repeated):
                calls.append(call)
                continue
            other = plan.dropped | set(self.writes[i]) if repeated else plan.dropped
            named = {v: self.renamed(v, where) for v in call.args if self.place(v).base in other}
            args = tuple(named.get(v, v) for v in call.args)
            over = tuple((named.get(a, a), named.get(b, b)) for a, b in call.over)
            calls.append(replace(call, args=args, over=over))
        return tuple(calls), where

    def renamed(self, value: Value, where: dict[Value, Place]) -> Value:
        """A copy of a value for its second lifetime, with a place in `where` if the value has one."""
        place, result = self.place(value), Value(f"{value.name}.again", value.type)
        if place.base != value:
            where[result] = Place(Value(f"{place.base.name}.again", place.base.type), place.offset)
        return result


def _number(size: Expr) -> int:
    result = as_int(size)
    if result is None:
        raise ModelError("a budget of memory needs sizes that are known", where="memory", got=size)
    return result


__all__ = ["recompute"]
