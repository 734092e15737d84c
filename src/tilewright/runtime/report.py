"""The memory that a program uses, as data and as text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.runtime.weights.packed import packed_nbytes
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.support.options import check_option

if TYPE_CHECKING:
    from tilewright.runtime.engine import Engine


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by purpose; `arena` is that of one call, `lower_bound` the largest sum of bytes live at a step of it."""

    symbols: dict[str, int]
    temporaries: int
    temporary_bytes: int
    arena: int
    lower_bound: int
    raw_weights: int
    packed_weights: int
    arenas_held: int
    process_peak: int

    @property
    def ratio(self) -> float:
        """The arena's size divided by its lower bound."""
        return self.arena / self.lower_bound if self.lower_bound else 1.0

    def __str__(self) -> str:
        at = ", ".join(f"{name} = {value}" for name, value in self.symbols.items())
        rows = [
            ("arena of a call" + (f" ({at})" if at else ""), self.arena, ""),
            ("  lower bound", self.lower_bound, f"arena / lower bound = {self.ratio:.3f}"),
            ("  temporaries without sharing", self.temporary_bytes, f"{self.temporaries} temporaries"),
            ("arenas held", self.arenas_held, ""),
            ("raw weights", self.raw_weights, ""),
            ("packed weights", self.packed_weights, "apart from raw weights used as they are"),
            ("process, peak resident", self.process_peak, ""),
        ]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(f"{name:<{width}}  {size:>15,} B  {note}".rstrip() for name, size, note in rows)


def memory(engine: Engine, symbols: Mapping[str, int]) -> Memory:
    """The report for these values of symbols; symbols that are not named have their smallest valid value above zero."""
    m = engine.manifest
    unknown = sorted(set(symbols) - {s.name for s in m.symbols})
    if unknown:
        raise CallError(f"there is no symbol {unknown[0]!r}", expected=f"some of {[s.name for s in m.symbols]}")
    values = {s.name: symbols.get(s.name, min(s.hi, -(-max(s.lo, 1) // s.multiple) * s.multiple)) for s in m.symbols}
    for s in m.symbols:
        check_option(f"symbol {s.name!r}", values[s.name], int, "a whole number", CallError)
        if not s.lo <= values[s.name] <= s.hi or values[s.name] % s.multiple:
            raise CallError("is out of range", where=f"symbol {s.name!r}", got=values[s.name])
    dims = tuple(values[s.name] for s in m.symbols)
    placed = engine.memory(dims)
    return Memory(
        symbols=values,
        temporaries=len(m.run_temps),
        temporary_bytes=sum(x.nbytes for x in engine.intervals(dims)),
        arena=placed.arena,
        lower_bound=placed.live,
        raw_weights=sum(p.nbytes for p in m.params),
        packed_weights=packed_nbytes(m),
        arenas_held=engine.arena_bytes,
        process_peak=peak_resident(),
    )


def peak_resident() -> int:
    """The largest resident memory of this process so far, in bytes; 0 if the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
