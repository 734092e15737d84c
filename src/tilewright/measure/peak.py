"""The machine's ceilings, measured: frequency, multiply-adds, bytes read from each level of memory, bytes copied.

The peak comes from as many independent chains of fused multiply-adds as the register file holds, the frequency from
one chain of dependent operations that take a cycle each, bandwidths from reading arrays that just fit a level
(`probes.py`), the copy from arrays larger than the last cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from tilewright.measure.probes import CHAIN_STEPS, Probes
from tilewright.support.classes import dataclass
from tilewright.support.machine import Machine

_ROUNDS = 60
"""The number of rounds of a measurement, of which the fastest counts."""
_SECONDS = 0.002
"""The seconds of one round; frequency and reads take a fourth of it. A round is shorter than a scheduler's time slice,
so that some round is uninterrupted on a busy core, too."""
_SLOWER = 8
"""The factor by which rounds of several threads are longer, and fewer: they take some 0.1 ms to begin and end."""
_LARGEST = 512 << 20
"""The size in bytes of the largest array that is read."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The machine's ceilings: the best of several rounds, on one core unless stated otherwise.

    GFLOP/s count a multiply-add as two. GB/s are bytes read; those of the copy count bytes read and bytes written. A
    cache level that the machine lacks or does not tell has the bandwidth of the next.
    """

    peak_gflops_one: float
    peak_gflops_all: float
    copy_gbs_one: float
    threads: int
    frequency_ghz: float
    fma_per_cycle: float
    l1_gbs: float
    l2_gbs: float
    l3_gbs: float
    memory_gbs: float
    memory_gbs_all: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The best figures of several passes, and how disturbed the passes were.

    Args:
        ceilings: the best of each.
        spread: the largest difference of two passes, as a share of the better, among what one core does by itself.
        waited: the share of the time in which a thread that had work did not run.
    """

    ceilings: Ceilings
    spread: float
    waited: float

    @property
    def disturbed(self) -> bool:
        """Whether other processes used the machine so much that the best figures may be far below its ceilings."""
        return self.spread > SPREAD or self.waited > WAITED


SPREAD, WAITED = 0.25, 0.1
"""The spread and the waited share above which a measurement counts as disturbed: chosen, not fitted. A third level that
others use gives passes that differ by more, a core that others use has its thread wait for half of the time."""
_PASSES = 3
_LOOK = 0.05
"""The seconds for which a busy thread is observed, to see whether it always runs."""
_ALONE = ("peak_gflops_one", "frequency_ghz", "l1_gbs", "l2_gbs", "l3_gbs", "memory_gbs")
"""The figures that are measured on a single core."""


def measure_often(machine: Machine) -> Measured:
    """Measure for about six seconds, in passes with some seconds between them, so that what disturbs one need not
    disturb all."""
    passes, waited = [], []
    for _ in range(_PASSES):
        waited.append(waited_share(Probes(machine)))
        passes.append(measure(machine))
    return Measured(best_of(passes), spread_of(passes), sorted(waited)[_PASSES // 2])


def waited_share(probes: Probes) -> float:
    """The share of a short time in which this thread did not run although it always had work."""
    rounds = _rounds_that_take(_SECONDS, lambda n: probes.fma(n, 0.5, 1.0))
    start, used = time.perf_counter(), time.thread_time()
    while (wall := time.perf_counter() - start) < _LOOK:
        probes.fma(rounds, 0.5, 1.0)
    return max(0.0, 1 - (time.thread_time() - used) / wall)


def outer_rates(probes: Probes, machine: Machine) -> tuple[float, float]:
    """Bytes that this core reads a cycle from the last level and from memory, in some tenths of a second."""
    frequency = _frequency(probes)
    *_, l3, memory = _working_sets(machine)
    rates = (_read_bandwidth(probes, size) for size in (l3, min(memory, _OUTER)))
    l3_rate, memory_rate = (rate / frequency for rate in rates)
    return l3_rate, memory_rate


_OUTER = 256 << 20
"""The size in bytes of the largest array that `outer_rates` reads: many processes may measure at once."""


def best_of(passes: Sequence[Ceilings]) -> Ceilings:
    """The largest of each rate over several passes; multiply-adds a cycle are those of the pass with the largest
    peak."""
    most = {f.name: max(getattr(p, f.name) for p in passes) for f in fields(Ceilings)}
    most["fma_per_cycle"] = max(passes, key=lambda p: p.peak_gflops_one).fma_per_cycle
    return Ceilings(**most)


def spread_of(passes: Sequence[Ceilings]) -> float:
    """The largest relative difference between passes."""
    columns: list[list[float]] = [[getattr(p, name) for p in passes] for name in _ALONE]
    return max(1 - min(column) / max(column) for column in columns)


def measure(machine: Machine) -> Ceilings:
    """Measure for about two seconds, on one core and then on all usable ones."""
    threads = max(1, int(machine.usable))
    probes = Probes(machine)
    frequency = _frequency(probes)
    one = _gflops(probes, 1)
    # Whatever disturbs makes it less, and everything is divided by it: once more, some time later.
    frequency = max(frequency, _frequency(probes))
    everything = _gflops(probes, threads) if threads > 1 else one
    sizes = _working_sets(machine)
    l1, l2, l3, memory = (_read_bandwidth(probes, size) for size in sizes)
    # As much as one reads by itself, of all together.
    together = _read_bandwidth(probes, max(sizes[3] // threads, 2 * sizes[1]), threads) if threads > 1 else memory
    per_cycle = one / (2 * probes.lanes * frequency)
    return Ceilings(
        peak_gflops_one=one,
        peak_gflops_all=everything,
        copy_gbs_one=_copy_bandwidth(machine),
        threads=threads,
        frequency_ghz=frequency,
        fma_per_cycle=per_cycle,
        l1_gbs=l1,
        l2_gbs=l2,
        l3_gbs=l3,
        memory_gbs=memory,
        memory_gbs_all=together,
    )


def _best(call: Callable[[], object], rounds: int = _ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _rounds_that_take(seconds: float, call: Callable[[int], object]) -> int:
    rounds = 1
    while rounds < 1 << 40:
        start = time.perf_counter()
        call(rounds)
        if time.perf_counter() - start >= seconds:
            break
        rounds *= 2
    return rounds


def _frequency(probes: Probes) -> float:
    """The core's frequency in GHz, exact as long as nothing else runs on the core's other thread."""
    rounds = _rounds_that_take(_SECONDS / 4, lambda n: probes.chain(n, 3, 5))
    return rounds * CHAIN_STEPS / _best(lambda: probes.chain(rounds, 3, 5)) / 1e9


def _gflops(probes: Probes, threads: int) -> float:
    """The best rate in GFLOP/s of `threads` threads together."""
    rounds = _rounds_that_take(_SECONDS, lambda n: probes.fma(n, 0.5, 1.0))
    if threads == 1:
        best = _best(lambda: probes.fma(rounds, 0.5, 1.0))
    else:
        rounds *= _SLOWER
        from concurrent.futures import ThreadPoolExecutor  # and all of logging: few processes measure

        with ThreadPoolExecutor(threads) as pool:
            best = _best(
                lambda: list(pool.map(lambda _: probes.fma(rounds, 0.5, 1.0), range(threads))), _ROUNDS // _SLOWER
            )
    return rounds * probes.flops * threads / best / 1e9


def _working_sets(machine: Machine) -> tuple[int, int, int, int]:
    """Sizes in bytes of arrays that fit the first, second and third level, and of one that only fits memory."""
    sizes = {c.level: c.bytes for c in machine.caches if c.kind != "Instruction"}
    l1 = sizes.get(1, 32 << 10)
    l2 = sizes.get(2, 512 << 10)
    l3 = sizes.get(3, l2)
    # Half of a private level; of a shared one a share that others hardly take, and more than the level below holds.
    return l1 // 2, max(l2 // 2, 2 * l1), max(l3 // 8, 2 * l2), min(max(4 * l3, 64 << 20), _LARGEST)


def _read_bandwidth(probes: Probes, size: int, threads: int = 1) -> float:
    """The best bandwidth in bytes a second of `threads` threads together, each reading an array of `size` bytes."""
    size -= size % probes.bytes
    arrays = [np.ones(size // 4 + 16, np.float32) for _ in range(threads)]
    addresses = [a.ctypes.data + -a.ctypes.data % 64 for a in arrays]
    n = size // probes.bytes
    passes = _rounds_that_take(_SECONDS / 4, lambda p: probes.read(addresses[0], n, p))
    if threads == 1:
        best = _best(lambda: probes.read(addresses[0], n, passes))
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            best = _best(lambda: list(pool.map(lambda a: probes.read(a, n, passes), addresses)), _ROUNDS // _SLOWER)
    return passes * size * threads / best / 1e9


def _copy_bandwidth(machine: Machine) -> float:
    last = max((cache.bytes for cache in machine.caches), default=32 << 20)
    elements = min(max(2 * last, 64 << 20), _LARGEST) // 4
    source = np.ones(elements, np.float32)
    target = np.zeros(elements, np.float32)
    return 2 * source.nbytes / _best(lambda: np.copyto(target, source)) / 1e9
