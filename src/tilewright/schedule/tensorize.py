"""tensorize: replace a loop nest that computes what an intrinsic's description says by the intrinsic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations

from tilewright.arith import linear, prove_equal, simplify
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, as_int, const, is_const, product
from tilewright.ir.loops import Block, For, Intrinsic, PrimFunc, Region, Stmt, Store
from tilewright.ir.rewrite import map_expr, substitute, variables
from tilewright.schedule.intrinsics import TensorIntrin, matched_dimensions
from tilewright.schedule.state import block_path, depends_on, last_loop, loop_path, loops_on, refuse, replace_at
from tilewright.support.classes import dataclass

COMMUTATIVE = ("add", "mul", "min", "max")


def tensorize(func: PrimFunc, loop: str, intrin: TensorIntrin) -> PrimFunc:
    """Replace the loops from `loop` inwards by an intrinsic.

    Before::

        for i_0 in 0..16:
            for k_0 in 0..8:
                for i_1 in 0..16:
                    for k_1 in 0..4:
                        block C(vi = i_0 * 16 + i_1, reduce vk = k_0 * 4 + k_1):
                            C[vi] = C[vi] + cast(A[vk], i32) * cast(B[vi, vk], i32)

    After `tensorize("i_1", vnni_16x4_u8i8i32)`; the block's iterators now count tiles::

        for i_0 in 0..16:
            for k_0 in 0..8:
                block C(vi = i_0, reduce vk = k_0):
                    call vnni_16x4_u8i8i32(C[vi * 16 : 16], A[vk * 4 : 4], B[vi * 16 : 16, vk * 4 : 4])

    Names, the order of the loops, the order of factors and further dimensions of the buffers may differ from the
    description. Refuses nests that compute something else, tiles that are not whole, and reductions with their init.
    """
    path = loop_path(func, loop)
    loops, block = _nest(func, last_loop(path))
    what = f"cannot tensorize {loop!r} with {intrin.name!r}"
    if block.init is not None and intrin.block.init is None:
        raise refuse(func, f"{what}: block {block.name!r} has its init", hint="decompose_reduction comes first")
    if block.init is None and intrin.block.init is not None:
        raise refuse(func, f"{what}: block {block.name!r} adds to what is there, the intrinsic starts anew")
    inner = {x.var: x for x in loops}
    if set(variables(block.predicate)) & inner.keys():
        raise refuse(
            func, f"{what}: block {block.name!r} does not run everywhere in these loops", hint="pad to whole tiles"
        )
    if not isinstance(block.body, Store):
        raise refuse(func, f"{what}: block {block.name!r} does more than store one element")
    tiles = _tiles(func, block, inner, what)
    if block.init is not None:
        _check_whole(func, block, tiles, what)
    matching = next(_match(intrin, block, tiles), None)
    if matching is None:
        raise refuse(
            func,
            f"{what}: block {block.name!r} does not compute what the intrinsic does",
            expected=f"\n{intrin.description.body}\n",
            got=f"{block.body}",
        )
    regions = {p: _region(matching.buffers[p], matching.indices[p], tiles) for p in intrin.description.params}
    if intrin.dense:
        for parameter, region in regions.items():
            if not is_dense(region):
                raise refuse(func, f"{what}: the part of {region.buffer.name!r} for {parameter.name} is not contiguous")
    whole = block.init is not None
    iters = tuple(
        replace(
            it,
            extent=_tiles_of(it.extent, tiles[it.var].size),
            binding=tiles[it.var].outer,
            kind="spatial" if whole else it.kind,
        )
        for it in block.iters
    )
    call = Intrinsic(intrin.name, tuple(regions[p] for p in intrin.outputs), tuple(regions[p] for p in intrin.inputs))
    return replace_at(func, path, replace(block, iters=iters, body=call, init=None))


def tensorize_block(func: PrimFunc, block: str, intrin: TensorIntrin) -> PrimFunc:
    """Replace by an intrinsic as many of the innermost loops of a block as its description has."""
    loops = loops_on(block_path(func, block))
    if len(loops) < len(intrin.loops):
        raise refuse(func, f"cannot tensorize block {block!r} with {intrin.name!r}: it has {len(loops)} loops")
    return tensorize(func, loops[-len(intrin.loops)].var.name, intrin)


@dataclass(frozen=True, slots=True)
class SplitIter:
    """An iterator of the target block written as `outer * size + point`; `point` is None if size is 1."""

    outer: Expr
    size: Expr
    point: Var | None
    kind: str


@dataclass(frozen=True, slots=True)
class Matching:
    """How a target block matches an intrinsic's description: the variables, buffers and indices of the target that
    correspond to those of the description."""

    points: Mapping[Var, Var]
    buffers: Mapping[Buffer, Buffer]
    indices: Mapping[Buffer, tuple[Expr, ...]]


def _tiles_of(extent: Expr, size: Expr) -> Expr:
    """The number of tiles of this size in an iterator's extent."""
    return const(1) if prove_equal(extent, size) else simplify(extent // size)


def _check_whole(func: PrimFunc, block: Block, tiles: Mapping[Var, SplitIter], what: str) -> None:
    """Raise ScheduleError, whose text begins with `what`, if one of `tiles` has only a part of a reduction: an
    intrinsic with an init must complete it."""
    for it in block.iters:
        if it.kind == "reduce" and not is_const(_tiles_of(it.extent, tiles[it.var].size), 1):
            raise refuse(
                func, f"{what}: it computes a whole reduction, and {it.var.name} = {it.binding} is a part of one"
            )


def is_dense(region: Region) -> bool:
    """Whether the elements of a region are contiguous in memory."""
    started = False
    for (_, extent), size in zip(region.ranges, region.buffer.shape, strict=True):
        if started and not prove_equal(extent, size):
            return False
        started = started or not is_const(extent, 1)
    return True


Operand = tuple[Region, tuple[Expr, ...]]
"""An operand of an intrinsic's function: a region, and the strides, in elements, of all its described dimensions but
the last."""


def operands(intrin: TensorIntrin, call: Intrinsic) -> list[Operand] | None:
    """The operand of an intrinsic's function for each parameter of its description. None if a region does not fit: its
    last described dimension, or with `dense` the whole region, must be contiguous."""
    regions = dict(zip((*intrin.outputs, *intrin.inputs), (*call.outputs, *call.inputs), strict=True))
    results: list[Operand] = []
    values: dict[Var, Expr] = {}
    for parameter in intrin.description.params:
        region = regions[parameter]
        shape = region.buffer.shape
        places = matched_dimensions(region, parameter.shape, values)
        if places is None or (places and any(as_int(x) != 1 for x in shape[places[-1] + 1 :])):
            return None
        if intrin.dense and not is_dense(region):
            return None
        results.append((region, tuple(simplify(product(shape[d + 1 :])) for d in places[:-1])))
    return results


def _nest(func: PrimFunc, loop: For) -> tuple[list[For], Block]:
    """The chain of loops from `loop` inwards, and the block inside. Raises ScheduleError if there is more in it."""
    loops: list[For] = []
    stmt: Stmt = loop
    while isinstance(stmt, For):
        if stmt.kind not in ("serial", "unrolled"):
            raise refuse(func, f"cannot tensorize loop {stmt.var.name!r}: it is {stmt.kind}")
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, Block):
        raise refuse(func, f"cannot tensorize loop {loop.var.name!r}: more than one block stands inside")
    return loops, stmt


def _tiles(func: PrimFunc, block: Block, inner: Mapping[Var, For], what: str) -> dict[Var, SplitIter]:
    """Each iterator of the block as `outer * size + point`, where the loops `inner` run through the points of a tile.
    Raises ScheduleError, whose text begins with `what`, for others."""
    result: dict[Var, SplitIter] = {}
    used: set[Var] = set()
    for it in block.iters:
        mine = [v for v in inner if depends_on(it.binding, v) and not is_const(inner[v].extent, 1)]
        outer = simplify(substitute(it.binding, {v: const(0) for v in inner}))
        if not mine:
            result[it.var] = SplitIter(outer, const(1), None, it.kind)
            continue
        size = inner[mine[0]].extent
        start = outer if is_const(outer, 0) else simplify(outer // size)
        whole = prove_equal(it.extent, size) or prove_equal(it.extent % size, const(0))
        whole = whole and prove_equal(start * size, outer)
        if len(mine) > 1 or mine[0] in used or not whole or not prove_equal(outer + mine[0], it.binding):
            raise refuse(
                func, f"{what}: iterator {it.var.name} = {it.binding} is not whole tiles of one loop", hint="split it"
            )
        used.add(mine[0])
        result[it.var] = SplitIter(start, size, Var(f"{it.var.name}.point"), it.kind)
    idle = [v.name for v in inner if v not in used and not is_const(inner[v].extent, 1)]
    if idle:
        raise refuse(func, f"{what}: loop {idle[0]!r} drives no iterator of block {block.name!r}")
    return result


def _by_tiles(block: Block, store: Store, tiles: Mapping[Var, SplitIter]) -> Store:
    """The store `store` of a block, expressed by iterators that count tiles and by points inside: `vj // 16` is the
    tile `vj`."""
    split: dict[Var, Expr] = {v: v * t.size + t.point for v, t in tiles.items() if t.point is not None}
    extents: dict[Var, Expr] = {it.var: _tiles_of(it.extent, tiles[it.var].size) for it in block.iters}
    extents |= {t.point: t.size for t in tiles.values() if t.point is not None}

    def index(e: Expr) -> Expr:
        return simplify(substitute(e, split), extents)

    def on_expr(e: Expr) -> Expr | None:
        return Load(e.buffer, tuple(map(index, e.indices))) if isinstance(e, Load) else None

    return Store(store.buffer, tuple(map(index, store.indices)), map_expr(store.value, on_expr))


def _region(buffer: Buffer, indices: tuple[Expr, ...], tiles: Mapping[Var, SplitIter]) -> Region:
    """The region of `buffer` that accesses at `indices` touch over the points of one tile: start and extent in each
    dimension."""
    sizes = {t.point: t.size for t in tiles.values() if t.point is not None}
    ranges = []
    for index in indices:
        moving = [(sizes[e], c) for e, c in linear(index).terms if isinstance(e, Var) and e in sizes]
        size = simplify(sum((c * (n - 1) for n, c in moving), const(1)))
        ranges.append((simplify(substitute(index, dict.fromkeys(sizes, const(0)))), size))
    return Region(buffer, tuple(ranges))


def _match(intrin: TensorIntrin, block: Block, tiles: Mapping[Var, SplitIter]) -> Iterator[Matching]:
    """Yield every way in which a block, expressed by `tiles`, matches an intrinsic's description."""
    described = intrin.block
    kinds = {it.var: (it.extent, it.kind) for it in described.iters}
    points = {t.point: (t.size, t.kind) for t in tiles.values() if t.point is not None}
    pairs = [(described.body, block.body), (described.init, block.init)]
    stores = [(p, _by_tiles(block, s, tiles)) for p, s in pairs if isinstance(p, Store) and isinstance(s, Store)]
    if len(points) != len(kinds) or len(stores) < sum(s is not None for _, s in pairs):
        return
    for order in permutations(points):
        mapping = dict(zip(kinds, order, strict=True))
        if not _same_extents([(kinds[d], points[p]) for d, p in mapping.items()]):
            continue
        matcher = _Matcher(mapping)
        goal = [
            pair
            for pattern, store in stores
            for pair in (
                (Load(pattern.buffer, pattern.indices), Load(store.buffer, store.indices)),
                (pattern.value, store.value),
            )
        ]
        for buffers, indices in matcher.all(goal, {}, {}):
            if len({b.name for b in buffers.values()}) == len(buffers) == len(intrin.description.params):
                yield Matching(mapping, buffers, indices)


def _same_extents(pairs: Iterable[tuple[tuple[Expr, str], tuple[Expr, str]]]) -> bool:
    """Whether in each pair of (extent, kind), of the description and of the target, the kinds are equal and the extents
    too, with one value for each symbol of the description."""
    values: dict[Expr, Expr] = {}
    return all(
        kind == mine and prove_equal(values.setdefault(extent, size) if isinstance(extent, Var) else extent, size)
        for (extent, kind), (size, mine) in pairs
    )


Match = tuple[dict[Buffer, Buffer], dict[Buffer, tuple[Expr, ...]]]


class _Matcher:
    """Unifies expressions of a description with those of a block, under a fixed correspondence of iterators."""

    def __init__(self, points: Mapping[Var, Var]) -> None:
        self.points = points
        self.inner = frozenset(points.values())

    def all(
        self, goals: list[tuple[Expr, Expr]], buffers: dict[Buffer, Buffer], indices: dict[Buffer, tuple[Expr, ...]]
    ) -> Iterator[Match]:
        """Yield every (buffers, indices) with which each pattern of `goals` matches its expression."""
        if not goals:
            yield buffers, indices
            return
        (pattern, e), *rest = goals
        match pattern:
            case Load():
                if isinstance(e, Load) and self.same_access(pattern, e, buffers, indices):
                    yield from self.all(
                        rest, {**buffers, pattern.buffer: e.buffer}, {**indices, pattern.buffer: e.indices}
                    )
            case Op(name, args):
                if isinstance(e, Op) and e.name == name and e.dtype is pattern.dtype:
                    orders = [e.args, e.args[::-1]] if name in COMMUTATIVE else [e.args]
                    for order in orders:
                        yield from self.all([*zip(args, order, strict=True), *rest], buffers, indices)
            case Const():
                if e is pattern:
                    yield from self.all(rest, buffers, indices)
            case Var():
                # A value that depends on the point itself would need the tile's offset: none does.
                return

    def same_access(
        self, pattern: Load, e: Load, buffers: Mapping[Buffer, Buffer], indices: Mapping[Buffer, tuple[Expr, ...]]
    ) -> bool:
        """Whether the load `e` reads, at each point of the tile, the element that the load `pattern` of the description
        reads."""
        if e.dtype is not pattern.dtype or buffers.get(pattern.buffer, e.buffer) != e.buffer:
            return False
        if indices.get(pattern.buffer, e.indices) != e.indices:
            return False
        moving = [k for k in map(self.inner_terms, e.indices) if k is None or k]
        wanted = [self.described_terms(i) for i in pattern.indices]
        return moving == wanted

    def inner_terms(self, index: Expr) -> dict[Var, int] | None:
        """The coefficient of each point variable of the tile in the target's `index`; None if it is not affine in
        them."""
        result: dict[Var, int] = {}
        for e, c in linear(index).terms:
            if isinstance(e, Var) and e in self.inner:
                result[e] = c
            elif self.inner & set(variables(e)):
                return None
        return result

    def described_terms(self, index: Expr) -> dict[Var, int] | None:
        result: dict[Var, int] = {}
        for e, c in linear(index).terms:
            if not isinstance(e, Var) or e not in self.points:
                return None
            result[self.points[e]] = c
        return result
