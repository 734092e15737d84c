"""The parts that a manifest lists, and their limits: symbols, tensors, weights, memory, steps and the machine."""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import Literal

from tilewright.ir.dtype import BY_NAME
from tilewright.support.classes import dataclass

ABI_VERSION = 4
"""Version of the native entries' calling convention (`tw_run`, `tw_prepare`, `tw_shapes`) and of this manifest."""

ALIGNMENT = 64
"""Alignment in bytes of temporaries and packed parameters, including aliases of raw ones. Inputs, outputs and raw
parameters that `tw_prepare` reads are aligned to their elements."""

MAX_RANK = 32
"""Dimensions of an array, as many as NumPy allows."""
MAX_ENTRIES = 100_000
"""The most entries of each list of a manifest."""
MAX_DIM = 1 << 40
"""The largest value of a dimension, in elements."""
MAX_TEXT = 10_000
"""The most characters of an assumption's text."""
MAX_NESTING = 64
"""The deepest nesting of regions of steps."""
SHORT_ITERATIONS = 1 << 20
"""A loop with at most this many iterations, if known, needs no other limit."""
IMPOSSIBLE = "data asks for an impossible size"
ROOM = "_room"
"""The prefix of names of rooms and their symbols, which no model file's names have."""
MAX_BYTES = 1 << 46
"""The most bytes of an array, which x86 and Arm can address."""

Dim = int | str
"""A dimension: a number, or the name of a symbol."""

Work = tuple[tuple[int, tuple[str, ...]], ...]
"""A polynomial in the symbols: `((8192, ("n",)), (64, ()))` is 8192 n + 64. "h/32" is a symbol divided by its
`multiple`, so that `((3, ("h/32",)),)` is 3 for an h of 32."""


@dataclass(frozen=True, slots=True)
class SymbolSpec:
    """A symbolic dimension with its inclusive range; its value is a multiple of `multiple`, and likely one of
    `likely`."""

    name: str
    lo: int = 1
    hi: int = (1 << 31) - 1
    multiple: int = 1
    likely: tuple[int, ...] = ()

    @property
    def terms(self) -> set[str]:
        """The names by which polynomials refer to the symbol: its own, and its quotient by `multiple`."""
        return {self.name, quotient(self.name, self.multiple)}


def quotient(symbol: str, multiple: int) -> str:
    """The name in polynomials of `symbol` divided by `multiple`: "n/4", or "n" for 1."""
    return symbol if multiple == 1 else f"{symbol}/{multiple}"


def divided(term: str) -> tuple[str, int]:
    """The symbol and the divisor of a term in polynomials."""
    symbol, _, divisor = term.partition("/")
    return symbol, int(divisor or 1)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input; each dimension is a number or a symbol's name. `written`: the program writes to it (`kernel.py`)."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    written: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output. Dimensions that are numbers are fixed; others are only text for display, as `tw_shapes` computes them.
    `real`: if data decides the shape, its dimensions as polynomials of the symbols and the manifest's `extents`;
    `tw_shapes` then computes bounds, and the valid elements are contiguous at the beginning."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    real: tuple[Work, ...] | None = None


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """A cache that callers keep between calls: an input whose first dimension is its capacity in rows.

    Args:
        input: its name.
        output: the model's name of the extended cache that it returns; programs do not return it, but append in place.
        axis: the axis of the model's value along which it grows.
        scales: for a cache of 8-bit codes, the input with their scales, one for each vector of the last dimension; ""
            for a cache that is not quantised.
    """

    input: str
    output: str
    axis: int
    scales: str = ""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The caches of a program, which is only called through a `State`: it appends rows in place, so that only the check
    of their number keeps it within the memory.

    Args:
        length: the input without elements whose first dimension is the current number of rows.
        rows: the number of rows that a call appends.
    """

    caches: tuple[CacheSpec, ...]
    length: str
    rows: Work

    @property
    def memory(self) -> list[str]:
        """The inputs that are kept between calls: caches, each followed by its scales if it has some."""
        return [name for c in self.caches for name in (c.input, c.scales) if name]


@dataclass(frozen=True, slots=True)
class RaggedSpec:
    """A program on packed rows of sequences, which is called with a `Ragged` for each input that has such rows.

    Args:
        starts: the input that says at which row each sequence begins.
        rows: the symbol that counts all rows; inputs and outputs have it first, or after a dimension of 1.
        least, most: rows of a sequence.
    """

    starts: str
    rows: str
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RoomSpec:
    """A room: an input without elements that the runtime supplies, whose size is the number of rows for which memory is
    reserved, where data decides how many rows there are (`extent`). `reason`: the error message if that number is
    invalid."""

    input: str
    extent: str
    reason: str = IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class AssumptionSpec:
    """An assumption of a program about its sizes: after all sizes, `tw_shapes` writes 1 if it holds, else 0.

    Args:
        condition: as text, for messages only.
        reason: why it must hold, in a few words.
        symbols: those that occur in the condition.
    """

    condition: str
    reason: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A raw weight with the user's name and shape. A `fixed` one is a constant of the model, which updates do not
    contain."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fixed: bool = False

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * BY_NAME[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class PatternSpec:
    """A weight of which products read blocks of one row and `width` columns, and no other elements.

    `rows` names the parameter with the row of each block, [panels of columns, blocks], the weight's number of rows
    where there is none. `transposed`: the weight lies as the transpose."""

    weight: str
    rows: str
    width: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class PackedSpec:
    """A weight as `tw_run` reads it. `tw_prepare` computes it, or it is the raw parameter `alias` itself."""

    name: str
    nbytes: int
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class TempSpec:
    """A temporary, live from step `first` to step `last` inclusive.

    Args:
        nbytes: its size; None where it depends on symbols. `tw_shapes` gives the size of every run temporary, which
            must equal this one where it is stated. Prepare temporaries must state it.
        alias: index of an earlier temporary in the same list whose memory this one takes over (in place).
        per_thread: the size is for one thread; the runtime multiplies it by the number of threads.
    """

    first: int
    last: int
    nbytes: int | None = None
    alias: int | None = None
    per_thread: bool = False


RegionKind = Literal["loop", "if", "else", "end", "extent", "check"]


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """The message of a call that ends at a check.

    Args:
        what: what is wrong.
        expected: in a few words, or nothing.
        real: whether the tested number is an f64, else an i64.
        external: the number identifies an error of another compiler's part, which the call raises (`compilers.py`).
    """

    what: str
    expected: str = ""
    real: bool = False
    external: bool = False


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """A marker among the steps. "loop" and "if" begin a region of steps that run several times, or conditionally;
    "else" begins a branch's other case; "end" ends the innermost region. Regions nest. "extent" defines a symbol that
    data decides, up to the end of its region. "check" ends the call unless a condition holds.

    Args:
        kind: "loop", "if", "else", "end", "extent", "check".
        trip: of a loop, the most iterations (None: no such bound); of an extent, its bound.
        count: of a loop, the slot of an i64 that is a number of iterations; of an extent, of its value; of a check, of
            the number that decides it, an i64 or f64.
        condition: the slot of a bool: whether a loop is entered, whether "if" or a check holds, or at the end of a loop
            whether there is another iteration.
        number: of a loop, the name of the iteration's number in shifts of the steps inside; of an extent, its name.
        counter: of a loop, the slot of an i64 that becomes this number; at its end, how many iterations there were.
        shifts: how many bytes after their slots count, condition and counter stand; nothing if all are 0.
        check: the message of a check.
    """

    kind: str
    trip: Work | None = None
    count: int | None = None
    condition: int | None = None
    number: str = ""
    counter: int | None = None
    shifts: tuple[Work, ...] = ()
    check: CheckSpec | None = None

    def shift(self, k: int) -> Work:
        """The offset in bytes from the beginning of its slot, as a polynomial, of the region's count (k = 0), condition
        (1) or counter (2)."""
        return self.shifts[k] if self.shifts else ()

    @property
    def ends(self) -> bool:
        """Whether input sizes or a small number bound a loop's iterations, so that they need not be counted. A room is
        no bound, since it grows."""
        names = [name for _, powers in self.trip or () for name in powers]
        return (
            self.trip is not None
            and not any(name.startswith(ROOM) for name in names)
            and (bool(names) or sum(number for number, _ in self.trip) <= SHORT_ITERATIONS)
        )

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots from which the region reads its count and condition, and its counter."""
        return tuple(s for s in (self.count, self.condition, self.counter) if s is not None)


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One kernel call: its symbol in the object code and its arguments; or where a region begins or ends, with `region`
    and a label alone.

    Args:
        slots: indices into the slot table, in the order of the kernel's pointers.
        symbols: indices into `Manifest.symbols`, and after these into the extents that steps before it define, in the
            order of the kernel's integers.
        sizes: integers that follow these, known numbers.
        label: what it computes, for tables ("conv2d + relu").
        flops: operations of a call (a fused multiply-add is two), for `profile`.
        traffic: bytes that a call must move at the least, for `profile`.
        alone: only thread 0 executes it, and it has no barrier at its end.
        shifts: how many bytes after its slot's address each argument begins, for `profile`; nothing if all are 0.
        region: set if this is no call, but a marker of a region.
        branch: for a call in a fork, which one thread makes while other threads make others: (number of the fork,
            number of the branch). Of n threads, thread k modulo n makes branch k, as a call with one thread; all wait
            at the end of the fork.
    """

    kernel: str
    slots: tuple[int, ...]
    symbols: tuple[int, ...] = ()
    label: str = ""
    flops: Work | None = None
    traffic: Work | None = None
    alone: bool = False
    shifts: tuple[Work, ...] = ()
    region: RegionSpec | None = None
    branch: tuple[int, int] | None = field(default=None, metadata={"key": "strand"})
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The machine that the object code is for. `features`: LLVM's names of the features that the code may use
    ("avx512f")."""

    triple: str
    cpu: str
    features: tuple[str, ...] = ()


def evaluate(work: Work, symbols: dict[str, int]) -> int:
    """The value of the polynomial `work` for these values of symbols."""
    return sum(coefficient * prod(_value(term, symbols) for term in terms) for coefficient, terms in work)


def _value(term: str, symbols: dict[str, int]) -> int:
    symbol, divisor = divided(term)
    return symbols[symbol] // divisor
