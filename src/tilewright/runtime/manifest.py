"""The manifest: everything that the runtime must know about a program besides its code and weights.

The compiler fills it in, the artifact stores it as JSON, and the runtime trusts nothing of it: `Manifest.check`
refuses whatever would make the call glue, the memory planner or the loader read or write out of bounds.

Slots, in order (see `codegen/llvm/entry.py` for the native entry that uses them):

    run      [inputs | outputs | packed | run_temps | control]
    prepare  [params | packed | prepare_temps]

`control` is the address of two words: how many iterations loops may have that nothing known bounds, in one call all
together; and what `tw_run` sets to 1 where they would have more (`call.py`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, get_args

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.recorded import STATES, RecordUse
from tilewright.runtime.schema import SchemaError, decode, encode
from tilewright.support.errors import ArtifactError, Error

ABI_VERSION = 3
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
MAX_NESTING = 64
"""Regions of steps inside each other."""
FEW_ITERATIONS = 1 << 20
"""A known number of iterations up to which a loop needs no other end."""
MAX_BYTES = 1 << 46
"""Bytes of an array: what x86 and Arm can address."""
_KEY = re.compile(r"[0-9a-f]{0,128}")
_KERNEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]{0,511}")
_OPTION = re.compile(r"[a-z0-9]{1,16}")

Dim = int | str
"""A dimension: a number, or the name of a symbol."""

Work = tuple[tuple[int, tuple[str, ...]], ...]
"""A polynomial in the symbols: `((8192, ("n",)), (64, ()))` is 8192 n + 64."""


@dataclass(frozen=True, slots=True)
class SymbolSpec:
    """A symbolic dimension with its inclusive range; its value is a multiple of `multiple`, and likely one of
    `likely`."""

    name: str
    lo: int = 1
    hi: int = (1 << 31) - 1
    multiple: int = 1
    likely: tuple[int, ...] = ()


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
    """

    input: str
    output: str
    axis: int


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The caches of a program, which is called through a `State` only: it writes behind the rows that there are, so
    that nothing but their number keeps it inside the memory that it is given.

    Args:
        length: the input without elements whose first dimension is the number of rows that there are.
        rows: how many a call appends.
    """

    caches: tuple[CacheSpec, ...]
    length: str
    rows: Work


@dataclass(frozen=True, slots=True)
class RaggedSpec:
    """A program on packed rows, which is called with a `Ragged` for each input that has some.

    Args:
        starts: the input that says at which row each sequence begins.
        rows: the symbol that counts all rows; inputs and outputs have it first, or behind a dimension of 1.
        least, most: rows of a sequence.
    """

    starts: str
    rows: str
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RoomSpec:
    """An input without elements, which callers do not give: for how many rows there is memory, of `extent` rows."""

    input: str
    extent: str


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


RegionKind = Literal["loop", "if", "else", "end", "extent"]


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """Where steps begin or end that run several times, or not at all: a loop begins, or a branch; its other case does;
    the last one that began ends. Regions stand inside each other. Or where a symbol begins to hold that data decides,
    up to the end of the region.

    Args:
        kind: "loop", "if", "else", "end", "extent".
        trip: of a loop, the most iterations (None: no such bound); of an extent, its bound.
        count: of a loop, the slot of an i64 that is a number of iterations; of an extent, of its value.
        condition: the slot of a bool: whether a loop is entered, whether "if" holds, or at the end of a loop whether
            there is another iteration.
        number: of a loop, what shifts of the steps inside call the number of the iteration; of an extent, its name.
        counter: of a loop, the slot of an i64 that becomes this number; at its end, how many iterations there were.
        shifts: how many bytes behind their slots count, condition and counter stand; nothing if all are 0.
    """

    kind: str
    trip: Work | None = None
    count: int | None = None
    condition: int | None = None
    number: str = ""
    counter: int | None = None
    shifts: tuple[Work, ...] = ()

    def shift(self, k: int) -> Work:
        """How many bytes behind its slot the first, second or third of count, condition and counter stands."""
        return self.shifts[k] if self.shifts else ()

    @property
    def ends(self) -> bool:
        """Whether sizes of inputs, or few iterations, are the end of a loop, so that nobody has to count them."""
        return self.trip is not None and (
            any(powers for _, powers in self.trip) or sum(number for number, _ in self.trip) <= FEW_ITERATIONS
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
        symbols: indices into `Manifest.symbols`, and behind these into the extents that steps before it define, in the
            order of the kernel's integers.
        label: what it computes, for tables ("conv2d + relu").
        flops: operations of a call (a fused multiply-add is two), for `profile`.
        traffic: bytes that a call must move at the least, for `profile`.
        alone: thread 0 executes all of it, and it has no barrier at its end.
        shifts: how many bytes behind its slot's address each argument begins, for `profile`; nothing if all are 0.
        region: that it is no call but a place where a region begins or ends.
        strand: of a call that one thread makes while others make others: the number of its fork, the steps that all
            threads wait for when they are done, and that of its strand there; of n threads, strand k is that of number
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
    strand: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The machine that the object code is for. `features` are LLVM's names of those the code may use ("avx512f")."""

    triple: str
    cpu: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A program's description. `structure_key` identifies the program whatever its weights' values; `precision` and
    `fast` are what the user allowed the compiler to trade. `ignored` are names that the model's own dictionary of
    weights has and the program does not read: updates may hold them. `tied` are those among them that were one tensor
    with a parameter, (name, the parameter's name): updates that hold both must hold the same numbers. `folded` are
    weights of which code or constants were made, (name, what was made): updates that hold them are refused. `extents`
    are the names of numbers that data decides: the last outputs are their values, which callers do not see; `rooms`
    are for those of which nothing else says how large they may be. `records` are the tuning records that there were
    about what was decided. `alone`: a call does so little that its caller's thread makes it, whatever number of threads
    is allowed. `state`: that the program has caches which its caller keeps. `ragged`: that inputs are packed rows of
    sequences."""

    name: str
    target: TargetSpec
    symbols: tuple[SymbolSpec, ...] = ()
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    params: tuple[ParamSpec, ...] = ()
    packed: tuple[PackedSpec, ...] = ()
    run_temps: tuple[TempSpec, ...] = ()
    run_steps: tuple[StepSpec, ...] = ()
    prepare_temps: tuple[TempSpec, ...] = ()
    prepare_steps: tuple[StepSpec, ...] = ()
    structure_key: str = ""
    schedule_version: int = 0
    precision: str = "fp32"
    fast: str = "auto"
    ignored: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    folded: tuple[tuple[str, str], ...] = ()
    extents: tuple[str, ...] = ()
    rooms: tuple[RoomSpec, ...] = ()
    records: tuple[RecordUse, ...] = ()
    alone: bool = False
    state: StateSpec | None = None
    ragged: RaggedSpec | None = None
    abi_version: int = field(default=ABI_VERSION)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ArtifactError listing everything that is inconsistent."""
        problems = _Checker(self).run()
        if problems:
            raise ArtifactError.many(problems, "the manifest is not consistent", where=f"manifest {self.name[:80]!r}")

    def to_json(self) -> str:
        """The manifest as JSON text, the same bytes for equal manifests."""
        return json.dumps(encode(self), separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what `to_json` wrote; ArtifactError on anything else."""
        try:
            data = json.loads(text, object_pairs_hook=_no_duplicates)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"not JSON: {error}", where="manifest") from None
        version = data.get("abi_version") if isinstance(data, dict) else None
        if isinstance(version, int) and version > ABI_VERSION:
            hint = "load it with the version of tilewright that wrote it, or a later one"
            raise ArtifactError(
                "written by a newer version", where="manifest", expected=f"ABI <= {ABI_VERSION}", got=version, hint=hint
            )
        if isinstance(data, dict) and "winograd" in data and "fast" not in data:
            data["fast"] = data.pop("winograd")  # the option's name before it ruled more than convolutions
        try:
            return decode(cls, data, "manifest")
        except SchemaError as error:
            raise ArtifactError(error.what, where=error.path) from None

    @property
    def results(self) -> tuple[OutputSpec, ...]:
        """The outputs that callers see."""
        return self.outputs[: len(self.outputs) - len(self.extents)]

    @property
    def given(self) -> tuple[InputSpec, ...]:
        """The inputs that callers give."""
        return tuple(i for i in self.inputs if all(room.input != i.name for room in self.rooms))

    @property
    def run_slots(self) -> int:
        """Slots of `tw_run` without `control`, whose place is behind them."""
        return len(self.inputs) + len(self.outputs) + len(self.packed) + len(self.run_temps)

    @property
    def output_rank_total(self) -> int:
        """How many output dimensions `tw_shapes` writes."""
        return sum(len(o.shape) for o in self.outputs)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


class _Checker:
    """Collects the inconsistencies of one manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self.m = manifest
        self.found: list[Error] = []

    def expect(self, holds: bool, what: str, where: str) -> None:
        if not holds:
            self.found.append(ArtifactError(what, where=where))

    def run(self) -> list[Error]:
        m = self.m
        self.expect(m.abi_version == ABI_VERSION, f"ABI version {m.abi_version} is not {ABI_VERSION}", "abi_version")
        self.expect(_KEY.fullmatch(m.structure_key) is not None, "is not a hexadecimal digest", "structure_key")
        for name, value in (("precision", m.precision), ("fast", m.fast)):
            self.expect(_OPTION.fullmatch(value) is not None, f"{value[:40]!r} is no setting", name)
        lists = (m.symbols, m.inputs, m.outputs, m.params, m.packed, m.run_temps, m.run_steps, m.prepare_temps)
        if any(len(part) > MAX_ENTRIES for part in (*lists, m.prepare_steps, m.ignored, m.tied, m.folded, m.records)):
            self.expect(False, f"a list has more than {MAX_ENTRIES} entries", "manifest")
            return self.found
        self.unique("symbol", [s.name for s in m.symbols])
        self.unique("input", [i.name for i in m.inputs])
        self.unique("output", [o.name for o in m.outputs])
        self.unique("parameter", [*(p.name for p in m.params), *m.ignored])
        self.unique("updated parameter", [*(p.name for p in m.params if not p.fixed), *(name for name, _ in m.folded)])
        names, ignored = {p.name for p in m.params}, set(m.ignored)
        for name, leader in m.tied:
            self.expect(name in ignored and leader in names, "is tied to no parameter", f"weight {name[:80]!r}")
        self.symbols()
        self.tensors()
        self.state()
        self.ragged()
        self.rooms()
        self.packed()
        self.temps("run temporary", m.run_temps, len(m.run_steps), must_state=False)
        self.temps("prepare temporary", m.prepare_temps, len(m.prepare_steps), must_state=True)
        self.steps("run step", m.run_steps, m.run_slots, len(m.symbols), regions=True)
        for use in m.records:
            self.expect(use.state in STATES, f"{use.state[:40]!r} is no state", f"record {use.record[:40]!r}")
        prepare_slots = len(m.params) + len(m.packed) + len(m.prepare_temps)
        self.steps("prepare step", m.prepare_steps, prepare_slots, 0, regions=False)
        return self.found

    def state(self) -> None:
        """Caches with room for one number of rows, which nothing else in a call says; all else belongs to calls."""
        state = self.m.state
        if state is None:
            return
        inputs = {i.name: i for i in self.m.inputs}
        room, fixed = set[Dim](), set[Dim]()
        for cache in state.caches:
            spec = inputs.pop(cache.input, None)
            fits = spec is not None and spec.written and len(spec.shape) > 0 and 0 <= cache.axis < len(spec.shape)
            self.expect(fits, "is no input that is written to", f"cache {cache.input[:80]!r}")
            room |= set(spec.shape[:1] if spec is not None else ())
            fixed |= set(spec.shape[1:] if spec is not None else ())
        length = inputs.pop(state.length, None)
        count = length.shape[0] if length is not None and length.dtype == "i8" and length.shape[1:] == (0,) else 0
        self.expect(
            isinstance(count, str) and count not in room | fixed, "counts no rows", f"input {state.length[:80]!r}"
        )
        free = {d for i in inputs.values() for d in i.shape}
        named = all(isinstance(d, str) and d not in free | fixed for d in room)
        self.expect(len(room) == 1 and named, "has caches with room for different numbers of rows", "state")
        known = all(number and free.issuperset({*factors}) and count not in factors for number, factors in state.rows)
        self.expect(bool(state.rows) and known, "adds an unknown number of rows", "state")

    def ragged(self) -> None:
        """A symbol that counts rows, and a vector of where sequences begin."""
        ragged = self.m.ragged
        if ragged is None:
            return
        starts = [i for i in self.m.inputs if i.name == ragged.starts]
        fits = len(starts) == 1 and starts[0].dtype == "i64" and len(starts[0].shape) == 1
        self.expect(fits and starts[0].shape != (ragged.rows,), "does not say where sequences begin", "ragged starts")
        self.expect(ragged.rows in {s.name for s in self.m.symbols}, "is no symbol", "ragged rows")
        tensors: list[InputSpec | OutputSpec] = [*self.m.inputs, *self.m.outputs]
        for spec in tensors:
            fits = ragged.rows not in spec.shape or spec.shape[spec.shape[0] == 1] == ragged.rows
            self.expect(fits, "has rows behind other dimensions", f"tensor {spec.name[:80]!r}")
        self.expect(any(ragged.rows in i.shape for i in self.m.inputs), "is no dimension of an input", "ragged rows")

    def rooms(self) -> None:
        """Inputs without elements, each with a number of rows that nothing else in a call says."""
        self.unique("room", [r.input for r in self.m.rooms])
        for room in self.m.rooms:
            where = f"room {room.input[:80]!r}"
            shapes = [i.shape for i in self.m.inputs if i.name == room.input and i.dtype == "i8"]
            rows = shapes[0][0] if shapes and shapes[0][1:] == (0,) else None
            self.expect(isinstance(rows, str), "is no input without elements", where)
            self.expect(room.extent in self.m.extents, "is for no extent", where)
            others = [i.shape for i in self.m.inputs if i.name != room.input]
            self.expect(all(rows not in shape for shape in others), "has the rows of another input", where)

    def unique(self, what: str, names: list[str]) -> None:
        seen: set[str] = set()
        for name in names:
            self.expect(bool(name) and name not in seen, "the name is empty or used twice", f"{what} {name[:80]!r}")
            seen.add(name)

    def symbols(self) -> None:
        bound = {d for i in self.m.inputs for d in i.shape if isinstance(d, str)}
        for s in self.m.symbols:
            fits = 0 <= s.lo <= s.hi <= MAX_DIM and 1 <= s.multiple <= MAX_DIM
            self.expect(fits, f"range {s.lo}..{s.hi} by {s.multiple} is not possible", f"symbol {s.name!r}")
            self.expect(s.name in bound, "no input has this dimension", f"symbol {s.name!r}")

    def tensors(self) -> None:
        names = {s.name for s in self.m.symbols}
        for i in self.m.inputs:
            self.tensor(f"input {i.name!r}", i.dtype, i.shape)
            unknown = [d for d in i.shape if isinstance(d, str) and d not in names]
            self.expect(not unknown, f"dimensions {unknown} are no symbols", f"input {i.name!r}")
        for o in self.m.outputs:
            self.tensor(f"output {o.name!r}", o.dtype, o.shape)
            known = names | set(self.m.extents)
            used = {name for work in o.real or () for _, powers in work for name in powers}
            fits = o.real is None or len(o.real) == len(o.shape)
            self.expect(fits and used <= known, "its real shape makes no sense", f"output {o.name!r}")
        self.unique("extent", [*self.m.extents, *names])
        counts = self.m.outputs[len(self.m.results) :]
        fits = len(counts) == len(self.m.extents) and all((c.dtype, c.shape) == ("i64", ()) for c in counts)
        self.expect(fits, "there is not an output of i64[] for each", "extents")
        for p in self.m.params:
            self.tensor(f"parameter {p.name!r}", p.dtype, p.shape)

    def tensor(self, where: str, dtype: str, shape: tuple[Dim, ...]) -> None:
        self.expect(dtype in BY_NAME, f"no such element type: {dtype[:40]!r}", where)
        self.expect(len(shape) <= MAX_RANK, f"rank {len(shape)} is above {MAX_RANK}", where)
        sizes = [d for d in shape if isinstance(d, int)]
        self.expect(all(0 <= d <= MAX_DIM for d in sizes), "a dimension is negative or too large", where)
        self.expect(prod(sizes) <= MAX_BYTES // 8, "too many elements", where)

    def packed(self) -> None:
        params = {p.name: p for p in self.m.params if p.dtype in BY_NAME}
        for p in self.m.packed:
            where = f"packed parameter {p.name!r}"
            self.expect(0 <= p.nbytes <= MAX_BYTES, f"size {p.nbytes} is not possible", where)
            if p.alias is not None:
                raw = params.get(p.alias)
                self.expect(raw is not None, f"is an alias of {p.alias!r}, which is no parameter", where)
                self.expect(raw is None or raw.nbytes == p.nbytes, "its size is not that of its alias", where)

    def temps(self, what: str, temps: tuple[TempSpec, ...], steps: int, *, must_state: bool) -> None:
        for k, t in enumerate(temps):
            where = f"{what} {k}"
            self.expect(0 <= t.first <= t.last < steps, f"lives from step {t.first} to {t.last} of {steps}", where)
            size = -1 if t.nbytes is None and must_state else t.nbytes or 0
            self.expect(0 <= size <= MAX_BYTES, f"size {t.nbytes} is not possible", where)
            self.expect(t.alias is None or 0 <= t.alias < k, f"alias {t.alias} is no earlier temporary", where)

    def steps(self, what: str, steps: tuple[StepSpec, ...], slots: int, symbols: int, *, regions: bool) -> None:
        inside = _Inside(self, {s.name for s in self.m.symbols})
        for k, s in enumerate(steps):
            where = f"{what} {k} ({s.kernel[:80]})"
            used = (*s.slots, *(s.region.slots if s.region is not None else ()))
            self.expect(all(0 <= i < slots for i in used), f"a slot is outside 0..{slots - 1}", where)
            known = symbols + inside.extents
            self.expect(all(0 <= i < known for i in s.symbols), f"a symbol is outside 0..{known - 1}", where)
            self.expect(len(s.shifts) in (0, len(s.slots)), "there is not one shift for each slot", where)
            if s.region is not None:
                self.expect(regions, "there are no regions here", where)
                plain = StepSpec("", (), label=s.label, region=s.region)
                self.expect(s == plain, "is both a call and a region's begin or end", where)
                inside.region(s.region, where)
                continue
            fits = s.strand is None or (regions and all(0 <= number < MAX_ENTRIES for number in s.strand))
            self.expect(fits, "its strand is not possible", where)
            self.expect(_KERNEL.fullmatch(s.kernel) is not None, "the kernel's name is not an identifier", where)
            for work in (s.flops, s.traffic, *s.shifts):
                inside.work(work, where)
        self.expect(not inside.open, f"{len(inside.open)} regions have no end", what)


class _Inside:
    """The regions that a step stands in, while steps are checked in order."""

    def __init__(self, checker: _Checker, symbols: set[str]) -> None:
        self.checker = checker
        self.names = symbols
        self.open: list[RegionSpec] = []
        self.extents = 0
        self.scopes: list[tuple[set[str], int]] = []

    def work(self, work: Work | None, where: str) -> None:
        """Check that a polynomial uses symbols and numbers of iterations around it."""
        known = self.names | {r.number for r in self.open if r.kind == "loop"}
        used = {name for _, powers in work or () for name in powers}
        self.checker.expect(used <= known, f"work uses unknown symbols {sorted(used - known)}", where)

    def region(self, r: RegionSpec, where: str) -> None:
        expect = self.checker.expect
        expect(r.kind in get_args(RegionKind), f"{r.kind[:40]!r} is no kind of region", where)
        expect(len(r.shifts) in (0, 3), "there is not one shift for each place", where)
        for work in (*r.shifts, r.trip if r.kind == "extent" else None):
            self.work(work, where)
        if r.kind == "extent":
            fits = r.trip is not None and r.count is not None and r.condition is None and r.counter is None
            expect(fits and bool(r.number) and r.number not in self.names, "is no extent", where)
            self.names = self.names | {r.number}
            self.extents += 1
            return
        begins = r.kind in ("loop", "if")
        last = self.open[-1] if self.open else None
        if r.kind != "loop":
            ends_loop = r.kind == "end" and last is not None and last.kind == "loop"
            free = r.trip is None and r.count is None and not r.number
            expect(free and (r.counter is None or ends_loop), "says what only a loop has", where)
            fits = r.condition is None if not ends_loop and r.kind != "if" else True
            expect(fits and not (r.kind == "if" and r.condition is None), "its condition makes no sense", where)
        if r.kind == "loop":
            self.work(r.trip, where)
            fresh = r.number not in self.names and all(r.number != o.number for o in self.open)
            expect(bool(r.number) and fresh and len(r.number) < 512, "its number has no name of its own", where)
        if begins:
            expect(len(self.open) < MAX_NESTING, f"regions nest deeper than {MAX_NESTING}", where)
            self.open.append(r)
            self.scopes.append((self.names, self.extents))
        elif last is None or (r.kind == "else" and last.kind != "if"):
            expect(False, "no region that it could belong to has begun", where)
        elif r.kind == "else":
            self.open[-1] = r
            self.names, _ = self.scopes[-1]
        else:
            self.open.pop()
            self.names, _ = self.scopes.pop()


def evaluate(work: Work, symbols: dict[str, int]) -> int:
    """The value of a polynomial for given symbols."""
    return sum(coefficient * prod(symbols[name] for name in powers) for coefficient, powers in work)
