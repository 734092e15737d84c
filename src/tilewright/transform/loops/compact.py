"""Place every intermediate buffer, as small as its uses allow.

    buffer B: f32[1024]                            for io in 0..128 {
    for io in 0..128 {                               alloc B: f32[8] {
      for ii in 0..8 { B[io*8 + ii] = ... }   ->       for ii in 0..8 { B[ii] = ... }
      for ii in 0..8 { C[io*8 + ii] = B[io*8 + ii] }   for ii in 0..8 { C[io*8 + ii] = B[ii] }
    }                                                } }

A buffer is allocated at the innermost statement that contains all its uses and writes every element before reading it;
each dimension then needs only the range of the loops inside. A buffer of scope "padded" is enlarged where its planes
would share sets of the cache (`spread.py`), one with the note `StorageAlign` as that says. Memory that the threads of a
block share is one buffer with the elements that any of them uses. A buffer is never allocated inside a vectorized loop:
the loop becomes part of its shape, so that lanes stay separate. Sizes are literals if a literal bounds the range.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arith import Analyzer
from tilewright.arith.regions import Access, Collector
from tilewright.arith.symbolic import eliminate
from tilewright.ir.expr import Buffer, Const, Expr, Load, Var, as_int, const, minimum, product
from tilewright.ir.loops import Allocate, For, Intrinsic, PrimFunc, Region, Stmt, Store
from tilewright.ir.notes import find, without
from tilewright.ir.rewrite import map_expr, map_exprs_of, own_loads, variables, walk, with_children
from tilewright.ir.scopes import sharing
from tilewright.schedule.storage import StorageAlign
from tilewright.support.classes import dataclass
from tilewright.targets.memory import USUAL, Caches
from tilewright.transform.loops.coverage import is_self_contained
from tilewright.transform.loops.spread import spread

MAX_BOUND = 1024
"""The largest bound that is used as the size of a dimension inside loops. The buffer may then be in registers or on the
stack, while one of symbolic size is in a workspace."""


def compact_buffers(func: PrimFunc, caches: Caches = USUAL) -> PrimFunc:
    """The function with an `Allocate` for each of `func.buffers`; unused buffers are dropped."""
    note = find(func.notes, StorageAlign)
    if note is not None:
        func = replace(func, notes=without(func.notes, StorageAlign))
    if not func.buffers:
        return func
    extents = {s.var: s.extent for s in walk(func.body) if isinstance(s, For)}
    uses = _uses(func.body, frozenset(func.buffers))
    places = [_place(buffer, uses[buffer], extents, caches) for buffer in func.buffers if buffer in uses]
    places = [p if note is None else _aligned(p, note) for p in places]
    body = _Rewriter({p.old: p for p in places}).statement(func.body, ())
    return replace(func, body=body, buffers=())


Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """A buffer's allocation: `new` replaces `old` below the statement at `path`, and `starts` are subtracted from the
    indices of its accesses."""

    old: Buffer
    new: Buffer
    path: Path
    starts: tuple[Expr, ...]


def _uses(body: Stmt, buffers: frozenset[Buffer]) -> dict[Buffer, list[tuple[Path, Stmt]]]:
    """For each buffer the chain of statements from the root to the place where it is to be allocated."""
    chains: dict[Buffer, list[tuple[Path, Stmt]]] = {}

    def visit(s: Stmt, path: Path, above: list[tuple[Path, Stmt]]) -> None:
        chain = [*above, (path, s)]
        for buffer in _touched(s):
            if buffer in buffers:
                known = chains.get(buffer)
                chains[buffer] = chain if known is None else _common(known, chain)
        for k, child in enumerate(s.children):
            visit(child, (*path, k), chain)

    visit(body, (), [])
    return {buffer: _trim(chain, buffer) for buffer, chain in chains.items()}


def _common(a: list[tuple[Path, Stmt]], b: list[tuple[Path, Stmt]]) -> list[tuple[Path, Stmt]]:
    n = 0
    while n < len(a) and n < len(b) and a[n][0] == b[n][0]:
        n += 1
    return a[:n]


def _trim(chain: list[tuple[Path, Stmt]], buffer: Buffer) -> list[tuple[Path, Stmt]]:
    """Shorten the chain until its last statement writes the buffer first and stands in no vectorized loop."""
    for k, (_, s) in enumerate(chain):
        if isinstance(s, For) and s.kind == "vectorized":
            chain = chain[: k + 1]
            break
    while len(chain) > 1 and not _writes_first(chain[-1][1], buffer):
        chain = chain[:-1]
    return chain


def _touched(s: Stmt) -> list[Buffer]:
    """The buffers that statement `s` itself loads, stores or names."""
    results = [load.buffer for load in own_loads(s)]
    if isinstance(s, Store):
        results.append(s.buffer)
    elif isinstance(s, Intrinsic):
        results += [r.buffer for r in (*s.inputs, *s.outputs)]
    return results


def _writes_first(s: Stmt, buffer: Buffer) -> bool:
    """True if the first use of the buffer in `s` is a store that does not load it."""
    for inner in walk(s):
        if any(load.buffer == buffer for load in own_loads(inner)):
            return False
        if isinstance(inner, Store) and inner.buffer == buffer:
            return True
        if isinstance(inner, Intrinsic):
            if any(r.buffer == buffer for r in inner.inputs):
                return False
            if any(r.buffer == buffer for r in inner.outputs):
                return True
    return False


def _place(buffer: Buffer, chain: list[tuple[Path, Stmt]], extents: dict[Var, Expr], caches: Caches) -> _Place:
    while True:
        path, root = chain[-1]
        loops = [s for _, s in chain[:-1] if isinstance(s, For)]
        common = {s.var: s.extent for s in loops if s.thread in sharing(buffer.scope)}
        enclosing = [s.var for s in loops if s.var not in common]
        collector = Collector(root, {v: extents[v] for v in enclosing}, common)
        accesses = collector.accesses(buffer)
        if not enclosing or is_self_contained(collector, accesses, frozenset(enclosing)):
            break
        if buffer.scope == "local" and loops[-1].thread not in (None, "vthread"):
            break  # no other thread has what this one reads
        chain = _outside_one_loop(chain)
    dimensions = [
        _dimension(collector, accesses, d, whole, frozenset(enclosing), buffer.scope)
        for d, whole in enumerate(buffer.shape)
    ]
    starts, shape = tuple(d[0] for d in dimensions), tuple(d[1] for d in dimensions)
    scope = buffer.scope
    if scope == "local":
        shared = any(isinstance(s, For) and s.kind == "parallel" for s in walk(root))
        if shared or any(not isinstance(e, Const) for e in shape):
            # What threads share, or what has no known size, cannot be private to one: it lives in memory.
            scope = "global"
    if scope == "padded":
        sizes = tuple(as_int(e) for e in shape)
        known = tuple(n for n in sizes if n is not None)
        scope = "global"
        if known == sizes:
            shape = tuple(map(const, spread(known, buffer.dtype.itemsize, caches)))
    new = buffer if shape == buffer.shape and scope == buffer.scope else replace(buffer, shape=shape, scope=scope)
    return _Place(buffer, new, path, starts)


def _aligned(place: _Place, note: StorageAlign) -> _Place:
    """`place` with the rows of its new buffer enlarged as `note` demands for its old one; unchanged if the note does
    not name that, or no size satisfies it."""
    rules = zip(note.buffers, note.dimensions, note.factors, note.offsets, strict=True)
    rule = next((r for r in rules if r[0] == place.old.name), None)
    if rule is None:
        return place
    _, dimension, factor, offset = rule
    rest, extent = as_int(product(place.new.shape[dimension + 2 :])), place.new.shape[dimension + 1]
    size = as_int(extent)
    if rest is None or size is None:
        return place
    larger = const(next((n for n in range(size, size + factor) if n * rest % factor == offset), size))
    shape = (*place.new.shape[: dimension + 1], larger, *place.new.shape[dimension + 2 :])
    return replace(place, new=replace(place.new, shape=shape))


def _outside_one_loop(chain: list[tuple[Path, Stmt]]) -> list[tuple[Path, Stmt]]:
    """The chain of enclosing statements without its innermost loop and all inside, so that the buffer is allocated
    outside of that loop."""
    last = max(k for k, (_, s) in enumerate(chain[:-1]) if isinstance(s, For))
    return chain[: last + 1]


def _dimension(
    collector: Collector, accesses: list[Access], d: int, whole: Expr, enclosing: frozenset[Var], scope: str
) -> tuple[Expr, Expr]:
    """`(start, extent)` of the range of dimension `d` that the accesses to a buffer in `scope` use: `start` may depend
    on enclosing loops, `extent` on symbols only. (0, `whole`) if the range is not known."""
    analyzer = collector.analyzer
    ends = collector.union([a.box[d] for a in accesses])
    if ends is None:
        return const(0), whole
    start, stop = ends
    extent = analyzer.simplify(stop - start + 1)
    most = analyzer.bounds(extent).hi
    if most is not None and (not isinstance(extent, Const) or extent.value > most):
        extent = const(max(most, 1))
    elif any(v in enclosing for v in variables(extent)):
        symbolic = eliminate(extent, enclosing, analyzer)
        if symbolic is None:
            return const(0), whole
        extent = symbolic[1]
    if analyzer.prove(extent >= whole):
        least, limit = analyzer.bounds(whole)
        known = limit is not None and (limit == least or scope == "local" or (enclosing and limit <= MAX_BOUND))
        return const(0), const(limit) if known and limit is not None else whole
    if not isinstance(extent, Const) and not isinstance(whole, Const):
        extent = analyzer.simplify(minimum(extent, whole))
    return start, extent


class _Rewriter:
    """Inserts the allocation of each buffer in `places`, and subtracts the start of its place from the indices of its
    accesses."""

    __slots__ = ("_analyzer", "_memo", "places")

    def __init__(self, places: dict[Buffer, _Place]) -> None:
        self.places = places
        self._memo: dict[Expr, Expr] = {}
        self._analyzer = Analyzer()

    def statement(self, s: Stmt, path: Path) -> Stmt:
        children = tuple(self.statement(c, (*path, k)) for k, c in enumerate(s.children))
        result = map_exprs_of(with_children(s, children), self.expr)
        match result:
            case Store(buffer, indices, value) if buffer in self.places:
                result = Store(self.places[buffer].new, self.moved(buffer, indices), value)
            case Intrinsic():
                result = Intrinsic(
                    result.name, tuple(map(self.region, result.outputs)), tuple(map(self.region, result.inputs))
                )
        for place in reversed(self.places.values()):
            if place.path == path:
                result = Allocate(place.new, result)
        return result

    def expr(self, e: Expr) -> Expr:
        return map_expr(e, self._load, self._memo)

    def _load(self, e: Expr) -> Expr | None:
        if type(e) is Load and e.buffer in self.places:
            return Load(self.places[e.buffer].new, self.moved(e.buffer, e.indices))
        return None

    def moved(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        starts = self.places[buffer].starts
        return tuple(self._analyzer.simplify(i - s) for i, s in zip(indices, starts, strict=True))

    def region(self, r: Region) -> Region:
        place = self.places.get(r.buffer)
        if place is None:
            return r
        ranges = zip(r.ranges, place.starts, strict=True)
        return Region(place.new, tuple((self._analyzer.simplify(a - s), extent) for (a, extent), s in ranges))
