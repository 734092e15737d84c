"""The caches of a machine and its ceilings: their sizes, and the bandwidths of a core."""

from __future__ import annotations

from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Caches:
    """Properties of the caches, in bytes unless stated otherwise.

    Args:
        l1, l2, l3: data cache of a core, second level of a core, last level (shared).
        l1_ways, l2_ways: ways of the first two.
        way: bytes after which addresses fall into the same set of the first level.
        line: of a cache, which is what one prefetch brings.
        page: of virtual memory; hardware follows a stream to the end of its page only.
        alias: the distance of addresses that a core at first confuses when it compares a load with earlier stores, by
            their low bits.
        l1_pages, l2_pages: pages whose translations the first and the second level of the translation buffer hold.
    """

    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    l1_ways: int = 8
    l2_ways: int = 8
    way: int = 4096
    line: int = 64
    page: int = 4096
    alias: int = 4096
    l1_pages: int = 64
    l2_pages: int = 2048


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The highest rates that a core reaches, measured by `tilewright doctor`, or else known for its kind. Estimates use
    them, so that schedules depend on them.

    Args:
        fma_per_cycle: multiply-adds of full vectors that a core starts in a cycle.
        l1_bandwidth, l2_bandwidth, l3_bandwidth, memory_bandwidth: bytes that a core reads in a cycle from each level.
        memory_total: bytes that all cores together read in a cycle from memory, 0 if it is not known: what several
            threads may prefetch ahead. Estimates of kernels take `memory_bandwidth` with any number of threads: most of
            what they would wait for has been prefetched.
        streams: with how many concurrent streams a core reads fastest from beyond the second level; not measured yet.
        barrier: cycles of a barrier among a few threads.
        handover: cycles by which an empty call takes longer with a few threads, all awake, than with one.
        frequency: GHz under load, to show cycles as time; code does not depend on it.
    """

    fma_per_cycle: float = 2.0
    l1_bandwidth: float = 32.0
    l2_bandwidth: float = 16.0
    l3_bandwidth: float = 12.0
    memory_bandwidth: float = 6.0
    memory_total: float = 0.0
    streams: int = 4
    barrier: float = 500.0
    handover: float = 1600.0
    frequency: float = 3.0


USUAL = Caches()
"""The caches assumed for an unknown machine."""

__all__ = ["USUAL", "Caches", "Ceilings"]
