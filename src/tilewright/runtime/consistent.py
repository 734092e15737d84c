"""The conditions between the parts of a manifest under which no call reads or writes out of bounds."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, get_args

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.recorded import STATES
from tilewright.runtime.specs import (
    ABI_VERSION,
    MAX_BYTES,
    MAX_DIM,
    MAX_ENTRIES,
    MAX_NESTING,
    MAX_RANK,
    MAX_TEXT,
    Dim,
    InputSpec,
    OutputSpec,
    RegionKind,
    RegionSpec,
    StepSpec,
    TempSpec,
    Work,
)
from tilewright.support.errors import ArtifactError, Error

if TYPE_CHECKING:
    from tilewright.runtime.manifest import Manifest

_KEY = re.compile(r"[0-9a-f]{0,128}")
_KERNEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]{0,511}")
_OPTION = re.compile(r"[a-z0-9]{1,16}")


def inconsistencies(manifest: Manifest) -> list[Error]:
    """All inconsistencies in a manifest."""
    return _Checker(manifest).run()


class _Checker:
    """Checks one manifest, and collects the errors."""

    def __init__(self, manifest: Manifest) -> None:
        self.m = manifest
        self.errors: list[Error] = []

    def expect(self, holds: bool, what: str, where: str) -> None:
        if not holds:
            self.errors.append(ArtifactError(what, where=where))

    def run(self) -> list[Error]:
        m = self.m
        self.expect(m.abi_version == ABI_VERSION, f"ABI version {m.abi_version} is not {ABI_VERSION}", "abi_version")
        self.expect(_KEY.fullmatch(m.structure_key) is not None, "is not a hexadecimal digest", "structure_key")
        for name, value in (("precision", m.precision), ("fast", m.fast)):
            self.expect(_OPTION.fullmatch(value) is not None, f"{value[:40]!r} is no setting", name)
        lists = (m.symbols, m.inputs, m.outputs, m.params, m.packed, m.run_temps, m.run_steps, m.prepare_temps)
        more = (m.prepare_steps, m.ignored, m.tied, m.folded, m.patterns, m.records, m.assumptions)
        if any(len(part) > MAX_ENTRIES for part in (*lists, *more)):
            self.expect(False, f"a list has more than {MAX_ENTRIES} entries", "manifest")
            return self.errors
        self.unique("symbol", [s.name for s in m.symbols])
        self.unique("input", [i.name for i in m.inputs])
        self.unique("output", [o.name for o in m.outputs])
        self.unique("parameter", [*(p.name for p in m.params), *m.ignored])
        self.unique("updated parameter", [*(p.name for p in m.params if not p.fixed), *(name for name, _ in m.folded)])
        names, ignored = {p.name for p in m.params}, set(m.ignored)
        for name, leader in m.tied:
            self.expect(name in ignored and leader in names, "is tied to no parameter", f"weight {name[:80]!r}")
        self.symbols()
        self.patterns()
        self.assumptions()
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
        return self.errors

    def patterns(self) -> None:
        """Check sparse patterns: weights are matrices, and have as many panels as their columns fill."""
        params = {p.name: p for p in self.m.params}
        for pattern in self.m.patterns:
            weight, rows = params.get(pattern.weight), params.get(pattern.rows)
            fits = weight is not None and rows is not None and len(weight.shape) == len(rows.shape) == 2
            if fits and weight is not None and rows is not None:
                columns = weight.shape[0 if pattern.transposed else 1]
                panels = -(-columns // pattern.width) if pattern.width > 0 else -1
                fits = rows.dtype in ("u16", "i32") and rows.shape[0] == panels
            self.expect(fits, "has a pattern that does not fit", f"weight {pattern.weight[:80]!r}")

    def state(self) -> None:
        """Check caches: each has one symbol for its capacity, which no other input has; all other inputs belong to
        single calls."""
        state = self.m.state
        if state is None:
            return
        inputs = {i.name: i for i in self.m.inputs}
        room, fixed = set[Dim](), set[Dim]()
        for cache in state.caches:
            spec = inputs.pop(cache.input, None)
            fits = spec is not None and spec.written and len(spec.shape) > 0 and 0 <= cache.axis < len(spec.shape)
            self.expect(fits, "is no input that is written to", f"cache {cache.input[:80]!r}")
            if spec is not None and cache.scales:
                scales = inputs.pop(cache.scales, None)
                fits = scales is not None and scales.written and (spec.dtype, scales.dtype) == ("i8", "f32")
                fits = fits and scales is not None and scales.shape == (*spec.shape[:-1], 1) and len(spec.shape) > 1
                self.expect(fits, "has scales that do not fit", f"cache {cache.input[:80]!r}")
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
        terms = self.terms(free)
        known = all(number and terms.issuperset(factors) and count not in factors for number, factors in state.rows)
        self.expect(bool(state.rows) and known, "adds an unknown number of rows", "state")

    def ragged(self) -> None:
        """Check packed sequences: a symbol that counts rows, and a vector of the sequences' first rows."""
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
            self.expect(fits, "has rows after other dimensions", f"tensor {spec.name[:80]!r}")
        self.expect(any(ragged.rows in i.shape for i in self.m.inputs), "is no dimension of an input", "ragged rows")

    def rooms(self) -> None:
        """Check rooms: inputs without elements, each with a symbol for rows that no other input has."""
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

    def assumptions(self) -> None:
        names = {s.name for s in self.m.symbols}
        for a in self.m.assumptions:
            where = f"assumption {a.condition[:80]!r}"
            self.expect(max(len(a.condition), len(a.reason)) <= MAX_TEXT, "its text is too long", where)
            self.expect(bool(a.symbols) and names.issuperset(a.symbols), "is about no symbols of the program", where)

    def terms(self, names: set[str] | set[Dim]) -> set[str]:
        """The names that may occur in polynomials: these symbols, and quotients of them."""
        return set[str]().union(*(s.terms for s in self.m.symbols if s.name in names))

    def tensors(self) -> None:
        names = {s.name for s in self.m.symbols}
        for i in self.m.inputs:
            self.tensor(f"input {i.name!r}", i.dtype, i.shape)
            unknown = [d for d in i.shape if isinstance(d, str) and d not in names]
            self.expect(not unknown, f"dimensions {unknown} are no symbols", f"input {i.name!r}")
        for o in self.m.outputs:
            self.tensor(f"output {o.name!r}", o.dtype, o.shape)
            known = self.terms(names) | set(self.m.extents)
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
        inside = _Inside(self, self.terms({s.name for s in self.m.symbols}))
        for k, s in enumerate(steps):
            where = f"{what} {k} ({s.kernel[:80]})"
            used = (*s.slots, *(s.region.slots if s.region is not None else ()))
            self.expect(all(0 <= i < slots for i in used), f"a slot is outside 0..{slots - 1}", where)
            known = symbols + inside.extents
            self.expect(all(0 <= i < known for i in s.symbols), f"a symbol is outside 0..{known - 1}", where)
            self.expect(all(0 <= size <= MAX_DIM for size in s.sizes), f"a size is outside 0..{MAX_DIM}", where)
            self.expect(len(s.shifts) in (0, len(s.slots)), "there is not one shift for each slot", where)
            if s.region is not None:
                self.expect(regions, "there are no regions here", where)
                ordinary = StepSpec("", (), label=s.label, region=s.region)
                self.expect(s == ordinary, "is both a call and a region's begin or end", where)
                inside.region(s.region, where)
                continue
            fits = s.branch is None or (regions and all(0 <= number < MAX_ENTRIES for number in s.branch))
            self.expect(fits, "its branch is not possible", where)
            self.expect(_KERNEL.fullmatch(s.kernel) is not None, "the kernel's name is not an identifier", where)
            for work in (s.flops, s.traffic, *s.shifts):
                inside.work(work, where)
        self.expect(not inside.open, f"{len(inside.open)} regions have no end", what)


class _Inside:
    """The regions that are open at a step, while the steps of a program are checked in order."""

    def __init__(self, checker: _Checker, symbols: set[str]) -> None:
        self.checker = checker
        self.names = symbols
        self.open: list[RegionSpec] = []
        self.extents = 0
        self.scopes: list[tuple[set[str], int]] = []

    def work(self, work: Work | None, where: str) -> None:
        """Check that a polynomial uses only known symbols, and iteration numbers of loops around it."""
        known = self.names | {r.number for r in self.open if r.kind == "loop"}
        used = {name for _, powers in work or () for name in powers}
        self.checker.expect(used <= known, f"work uses unknown symbols {sorted(used - known)}", where)

    def region(self, r: RegionSpec, where: str) -> None:
        expect = self.checker.expect
        expect(r.kind in get_args(RegionKind), f"{r.kind[:40]!r} is no kind of region", where)
        expect(len(r.shifts) in (0, 3), "there is not one shift for each place", where)
        for work in (*r.shifts, r.trip if r.kind == "extent" else None):
            self.work(work, where)
        expect((r.check is not None) == (r.kind == "check"), "says what only a check does", where)
        if r.kind == "check":
            free = r.trip is None and r.counter is None and not r.number
            expect(free and r.count is not None and r.condition is not None, "is no check", where)
            return
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
