"""A self-test that tells whether a machine can be trusted with measurements now: noise, frequency, neighbours.

Noise is what a tuner would mistake for a gain: equal work is timed in turns, and the noise is half the interquartile
range of the ratios. Neighbours are seen by the share of time in which a thread that had work did not run.
"""

from __future__ import annotations

import os
import statistics
import time

from tilewright.measure.peak import waited_share
from tilewright.measure.probes import CHAIN_STEPS, Probes
from tilewright.support.classes import dataclass
from tilewright.support.machine import describe

MAX_NOISE, MAX_NEIGHBOURS, MAX_OFF = 0.03, 0.3, 0.15
"""Limits of a worker: noise of paired turns and share of a core that others take (a study of tuners has 5 % of
noise cost 2.5 times the measurements, TUNA, EuroSys 2025), and how far the frequency may be from the class's."""
ROUNDS, TURN_SECONDS = 40, 0.004


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a worker's self-test: noise and neighbours as shares, and the deviation from the class's frequency as a
    share."""

    noise: float = MAX_NOISE
    neighbours: float = MAX_NEIGHBOURS
    off: float = MAX_OFF


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Measurements of a machine: noise and neighbours as shares, and the frequency in GHz."""

    noise: float
    neighbours: float
    ghz: float

    def refused(self, limits: Limits, usual_ghz: float | None = None) -> str:
        """The reason why measurements of this machine are refused; empty if they are accepted.

        Args:
            usual_ghz: the median of the class's other workers.
        """
        if self.noise > limits.noise:
            return f"noise {self.noise:.1%}, at most {limits.noise:.1%} wanted"
        if self.neighbours > limits.neighbours:
            return f"others take {self.neighbours:.0%} of a core, at most {limits.neighbours:.0%} wanted"
        if usual_ghz and abs(self.ghz / usual_ghz - 1.0) > limits.off:
            return f"{self.ghz:.2f} GHz, {usual_ghz:.2f} are usual for the class"
        return ""


def self_test(rounds: int = ROUNDS) -> SelfTest:
    """Measure this machine, in about half a second."""
    probes = Probes(describe())
    cycles = 1_000_000
    count = cycles // CHAIN_STEPS
    start = time.perf_counter()
    probes.chain(count, 3, 5)
    turn = max(1, int(count * TURN_SECONDS / max(time.perf_counter() - start, 1e-9)))
    times = []
    for _ in range(2 * rounds):
        start = time.perf_counter()
        probes.chain(turn, 3, 5)
        times.append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(times[::2], times[1::2], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return SelfTest((high - low) / 2, waited_share(probes), turn * CHAIN_STEPS / min(times) / 1e9)


def host_name() -> str:
    """The name that distinguishes hosts: the machine's, not that of a process or container."""
    name = os.environ.get("TILEWRIGHT_FARM_HOST", "")
    if name:
        return name[:200]
    try:
        with open("/etc/machine-id") as file:
            return file.read().strip()[:32] or os.uname().nodename
    except OSError:
        return os.uname().nodename


__all__ = ["LIMITS", "Limits", "SelfTest", "host_name", "self_test"]
