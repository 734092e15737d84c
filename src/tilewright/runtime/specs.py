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
"""Alignment in bytes of packed parameters (those that are raw ones included) and temporaries. Inputs, outputs and the
raw parameters that `tw_prepare` reads: their element's."""

MAX_RANK = 32
"""Dimensions of an array, as many as NumPy allows."""
MAX_ENTRIES = 100_000
"""Entries of each list of a manifest."""
MAX_DIM = 1 << 40
"""The largest value of a dimension, in elements."""
MAX_TEXT = 10_000
"""Characters of an assumption."""
MAX_NESTING = 64
"""Regions of steps inside each other."""
SHORT_ITERATIONS = 1 << 20
"""A known number of iterations up to which a loop needs no other end."""
IMPOSSIBLE = "data asks for an impossible size"
ROOM = "_room"
"""How the names of rooms and of their symbols begin, as no file's names do."""
MAX_BYTES = 1 << 46
"""Bytes of an array: what x86 and Arm can address."""

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
        """The term for it in polynomials."""
        return {self.name, quotient(self.name, self.multiple)}


def quotient(symbol: str, multiple: int) -> str:
    """The term in polynomials for a symbol divided by what divides it."""
    return symbol if multiple == 1 else f"{symbol}/{multiple}"


def divided(term: str) -> tuple[str, int]:
    """The symbol and the divisor that a term of a polynomial stands for."""
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
    """An output. A number is a promise; any other dimension comes from `tw_shapes` and is text for display here.

    `real`: where data decides the shape, its dimensions as polynomials of the symbols and of the manifest's `extents`;
    `tw_shapes` gives bounds then, and the elements that there are lie dense at the beginning.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    real: tuple[Work, ...] | None = None


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """An input that callers keep between calls, which grows: its first dimension is how many rows there is room for.

    Args:
        input: its name.
        output: what the model calls the longer one that it gives back, as no program does.
        axis: along which the model's own value grows.
        scales: the input with what codes of 8 bits are multiplied by, one number for each of the last dimension's
            vectors; "" of a cache of the model's own numbers.
    """

    input: str
    output: str
    axis: int
    scales: str = ""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The caches of a program, which is called through a `State` only: it writes after the rows that there are, so
    that nothing but their number keeps it inside the memory that it is given.

    Args:
        length: the input without elements whose first dimension is the number of rows that there are.
        rows: how many a call appends.
    """

    caches: tuple[CacheSpec, ...]
    length: str
    rows: Work

    @property
    def memory(self) -> list[str]:
        """The inputs that are kept: caches, each followed by its scales if it has some."""
        return [name for c in self.caches for name in (c.input, c.scales) if name]


@dataclass(frozen=True, slots=True)
class RaggedSpec:
    """A program on packed rows, which is called with a `Ragged` for each input that has some.

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
    """An input without elements, which callers do not give: for how many rows there is memory, of `extent` rows.
    `reason` is what the call says where there cannot be so many."""

    input: str
    extent: str
    reason: str = IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class AssumptionSpec:
    """An assumption of a program about its sizes: `tw_shapes` says after all sizes whether it holds, 1 or 0.

    Args:
        condition: as text, for messages; nothing reads it.
        reason: why it must hold, in a few words.
        symbols: those that it is about.
    """

    condition: str
    reason: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A raw weight, as the user names and shapes it. A `fixed` one is a constant of the model: updates leave it out."""

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
    """A weight as `tw_run` reads it: written by `tw_prepare`, or (`alias`) the raw parameter of that name as it is."""

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
        real: the number that decides it is an f64, else an i64.
        external: the number is that of a failure which the call raises instead (`compilers.py`).
    """

    what: str
    expected: str = ""
    real: bool = False
    external: bool = False


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """Where steps begin or end that run several times, or not at all: a loop begins, or a branch; its other case does;
    the last one that began ends. Regions stand inside each other. Or where a symbol begins to hold that data decides,
    up to the end of the region. Or a check: the call ends here unless its condition holds.

    Args:
        kind: "loop", "if", "else", "end", "extent", "check".
        trip: of a loop, the most iterations (None: no such bound); of an extent, its bound.
        count: of a loop, the slot of an i64 that is a number of iterations; of an extent, of its value; of a check, of
            the number that decides it, an i64 or f64.
        condition: the slot of a bool: whether a loop is entered, whether "if" or a check holds, or at the end of a loop
            whether there is another iteration.
        number: of a loop, what shifts of the steps inside call the number of the iteration; of an extent, its name.
        counter: of a loop, the slot of an i64 that becomes this number; at its end, how many iterations there were.
        shifts: how many bytes after their slots count, condition and counter stand; nothing if all are 0.
        check: what a check says.
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
        """The offset in bytes, from the beginning of its slot, of the count (k = 0), the condition (1) or the counter
        (2), as a polynomial."""
        return self.shifts[k] if self.shifts else ()

    @property
    def ends(self) -> bool:
        """Whether sizes of inputs, or few iterations, are the end of a loop, so that the caller need not count them. A
        room is no end: it grows."""
        names = [name for _, powers in self.trip or () for name in powers]
        return (
            self.trip is not None
            and not any(name.startswith(ROOM) for name in names)
            and (bool(names) or sum(number for number, _ in self.trip) <= SHORT_ITERATIONS)
        )

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots that it reads or writes."""
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
        alone: thread 0 executes all of it, and it has no barrier at its end.
        shifts: how many bytes after its slot's address each argument begins, for `profile`; nothing if all are 0.
        region: that it is no call but a place where a region begins or ends.
        branch: of a call that one thread makes while others make others: the number of its fork, the steps that all
            threads wait for when they are done, and that of its branch there; of n threads, branch k is that of number
            k modulo n, to whom it is a call with one thread.
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
    """The machine that the object code is for. `features` are LLVM's names of those the code may use ("avx512f")."""

    triple: str
    cpu: str
    features: tuple[str, ...] = ()


def evaluate(work: Work, symbols: dict[str, int]) -> int:
    """The value of a polynomial for given symbols."""
    return sum(coefficient * prod(_value(term, symbols) for term in terms) for coefficient, terms in work)


def _value(term: str, symbols: dict[str, int]) -> int:
    symbol, divisor = divided(term)
    return symbols[symbol] // divisor
