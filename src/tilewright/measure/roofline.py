"""The roofline of a machine: the least time that work can take, by its operations and its bytes, and which of the two
decides."""

from __future__ import annotations

from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """A level of memory ("L1", "L2", "L3", "memory"): its size in bytes, and the bytes a second read from it."""

    name: str
    holds: float
    rate: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The least seconds that some work takes, and the limiting resource: "compute", or the name of a level."""

    seconds: float
    by: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """The peak of floating-point operations a second (a multiply-add is two), and the memory levels, the smallest
    first."""

    peak: float
    levels: tuple[Level, ...]

    def bound(self, flops: float | None, nbytes: float | None) -> Bound | None:
        """The least time of work that does `flops` operations and touches `nbytes` bytes, each of them once and from
        the smallest level that holds them all; None if neither is known."""
        result = [] if flops is None else [Bound(flops / self.peak, "compute")]
        if nbytes is not None:
            level = next((x for x in self.levels if nbytes <= x.holds), self.levels[-1])
            result.append(Bound(nbytes / level.rate, level.name))
        return max(result, key=lambda b: b.seconds, default=None)
