"""How good the model's choice of an all-reduction is on a simulated network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tilewright.collective.topology import ALGORITHMS, Model, Network, fit
from tilewright.collective.topology.model import CHUNKS

NETWORKS = {
    "ten gigabits": Network(),
    "ten gigabits, bursts of 64 KB": Network(burst=65536),
    "a hundred gigabits": Network(latency=3e-6, overhead=0.5e-6, bandwidth=12.5e9, reducing=10e9),
    "slow cores": Network(latency=10e-6, overhead=5e-6, bandwidth=12.5e9, reducing=1e9),
    "far away": Network(latency=5e-3, overhead=2e-6, bandwidth=1.25e8, reducing=5e9),
}
SIZES = (4, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26)


@cache
def model_of(network: Network) -> Model:
    """The model fitted to a network's messages."""
    pings = [(nbytes, network.ping(nbytes)) for nbytes in (64, 4096, 65536, 1 << 20, 1 << 24)]
    return fit(pings, [(nbytes, nbytes / network.reducing) for nbytes in (65536, 1 << 20)])


def ratio(network: Network, ranks: int, nbytes: int, chunks: Sequence[int] = CHUNKS) -> tuple[float, str]:
    """The time of what the model chooses over the least time of all algorithms and some chunks, and both in words."""
    choice = model_of(network).choose(ranks, nbytes)
    times = {
        (name, count): network.all_reduce(name, ranks, nbytes, count)
        for name in ALGORITHMS
        for count in ({*chunks, choice.chunks} if name == "two trees" else (1,))
    }
    best = min(times, key=lambda k: times[k])
    value = times[choice.algorithm, choice.chunks] / times[best]
    return value, f"{ranks} ranks, {nbytes} bytes: {choice.algorithm} {choice.chunks}, best {best[0]} {best[1]}"
