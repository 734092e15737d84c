"""Calls that do not depend on each other are made side by side, each by one thread, where they are too small to share.

    a = f(x); b = g(a); c = h(x); d = k(c); e = l(b, d)      ->      thread 0: a, b  |  thread 1: c, d;  e by both

Two threads that share a kernel of a few microseconds wait for each other at its end, find that its parts are not equal,
and read what the other one wrote from the other's cache. A *fork* is a run of calls that are divided into *branches*:
each branch is one thread's, which makes its calls as the only thread, and all wait at the fork's end only. The calls of
a fork are compiled for one thread.

Where forks are is decided by estimate, for each run of calls between regions: the best cut of the calls, in their order
or in that in which each comes as early as it can, into forks and calls that are shared (dynamic programming over the
place of the next call). The branches of a fork are its calls' connected parts, assigned to the threads longest first.
Each fork is a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf

from tilewright.arith import simplify
from tilewright.ir.expr import Expr, as_int, const
from tilewright.ir.graph import Value
from tilewright.ir.key import key
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import walk
from tilewright.plans import estimate, shared_cycles, waiting
from tilewright.plans.framework.decision_key import Key, key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import Group
from tilewright.transform.graph.memory import Place

MAX_CALLS = 48
"""The largest number of calls in a fork, calls that are divided among threads, each of which makes its own alone."""
MIN_GAIN = 0.97
"""A fork may be estimated to take at most this share of the time of its calls shared by all threads."""
MIN_BARRIERS = 3.0
"""The least number of barriers that a fork must save: estimates of calls of a microsecond are not precise enough for
fewer."""


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a memory block that an argument occupies: the value `root` that owns the block, and the range of
    bytes in it (None: all of it)."""

    root: Value
    range: tuple[int, int] | None

    def meets(self, other: Span) -> bool:
        """Whether two spans may have a byte in common. Ranges that are not known are assumed to overlap."""
        if self.root is not other.root:
            return False
        if self.range is None or other.range is None:
            return True
        return self.range[0] < other.range[1] and other.range[0] < self.range[1]


@dataclass(frozen=True, slots=True)
class Times:
    """Estimated cycles of a call: `shared` by all threads, including their wait for each other; `alone`, by one thread;
    `fetching`: the additional time if another thread wrote the call's inputs."""

    shared: float
    alone: float
    fetching: float


def fork_calls(
    calls: Sequence[KernelCall | Group],
    where: Mapping[Value, Place],
    target: Target,
    seen: Callable[[KernelCall], KernelCall] = lambda call: call,
) -> list[KernelCall | Group]:
    """Reorder calls without changing results, and mark those that belong to forks with their branches.

    Args:
        calls: in order, with the groups that become regions.
        where: the places of values without memory of their own.
        seen: maps a call to the form in which it will be compiled.
    """
    result: list[KernelCall | Group] = []
    forks = 0
    for is_call, run in groupby(calls, lambda c: isinstance(c, KernelCall)):
        if not is_call:
            result += run
            continue
        created = _with_branches([c for c in run if isinstance(c, KernelCall)], where, target, forks, seen)
        forks += len({c.branch[0] for c in created if c.branch is not None})
        result += created
    return result


def _with_branches(
    calls: Sequence[KernelCall],
    where: Mapping[Value, Place],
    target: Target,
    first: int,
    seen: Callable[[KernelCall], KernelCall],
) -> list[KernelCall]:
    """Divide consecutive calls, with no region between them, into forks; `first` is the number of the first fork."""
    before = dependences(calls, where)
    if not any(_have_company(before)):
        return list(calls)
    times = _times([seen(call) for call in calls], before, target)
    orders = [list(range(len(calls))), _as_early_as_possible(before, times)]
    cuts = [_cut(order, before, times, target) for order in orders]
    order, cut = orders[0], cuts[0]
    if cuts[1].cycles < MIN_GAIN * cut.cycles:
        order, cut = orders[1], cuts[1]
    result: list[KernelCall] = []
    at = 0
    for end in cut.ends:
        run, at = order[at:end], end
        branches = _branches(run, before, times, target) if len(run) > 1 else []
        if branches and _is_forked(calls, before, times, branches, target):
            for number, branch in enumerate(branches):
                result += [replace(calls[k], branch=(first, number)) for k in branch]
            first += 1
        else:
            result += [calls[k] for k in run]
    return result


def dependences(calls: Sequence[KernelCall], where: Mapping[Value, Place]) -> list[int]:
    """For each call a bit set of the earlier calls that must be done first, because one of the two writes memory that
    the other one touches."""
    touching: dict[Value, list[tuple[int, Span, bool]]] = {}
    before: list[int] = []
    for k, call in enumerate(calls):
        written = _written(call)
        spans = [(_span(v, where), v in written) for v in dict.fromkeys(call.args)]
        count = 0
        for span, writes in spans:
            for j, other, wrote in touching.get(span.root, ()):
                if (writes or wrote) and span.meets(other):
                    count |= 1 << j | before[j]
        for span, writes in spans:
            touching.setdefault(span.root, []).append((k, span, writes))
        before.append(count)
    return before


def _written(call: KernelCall) -> set[Value]:
    """The arguments that a call writes to: its outputs, and what its loops store to."""
    stored = {s.buffer.name for s in walk(call.func.body) if isinstance(s, Store)}
    pairs = zip(call.func.params, call.args, strict=False)  # after them may stand what it prefetches
    return {*call.group.outputs, *(v for b, v in pairs if b.name in stored)}


def _span(value: Value, where: Mapping[Value, Place]) -> Span:
    offset: Expr = const(0)
    size, width = as_int(value.type.size), value.dtype.itemsize
    while value in where:
        offset, value = offset + where[value].offset, where[value].base
    start = as_int(simplify(offset))
    return Span(value, None if start is None or size is None else (start * width, (start + size) * width))


def _have_company(before: Sequence[int]) -> list[bool]:
    """For each call, whether some other call may run at the same time, as neither must be done before the other."""
    after = [0] * len(before)
    for k, done in enumerate(before):
        for j in range(k):
            if done >> j & 1:
                after[j] |= 1 << k
    return [(done | deferred).bit_count() + 1 < len(before) for done, deferred in zip(before, after, strict=True)]


def _times(calls: Sequence[KernelCall], before: Sequence[int], target: Target) -> list[Times]:
    """The estimates of all calls, where `before` has for each call the set of calls (as bits) that it depends on.
    `alone` is infinite if sizes are symbols, or if no other call may run at the same time."""
    one, known = replace(target, threads=1), dict[str, tuple[float, float]]()
    traffic = target.costs.traffic
    computed = {v for call in calls for v in call.group.outputs}
    results = []
    for call, company in zip(calls, _have_company(before), strict=True):
        if call.func.symbols or not company:
            results.append(Times(0.0, inf, 0.0))
            continue
        name = key(call.func)
        if name not in known:
            known[name] = shared_cycles(estimate(call.func, target), target), estimate(call.func, one)
        read = sum(v.known_bytes for v in call.group.inputs if v in computed)
        felt = min(read, traffic.other_core_l2 * target.l2)
        fetching = felt * (1 - 1 / target.threads) / traffic.other_core
        shared, alone = known[name]
        results.append(Times(shared + fetching, alone, fetching))
    return results


def _as_early_as_possible(before: Sequence[int], times: Sequence[Times]) -> list[int]:
    """The order of the calls by the earliest time at which each could begin, after the calls that it depends on
    (`before`, sets as bits), with a thread for each call."""
    ends: list[float] = []
    begins = []
    for done, time in zip(before, times, strict=True):
        begins.append(max((ends[j] for j in range(len(ends)) if done >> j & 1), default=0.0))
        ends.append(begins[-1] + (time.shared if time.alone == inf else time.alone))
    return sorted(range(len(before)), key=lambda k: (begins[k], k))


@dataclass(frozen=True, slots=True)
class _Cut:
    """A partition of a sequence of calls into runs, each a fork or one shared call: the places where the runs end, and
    the estimated cycles of all runs."""

    ends: tuple[int, ...]
    cycles: float


def _cut(order: Sequence[int], before: Sequence[int], times: Sequence[Times], target: Target) -> _Cut:
    """The partition of `order`, a sequence of calls, with the least cycles into runs: forks, and single calls that all
    threads share. `before` has for each call the set of calls (as bits) that it depends on."""
    best = [_Cut((), 0.0)] + [_Cut((), inf)] * len(order)
    for at, k in enumerate(order):
        here = best[at]
        total = here.cycles + times[k].shared
        if total < best[at + 1].cycles:
            best[at + 1] = _Cut((*here.ends, at + 1), total)
        shared, alone = times[k].shared, times[k].alone
        for end in range(at + 2, min(at + MAX_CALLS, len(order)) + 1):
            run = order[at:end]
            if times[run[0]].alone == inf or times[run[-1]].alone == inf:
                break
            shared, alone = shared + times[run[-1]].shared, alone + times[run[-1]].alone
            worth = min(MIN_GAIN * shared, shared - MIN_BARRIERS * target.barrier, best[end].cycles - here.cycles)
            if alone / target.threads >= worth:
                continue  # not even branches of equal length
            cycles = _fork_cycles(_branches(run, before, times, target), before, times, target)
            if cycles < worth:
                best[end] = _Cut((*here.ends, end), here.cycles + cycles)
    return best[-1]


def _branches(run: Sequence[int], before: Sequence[int], times: Sequence[Times], target: Target) -> list[list[int]]:
    """The calls of `run` divided into at most as many branches as there are threads. Calls that depend on each other,
    directly or through others (`before`, sets as bits), are in one branch; larger sets are assigned first."""
    parts: list[tuple[int, list[int]]] = []  # each with its calls as bits too
    for k in run:
        joined = [part for part in parts if part[0] & before[k]]
        parts = [part for part in parts if not part[0] & before[k]]
        bits, members = 1 << k, [k]
        for part in joined:
            bits, members = bits | part[0], part[1] + members
        parts.append((bits, members))
    cycles = [sum(_cycles(k, bits, before, times) for k in members) for bits, members in parts]
    branches: list[list[int]] = [[] for _ in range(min(target.threads, len(parts)))]
    loads = [0.0] * len(branches)
    for p in sorted(range(len(parts)), key=lambda p: -cycles[p]):
        least = loads.index(min(loads))
        branches[least] += parts[p][1]
        loads[least] += cycles[p]
    place = {k: at for at, k in enumerate(run)}
    return [sorted(branch, key=lambda k: place[k]) for branch in branches]


def _cycles(k: int, branch: int, before: Sequence[int], times: Sequence[Times]) -> float:
    """The cycles of call `k` in a branch, whose calls are the set bits of `branch`. Inputs that other branches may have
    written cost extra time."""
    return times[k].alone + (0.0 if before[k] & branch else times[k].fetching)


def _fork_cycles(
    branches: Sequence[Sequence[int]], before: Sequence[int], times: Sequence[Times], target: Target
) -> float:
    """The cycles of a fork: the cycles of its longest branch, plus the time until all threads know that it is done;
    infinite for a fork of one branch."""
    if len(branches) < 2:
        return inf
    bits = [sum(1 << k for k in branch) for branch in branches]
    longest = max(sum(_cycles(k, b, before, times) for k in s) for s, b in zip(branches, bits, strict=True))
    return longest + waiting(target)


def _is_forked(
    calls: Sequence[KernelCall],
    before: Sequence[int],
    times: Sequence[Times],
    branches: Sequence[Sequence[int]],
    target: Target,
) -> bool:
    """Whether the calls in `branches`, lists of calls that do not depend on each other, become a fork. The fork is
    preferred to calls that all threads share, unless the estimate (from `times`, and from `before`, the calls that each
    call depends on) or a forced decision says otherwise."""
    fork, shared = Setting("fork"), Setting("shared")
    members = [k for branch in branches for k in branch]
    cycles = {
        fork: _fork_cycles(branches, before, times, target),
        shared: sum(times[k].shared for k in members),
    }

    def about() -> Key:
        return key_of_nodes("fork", [node for k in sorted(members) for node in calls[k].group.nodes], target)

    return decide(about, [fork, shared], lambda s: s, lambda s: cycles[s]) == fork
