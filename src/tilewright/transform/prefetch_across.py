"""Prefetch the weights of later kernels while earlier ones compute.

Where not all weights of a model stay in the last level of cache, every call reads them from memory. A kernel prefetches
its own weights shortly before it reads them, which hides the transfer if the arithmetic takes longer. With several
threads, or with few rows, the arithmetic is shorter: the kernel waits for memory, which was idle while the kernels
before it computed. So one of these prefetches the weights (`transform/loops/prefetch_share.py`), as many bytes as
memory can deliver during its arithmetic, into the last level of cache. Which kernel does so, or none, is a decision
about the kernel and those before it.

Where the last level holds all weights but delivers them far more slowly than the second one (Intel's servers with AMX,
`early_l2` in `targets/costs.py`), a kernel prefetches them from there into the second level in the same way, if its own
data leave them room there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.ir.graph import Value
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.cost import Cost, level, roofline
from tilewright.plans.framework.decision_key import Key, key_of_nodes
from tilewright.plans.framework.decisions import decide
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.variants import versions_of
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.call import KernelCall
from tilewright.transform.loops.prefetch_share import WeightPrefetch

WAITS = 1.25
"""The least ratio of a kernel's transfer of weights to its arithmetic, in cycles, at which it counts as waiting for
weights."""
STEPS = 4
"""The number of kernels before one that may prefetch its weights: results written in between evict lines from the last
level, too."""


@dataclass(slots=True)
class _Load:
    """The work of a kernel, in cycles on each thread, and the largest weight that it reads."""

    compute: float
    transfer: float
    weight: Value | None
    nbytes: int


def plan_prefetch(
    kernels: Sequence[KernelCall], params: Collection[Value], target: Target
) -> dict[int, tuple[Value, WeightPrefetch]]:
    """For the index of each kernel that prefetches for a later one: the weight, and how much of it.

    Args:
        kernels: those of a call, in order.
        params: the packed weights.
    """
    source = level(sum(v.known_bytes for v in params), target)
    into_l2 = source == "l3" and target.threads == 1 and target.costs.prefetching.early_l2 > 0.0
    if source != "memory" and not into_l2:
        return {}
    rate = target.l3_bandwidth if into_l2 else _delivered(target)
    loads = [_load(kernel, set(params), rate, target) for kernel in kernels]
    least, stays = target.costs.prefetching.least_weights, int(target.costs.traffic.prefetch_l3 * target.l3)
    if into_l2:
        stays = int(target.costs.prefetching.early_l2 * target.l2)
    prefetches: dict[int, tuple[Value, WeightPrefetch]] = {}
    for reader, load in enumerate(loads):
        if load.weight is None or load.nbytes < least:
            continue
        hosts: dict[int, int] = {}  # bytes that each may prefetch, the nearest one first
        passing = 0
        for host in range(reader - 1, max(-1, reader - 1 - STEPS), -1):
            idle = int((loads[host].compute - loads[host].transfer) * rate)
            own = sum(v.known_bytes for v in kernels[host].args) if into_l2 else loads[host].nbytes
            if into_l2 and own > target.l2 - stays:
                break
            if idle >= least and host not in prefetches:
                hosts[host] = min(load.nbytes, idle, stays)
            passing += own
            if passing > (target.l2 - stays if into_l2 else stays):
                break
        host_ = _host(kernels[: reader + 1], load, hosts, rate, target)
        if host_ is not None:
            prefetches[host_] = load.weight, WeightPrefetch(load.nbytes, hosts[host_])
    return prefetches


def _host(
    kernels: Sequence[KernelCall], load: _Load, hosts: Mapping[int, int], rate: float, target: Target
) -> int | None:
    """The index of the kernel that prefetches the weights of the last kernel, one of `hosts` (index -> bytes that it
    may prefetch); None if none does. `rate` is bytes per cycle."""
    if not hosts:
        return None
    reader = len(kernels) - 1
    waits = load.transfer >= WAITS * load.compute

    def key() -> Key:
        cached = kernels[min(hosts) :]
        return key_of_nodes("ahead", [node for kernel in cached for node in kernel.group.nodes], target)

    def setting(host: int | None) -> Setting:
        return Setting("none") if host is None else Setting("ahead", (("kernels", reader - host),))

    def cycles(host: int | None) -> float:
        prefetch = 0 if host is None else hosts[host]
        return Cost(compute=load.compute, memory=load.transfer - prefetch / rate).cycles

    # A kernel that computes for long enough hides the transfer by itself, whatever the sum of its stages says.
    options = [*hosts, None] if waits else [None, *hosts]
    return decide(key, options, setting, cycles)


def _load(kernel: KernelCall, params: set[Value], rate: float, target: Target) -> _Load:
    weights = [v for v in kernel.args if v in params]
    largest = max(weights, key=lambda v: v.known_bytes, default=None)
    _, func = versions_of(kernel.func)[-1]
    structure = analyse(func)
    return _Load(
        roofline(structure, target).compute / target.threads,
        sum(v.known_bytes for v in weights) / rate,
        largest,
        0 if largest is None else largest.known_bytes,
    )


def _delivered(target: Target) -> float:
    """The bytes per cycle that memory delivers to all threads together; if unknown, those that it delivers to one
    thread."""
    return (target.memory_total if target.threads > 1 else 0.0) or target.memory_bandwidth
