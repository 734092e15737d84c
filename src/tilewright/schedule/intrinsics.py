"""Tensor intrinsics: the computation of an instruction sequence as a small loop program, with its LLVM or C code.

The description is the meaning: `tensorize` matches loops against it, the interpreter runs it, and code generators for
targets without the instructions expand it. Descriptions have one block, and shapes of numbers and symbols, such as

    for i in 0..16 { for k in 0..4 {
        block dot(vi = i, reduce vk = k): C[vi] = C[vi] + cast(A[vk], i32) * cast(B[vi, vk], i32) } }

A description without an init adds to the output's content; one with an init computes the whole reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property

from tilewright.arith import prove_equal
from tilewright.ir.dtype import DType, f32, i32
from tilewright.ir.expr import Buffer, Expr, Load, Var, as_int, cast, const, is_const
from tilewright.ir.loops import Block, BlockIter, For, Intrinsic, PrimFunc, Region, Stmt, Store, seq
from tilewright.ir.rewrite import map_expr, substitute
from tilewright.schedule.state import blocks_in, stores_in, written_buffers
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError, ScheduleError
from tilewright.targets import registry
from tilewright.targets.isa import Dot


@dataclass(frozen=True)
class TensorIntrin:
    """An instruction sequence that statements may call.

    Args:
        name: the name in `Intrinsic` statements and traces.
        description: the meaning; dimensions of its parameters are numbers above 1 or symbols. One without dimensions
            is a scalar.
        llvm: definitions of LLVM text with a function `@tw.intrin.<name>`, which takes for each parameter of the
            description its address and the strides, in elements, of all dimensions but the last (i64), and then the
            symbols, in the order in which the parameters have them (i64). None: expand.
        features: what the target must have for `llvm`.
        c: definitions of C with a function `tw_intrin_<name>`, which takes the same. None: expand.
        dense: the regions must be as dense in memory as the description's parameters.
    """

    name: str
    description: PrimFunc
    llvm: str | None = None
    features: tuple[str, ...] = ()
    dense: bool = False
    c: str | None = None

    def __post_init__(self) -> None:
        problem = _problem(self.description)
        if problem:
            raise ScheduleError(f"the description of {self.name!r} {problem}", loops=str(self.description))

    @cached_property
    def block(self) -> Block:
        """The one block of the description."""
        (block,) = blocks_in(self.description.body)
        return block

    @cached_property
    def loops(self) -> tuple[For, ...]:
        """The description's loops, outermost first."""
        results: list[For] = []
        stmt = self.description.body
        while isinstance(stmt, For):
            results.append(stmt)
            stmt = stmt.body
        return tuple(results)

    @cached_property
    def outputs(self) -> tuple[Buffer, ...]:
        """The parameters of the description that are written, in order."""
        written = written_buffers(self.description.body)
        return tuple(b for b in self.description.params if b in written)

    @cached_property
    def inputs(self) -> tuple[Buffer, ...]:
        """The parameters of the description that are only read, in order."""
        return tuple(b for b in self.description.params if b not in self.outputs)

    @cached_property
    def symbols(self) -> tuple[Var, ...]:
        """The symbols in the shapes of the description's parameters, in order."""
        return tuple(dict.fromkeys(x for b in self.description.params for x in b.shape if isinstance(x, Var)))

    @property
    def symbol(self) -> str:
        """The name, without sigil, of the LLVM function that computes the intrinsic."""
        return f"tw.intrin.{self.name}"

    @property
    def c_symbol(self) -> str:
        """The name of the C function that computes the intrinsic."""
        return f"tw_intrin_{self.name}"


def _problem(description: PrimFunc) -> str | None:
    """The reason why a function cannot describe an intrinsic; None if it can."""
    stmt = description.body
    extents: dict[str, Expr] = {}
    while isinstance(stmt, For):
        extents[stmt.var.name] = stmt.extent
        stmt = stmt.body
    if not isinstance(stmt, Block):
        return "must be loops around one block"
    if not all(isinstance(x, Store | None) for x in (stmt.body, stmt.init)) or not is_const(stmt.predicate, True):
        return "must store one element at each point"
    driven = [it.binding.name for it in stmt.iters if isinstance(it.binding, Var)]
    if sorted(driven) != sorted(extents) or len(driven) != len(stmt.iters):
        return "must drive each iterator by one loop"
    shapes = [x for b in description.params for x in b.shape]
    symbols = {x for x in shapes if isinstance(x, Var)}
    if any(x not in symbols if isinstance(x, Var) else (as_int(x) or 0) < 2 for x in (*shapes, *extents.values())):
        return "must have extents that are numbers of at least 2 or symbols that a parameter has as a dimension"
    if description.buffers:
        return "must have no buffers of its own"
    return None


_REGISTRY: dict[str, TensorIntrin] = {}


def register(intrin: TensorIntrin) -> TensorIntrin:
    """Make an intrinsic known to traces and code generators. Raises ScheduleError if another one has its name."""
    known = _REGISTRY.setdefault(intrin.name, intrin)
    if known != intrin:
        raise ScheduleError(f"there is another intrinsic {intrin.name!r}")
    return intrin


def find_intrinsic(name: str) -> TensorIntrin:
    """The intrinsic of this name: one that is registered, or a dot instruction of a target. Raises ScheduleError if
    there is none."""
    entry = _REGISTRY.get(name)
    if entry is not None:
        return entry
    dots = registry.dots()
    if name in dots:
        return dot_intrinsic(dots[name])
    registered = _with_threads()
    if name not in registered:
        known = ", ".join(sorted({*registered, *dots}))
        raise ScheduleError(f"no intrinsic is called {name!r}", expected=f"one of {known}")
    return registered[name]


def is_known(name: str) -> bool:
    """Whether there is an intrinsic of this name."""
    return name in _REGISTRY or name in registry.dots() or name in _with_threads()


def _with_threads() -> dict[str, TensorIntrin]:
    """The registry including the intrinsics of GPU threads, which are loaded on demand."""
    from tilewright.schedule import mma_intrinsics  # noqa: F401  # which registers them

    return _REGISTRY


@cache
def dot_intrinsic(dot: Dot) -> TensorIntrin:
    """A dot instruction of a target as an intrinsic."""
    if dot.kind == "matrix":
        from tilewright.schedule.tile_intrinsics import product_of  # which registers intrinsics here

        return TensorIntrin(dot.name, product_of(dot), features=dot.features)
    types = dot.a, dot.b, f32 if dot.a.is_float else i32
    if dot.kind == "pair":
        extents, maps = {"i": dot.rows, "j": dot.lanes, "k": dot.group}, {"A": "ik", "B": "jk", "C": "ij"}
        return TensorIntrin(dot.name, describe(dot.name, extents, "k", types, maps), dot.llvm, dot.features, dense=True)
    meaning = describe(dot.name, {"i": dot.lanes, "k": dot.group}, "k", types, {"A": "k", "B": "ik", "C": "i"})
    return TensorIntrin(dot.name, meaning, dot.llvm, dot.features, dense=True)


def matched_dimensions(
    region: Region, shape: tuple[Expr, ...], values: dict[Var, Expr] | None = None
) -> tuple[int, ...] | None:
    """The dimensions of `region`, all whose extent is not 1, that correspond to the dimensions of an intrinsic's
    parameter of `shape`; None if they do not fit. The extents of symbols in `shape` are added to `values`; a symbol
    must have the same extent everywhere."""
    places = tuple(d for d, (_, extent) in enumerate(region.ranges) if not is_const(extent, 1))
    known = {} if values is None else values
    if len(places) != len(shape):
        return None
    for d, wanted in zip(places, shape, strict=True):
        extent = region.ranges[d][1]
        said = known.setdefault(wanted, extent) if isinstance(wanted, Var) else wanted
        if said is not extent and not (isinstance(wanted, Var) and prove_equal(said, extent)):
            return None
    return places


def values_of(intrin: TensorIntrin, call: Intrinsic) -> dict[Var, Expr] | None:
    """The value that each symbol of an intrinsic's parameters has in `call`; None if a region of the call does not
    fit."""
    result: dict[Var, Expr] = {}
    regions = zip((*intrin.outputs, *intrin.inputs), (*call.outputs, *call.inputs), strict=True)
    fits = [matched_dimensions(region, buffer.shape, result) is not None for buffer, region in regions]
    return result if all(fits) else None


def expand(call: Intrinsic) -> Stmt:
    """The loops that the `Intrinsic` statement `call` stands for. Raises CompileError if they are not known."""
    where = f"intrinsic {call.name!r}"
    if not is_known(call.name):
        raise CompileError("no intrinsic of this name is registered", where=where)
    intrin = find_intrinsic(call.name)
    if (len(call.outputs), len(call.inputs)) != (len(intrin.outputs), len(intrin.inputs)):
        raise CompileError("wrong number of regions", where=where)
    regions = dict(zip((*intrin.outputs, *intrin.inputs), (*call.outputs, *call.inputs), strict=True))
    values: dict[Var, Expr] = {}
    places: dict[Buffer, tuple[int, ...]] = {}
    for buffer, region in regions.items():
        result = matched_dimensions(region, buffer.shape, values)
        if result is None:
            raise CompileError(f"the region of {region.buffer.name!r} does not fit", where=where)
        places[buffer] = result
    suffix = ".".join(call.name.split())
    block = intrin.block
    (store,) = stores_in(replace(block, init=None))
    body = _written_out(intrin, store, intrin.loops, suffix, regions, places, values)
    if not isinstance(block.init, Store):
        return body
    spatial = {it.binding for it in block.iters if it.kind == "spatial"}
    loops = tuple(loop for loop in intrin.loops if loop.var in spatial)
    return seq([_written_out(intrin, block.init, loops, f"{suffix}.init", regions, places, values), body])


def _written_out(
    intrin: TensorIntrin,
    store: Store,
    loops: Sequence[For],
    suffix: str,
    regions: Mapping[Buffer, Region],
    places: Mapping[Buffer, tuple[int, ...]],
    values: Mapping[Var, Expr],
) -> Stmt:
    """The `loops` of an intrinsic's description around `store`, one of its stores, with the `regions` and `places` of a
    call in place of its parameters and `values` in place of its variables. Loop variables get the ending `suffix`."""
    renamed: dict[Var, Expr] = {loop.var: Var(f"{loop.var.name}.{suffix}") for loop in loops}
    point = {it.var: substitute(it.binding, renamed) for it in intrin.block.iters} | dict(values)

    def on_expr(e: Expr) -> Expr | None:
        return _moved(e, regions, places) if isinstance(e, Load) else None

    moved = _moved(Load(store.buffer, tuple(substitute(i, point) for i in store.indices)), regions, places)
    stmt: Stmt = Store(moved.buffer, moved.indices, map_expr(substitute(store.value, point), on_expr))
    for loop in reversed(loops):
        var = renamed[loop.var]
        assert isinstance(var, Var)
        stmt = For(var, substitute(loop.extent, values), stmt)
    return stmt


def _moved(load: Load, regions: Mapping[Buffer, Region], places: Mapping[Buffer, tuple[int, ...]]) -> Load:
    """The access `load` of a parameter of the description, as an access of the region that the call passes for it."""
    region = regions[load.buffer]
    indices = [start for start, _ in region.ranges]
    for d, i in zip(places[load.buffer], load.indices, strict=True):
        indices[d] = indices[d] + i
    return Load(region.buffer, tuple(indices))


def describe(
    name: str, extents: Mapping[str, int], reduce: str, types: tuple[DType, DType, DType], maps: Mapping[str, str]
) -> PrimFunc:
    """The description, a function called `name`, of a sum of products C += A * B over the letters in `reduce`, with the
    element types `types` of A, B and C. `maps` gives the indices of A, B and C as letters of `extents`."""
    loops = {k: Var(k) for k in extents}
    points = {k: Var(f"v{k}") for k in extents}
    a, b, c = (Buffer(x, t, tuple(const(extents[k]) for k in maps[x])) for x, t in zip("ABC", types, strict=True))
    result = Load(c, tuple(points[k] for k in maps["C"]))
    factors = [cast(Load(x, tuple(points[k] for k in maps[x.name])), c.dtype) for x in (a, b)]
    iters = tuple(
        BlockIter(points[k], const(n), "reduce" if k in reduce else "spatial", loops[k]) for k, n in extents.items()
    )
    stmt: Stmt = Block(name, iters, Store(c, result.indices, result + factors[0] * factors[1]))
    for k, n in reversed(list(extents.items())):
        stmt = For(loops[k], const(n), stmt)
    return PrimFunc(name, (a, b, c), stmt)


def _dot4_text() -> str:
    """The LLVM text of `dot_4x4x4_f32`: rows of C and B are vectors of four; each element of A times a row of B is
    added to the element's row of C."""
    lines = [
        "declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)",
        "define internal void @tw.intrin.dot_4x4x4_f32(ptr %a, i64 %as, ptr %b, i64 %bs, ptr %c, i64 %cs)"
        " alwaysinline {",
    ]
    for n in "abc":
        for r in range(4):
            lines.append(f"  %{n}o{r} = mul i64 %{n}s, {r}")
            lines.append(f"  %{n}p{r} = getelementptr float, ptr %{n}, i64 %{n}o{r}")
    for r in range(4):
        lines.append(f"  %b{r} = load <4 x float>, ptr %bp{r}, align 4")
        lines.append(f"  %c{r}.0 = load <4 x float>, ptr %cp{r}, align 4")
    for r in range(4):
        for k in range(4):
            lines += [
                f"  %e{r}{k}p = getelementptr float, ptr %ap{r}, i64 {k}",
                f"  %e{r}{k} = load float, ptr %e{r}{k}p, align 4",
                f"  %i{r}{k} = insertelement <4 x float> poison, float %e{r}{k}, i64 0",
                f"  %s{r}{k} = shufflevector <4 x float> %i{r}{k}, <4 x float> poison, <4 x i32> zeroinitializer",
                f"  %c{r}.{k + 1} = call <4 x float> @llvm.fma.v4f32(<4 x float> %s{r}{k}, <4 x float> %b{k},"
                f" <4 x float> %c{r}.{k})",
            ]
    lines += [f"  store <4 x float> %c{r}.4, ptr %cp{r}, align 4" for r in range(4)]
    return "\n".join([*lines, "  ret void", "}"])


DOT_4X4X4_F32 = register(
    TensorIntrin(
        "dot_4x4x4_f32",
        describe("dot_4x4x4_f32", {"i": 4, "j": 4, "k": 4}, "k", (f32, f32, f32), {"A": "ik", "B": "kj", "C": "ij"}),
        _dot4_text(),
    )
)
"""The product of two 4x4 tiles, added to a third; rows of C and B are contiguous."""

__all__ = [
    "DOT_4X4X4_F32",
    "TensorIntrin",
    "describe",
    "dot_intrinsic",
    "expand",
    "find_intrinsic",
    "is_known",
    "matched_dimensions",
    "register",
    "values_of",
]
