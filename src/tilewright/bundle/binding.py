"""The interface of a bundle: names, sizes, and the layout of the caller's memory.

    weights       [w0 | w1 | ...]                      the file, or in the object; each at a multiple of 64
    constants     [address of the weights | packed weights]                       written by `prepare`
    workspace     [temporaries of prepare | its table of slots]                   used by `prepare` only
    activations   [temporaries | table of slots | dims | sizes | control | extents]      used by a call
    state         [number of rows | caches]                                       kept by the caller between calls

All sizes are known when the bundle is made: a dimension is a number or has a bound, for which memory is planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.bundle.names import Names
from tilewright.bundle.sizes import Sizes
from tilewright.ir.dtype import BY_NAME, DType
from tilewright.runtime.arena import plan, temp_intervals
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.specs import Dim, InputSpec, ParamSpec, RegionSpec, SymbolSpec
from tilewright.support.classes import dataclass
from tilewright.support.errors import Problems, UnsupportedError

ALIGNMENT = 64
"""The alignment in bytes of the caller's memory blocks, other than inputs and outputs."""
MAX_BYTES = 1 << 40
"""The largest size in bytes of a block of the caller's memory."""
MAX_EXTENT = (1 << 31) - 1
"""The upper bound that is assumed for a symbol that states none."""
HEADER = 64
"""The size in bytes of the header before the packed weights, and before the caches of a state."""


@dataclass(frozen=True, slots=True)
class Array:
    """An input, an output or a cache, as callers see it.

    Args:
        name: as the model calls it.
        identifier: its name in C, C++, Rust and JavaScript.
        shape: numbers and names of dimensions, as texts for people where they are computed.
        elements: the largest number of elements.
        slot: its number in the table of `tw_run`.
    """

    name: str
    identifier: str
    dtype: DType
    shape: tuple[Dim, ...]
    elements: int
    slot: int

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize

    @property
    def is_open(self) -> bool:
        """Whether the array's size depends on a symbolic dimension."""
        return any(isinstance(d, str) for d in self.shape)


@dataclass(frozen=True, slots=True)
class Weight:
    """A raw weight, with its offset in the file of weights."""

    spec: ParamSpec
    identifier: str
    offset: int


@dataclass(frozen=True, slots=True)
class Size:
    """A symbolic dimension whose value each call passes."""

    spec: SymbolSpec
    identifier: str
    number: int


@dataclass(frozen=True, slots=True)
class State:
    """The caches of a state: `capacity` rows each, at `offsets` in memory of `nbytes`; `room` and `length` are the
    indices of the symbols for the number of rows that fit and the number present."""

    caches: tuple[Array, ...]
    offsets: tuple[int, ...]
    nbytes: int
    capacity: int
    room: int
    length: int


@dataclass(frozen=True, slots=True)
class Activations:
    """The layout of the memory of a call: its size `nbytes`, the `offsets` of its temporaries, and the offsets of the
    tables that follow them."""

    offsets: tuple[int, ...]
    slots: int
    dims: int
    sizes: int
    control: int
    extents: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Binding:
    """A program as its callers see it. `limits` are upper bounds of the results of `tw_shapes`, word by word; `rooms`
    maps the index of each symbol that counts the rows for which there is memory to the planned number."""

    name: str
    manifest: Manifest
    sizes: tuple[Size, ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    weights: tuple[Weight, ...]
    weight_bytes: int
    packed: tuple[int, ...]
    constant_bytes: int
    workspace: tuple[int, ...]
    workspace_slots: int
    workspace_bytes: int
    activations: Activations
    limits: tuple[int, ...]
    rooms: Mapping[int, int]
    state: State | None
    threads: int

    @property
    def keeps_weights(self) -> bool:
        """Whether calls read some raw weights in place, so that the caller must keep their memory."""
        return any(p.alias is not None for p in self.manifest.packed)

    @property
    def has_loops(self) -> bool:
        """Whether loops may be ended because they have too many iterations."""
        return any(_endless(s.region) for s in self.manifest.run_steps if s.region is not None)

    @property
    def extents(self) -> tuple[str, ...]:
        """The names of numbers that a call returns: the rows of outputs whose sizes data decides."""
        return self.manifest.extents


def _endless(region: RegionSpec) -> bool:
    return region.kind == "loop" and not region.ends


def binding_of(
    manifest: Manifest,
    sizes: Sizes,
    name: str,
    threads: int,
    rows: int | None,
    pointer: int,
    compact: bool = False,
) -> Binding:
    """The interface of a program's bundle.

    Args:
        sizes: bounds of what `tw_shapes` gives.
        rows: the number of rows to plan memory for where nothing bounds them (those of a state, those of rooms).
        pointer: bytes of an address.
        compact: whether memory needs no padding at its end, since no kernel writes whole vectors.

    Raises UnsupportedError that lists all that keeps the program from being called without Tilewright.
    """
    bounds = _bounds(manifest, rows)
    flat = sizes.bounds(bounds)
    names = Names(name)
    m = manifest
    rooms = {_symbol(m, r.input): bounds[_symbol(m, r.input)] for r in m.rooms}
    state = _state(m, bounds, names)
    hidden = {*rooms, *([] if state is None else [state.room, state.length])}
    named = tuple(Size(s, names.take(s.name), k) for k, s in enumerate(m.symbols) if k not in hidden)
    most = {s.name: bound for s, bound in zip(m.symbols, bounds, strict=True)}
    caches = set() if m.state is None else set(m.state.memory)
    left_out = caches | {r.input for r in m.rooms} | ({m.state.length} if m.state is not None else set())
    inputs = tuple(
        _array(i, names, _elements(i.shape, most), k) for k, i in enumerate(m.inputs) if i.name not in left_out
    )
    temps, dims = flat[: len(m.run_temps)], flat[len(m.run_temps) :]
    outputs, at = [], 0
    for k, o in enumerate(m.results):
        count = prod(dims[at : at + len(o.shape)])
        outputs.append(Array(o.name, names.take(o.name), BY_NAME[o.dtype], o.shape, count, len(m.inputs) + k))
        at += len(o.shape)
    weights, weight_bytes = _weights(m, names)
    packed, constant_bytes = _packed(m)
    if compact and constant_bytes == HEADER:
        constant_bytes = _up(pointer, 8)
    prepare = plan(temp_intervals(m.prepare_temps, [t.nbytes or 0 for t in m.prepare_temps], threads))
    table = (len(m.params) + len(m.packed) + len(m.prepare_temps) + 1) * pointer + 16
    placed = plan(temp_intervals(m.run_temps, temps, threads))
    limits = (*temps, *dims)
    used = max((at + n for at, n in zip(placed.offsets, temps, strict=True)), default=0)
    places = _activations(m, placed.offsets, used if compact else placed.arena, pointer, 16 if compact else ALIGNMENT)
    result = Binding(
        name, m, named, inputs, tuple(outputs), weights, weight_bytes, packed, constant_bytes,
        prepare.offsets, prepare.arena, _up(prepare.arena + table), places, limits, rooms, state, threads,
    )  # fmt: skip
    _check_sizes(result)
    return result


def _bounds(m: Manifest, rows: int | None) -> list[int]:
    """The greatest value of each symbol of a program; `rows` bounds the symbols that count the rows of a state or of
    rooms. Raises UnsupportedError, which lists all that keeps it from being bundled."""
    problems = Problems()
    if m.ragged is not None:
        problems.add(UnsupportedError("programs on ragged batches cannot be bundled yet", where=m.name))
    if m.compilers:
        what = f"parts by another compiler ({', '.join(m.compilers)}) need Python"
        problems.add(UnsupportedError(what, where=m.name, hint="compile it without compilers="))
    free = {_symbol(m, r.input) for r in m.rooms}
    if m.state is not None:
        free |= {_symbol(m, m.state.caches[0].input), _symbol(m, m.state.length)}
    result = []
    for k, s in enumerate(m.symbols):
        bound = rows if rows is not None and k in free and s.hi >= min(rows, MAX_EXTENT) else s.hi
        if bound >= MAX_EXTENT:
            if k in free:
                what, hint = "nothing says for how many rows there shall be memory", "say so: rows=512, or --rows 512"
            else:
                what = f"dimension {s.name!r} has no bound, and a bundle's memory is planned ahead"
                hint = f"compile it with dims={{{s.name!r}: 1}}, or tw.dim(1, 64) (--dim {s.name}=1..64)"
            problems.add(UnsupportedError(what, where=m.name, hint=hint))
        result.append(bound // s.multiple * s.multiple)
    problems.raise_if_any("the program cannot be bundled", where=m.name, kind=UnsupportedError)
    return result


def _symbol(m: Manifest, name: str) -> int:
    """The index of the symbol that is the first dimension of the input `name`."""
    first = next(i.shape[0] for i in m.inputs if i.name == name)
    return next(k for k, s in enumerate(m.symbols) if s.name == first)


def _elements(shape: Sequence[Dim], most: Mapping[str, int]) -> int:
    return prod(d if isinstance(d, int) else most[d] for d in shape)


def _array(spec: InputSpec, names: Names, elements: int, slot: int) -> Array:
    return Array(spec.name, names.take(spec.name), BY_NAME[spec.dtype], spec.shape, elements, slot)


def _state(m: Manifest, bounds: Sequence[int], names: Names) -> State | None:
    if m.state is None:
        return None
    most = {s.name: bound for s, bound in zip(m.symbols, bounds, strict=True)}
    slots = {i.name: k for k, i in enumerate(m.inputs)}
    room, length = _symbol(m, m.state.caches[0].input), _symbol(m, m.state.length)
    caches, offsets, at = [], [], HEADER
    for name in m.state.memory:
        spec = m.inputs[slots[name]]
        array = _array(spec, names, _elements(spec.shape, most), slots[name])
        caches.append(array)
        offsets.append(at)
        at += _up(array.nbytes)
    return State(tuple(caches), tuple(offsets), at, bounds[room], room, length)


def _weights(m: Manifest, names: Names) -> tuple[tuple[Weight, ...], int]:
    result, at = [], 0
    for spec in m.params:
        result.append(Weight(spec, names.constant(spec.name), at))
        at += _up(spec.nbytes)
    return tuple(result), at


def _packed(m: Manifest) -> tuple[tuple[int, ...], int]:
    """The offsets of packed weights in the constants, and their total size; weights that are read in place are not
    among them."""
    offsets, at, raw, begin = [], HEADER, {p.name: k for k, p in enumerate(m.params)}, 0
    starts = []
    for spec in m.params:
        starts.append(begin)
        begin += _up(spec.nbytes)
    for p in m.packed:
        if p.alias is not None:
            offsets.append(starts[raw[p.alias]])
            continue
        offsets.append(at)
        at += _up(p.nbytes)
    return tuple(offsets), at


def _activations(m: Manifest, offsets: Sequence[int], arena: int, pointer: int, to: int) -> Activations:
    """The offsets of the parts after temporaries of `arena` bytes (`offsets` are the temporaries') for addresses of
    `pointer` bytes; the table of slots and the end are multiples of `to`."""
    slots = _up(arena, to)
    dims = _up(slots + (m.run_slots + 1) * pointer, 16)
    sizes = _up(dims + 8 * (len(m.symbols) + 1), 16)
    control = _up(sizes + 8 * (len(m.run_temps) + m.output_rank_total + len(m.assumptions) + 1), 16)
    extents = _up(control + 8 * 16, 16)
    return Activations(tuple(offsets), slots, dims, sizes, control, extents, _up(extents + 8 * len(m.extents), to))


def _check_sizes(f: Binding) -> None:
    parts = {
        "weights": f.weight_bytes,
        "constants": f.constant_bytes,
        "workspace": f.workspace_bytes,
        "activations": f.activations.nbytes,
        "state": 0 if f.state is None else f.state.nbytes,
    }
    large = {name: n for name, n in parts.items() if n > MAX_BYTES}
    if large:
        raise UnsupportedError("a bundle would need too much memory", where=f.name, got=str(large))


def _up(nbytes: int, to: int = ALIGNMENT) -> int:
    return -(-nbytes // to) * to


__all__ = ["ALIGNMENT", "Activations", "Array", "Binding", "Size", "State", "Weight", "binding_of"]
