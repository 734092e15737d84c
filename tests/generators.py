"""Hypothesis strategies for random programs: any expression, function or graph that the grammar allows (for texts and
keys), and programs that can be run with arrays to run them on (for the backends)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from tilewright import te
from tilewright.ir.attributes import Attrs, ConstantArray
from tilewright.ir.dtype import ALL, DType, boolean, f32, i64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, all_of, as_int, cast, const, equal, select
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.loops import (
    TRUE,
    Allocate,
    Block,
    BlockIter,
    For,
    If,
    Intrinsic,
    Let,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    seq,
)
from tilewright.ir.notes import (
    SCOPES,
    THREADS,
    BlockNote,
    BufferName,
    FuncNote,
    LoopNote,
    Note,
    Origin,
    Workspaces,
    all_notes,
    with_note,
)
from tilewright.ir.notetable import fields_of, renamed
from tilewright.ir.rewrite import map_stmt, rebuild, substitute_stmt
from tilewright.ir.scalar_ops import OPS
from tilewright.ir.selection import PRECISIONS, Selection, algorithms
from tilewright.schedule.storage import StorageAlign

Draw = Callable[[st.SearchStrategy[Any]], Any]

ODD_NAMES = ["for", "f32", "a/b:0", "1x", "", "x.y", 'say "hi"', "ünï", "nan", "a b", "T.local", "line\nbreak", "12"]
ordinary_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,4}", fullmatch=True)
names = st.one_of(ordinary_names, ordinary_names, st.sampled_from(ODD_NAMES))
finite_doubles = st.floats(allow_nan=False, allow_infinity=False)
PAYLOAD_NAN = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0].item()
doubles = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.5, 0.1, 1e-7, 1e30, math.inf, -math.inf, math.nan, PAYLOAD_NAN]), finite_doubles
)


@st.composite
def fresh_names(draw: Any, used_names: set[str]) -> str:
    name: str = draw(names)
    while name in used_names:
        name += "_"
    used_names.add(name)
    return name


@st.composite
def constants(draw: Any, dtype: DType) -> Const:
    """Any literal of a type."""
    if dtype.is_float:
        return Const(draw(doubles), dtype)
    if dtype is boolean:
        return Const(draw(st.booleans()), dtype)
    lo, hi = int(dtype.min), int(dtype.max)
    return Const(draw(st.one_of(st.integers(max(lo, -4), min(hi, 9)), st.integers(lo, hi))), dtype)


@st.composite
def exprs(
    draw: Any, dtype: DType = i64, variables: Sequence[Var] = (), buffers: Sequence[Buffer] = (), depth: int = 3
) -> Expr:
    """Any expression of a type over these variables and buffers."""

    def sub(kind: DType) -> Expr:
        result: Expr = draw(exprs(kind, variables, buffers, depth - 1))
        return result

    leaves: list[Any] = [v for v in variables if v.dtype is dtype]
    loads = [b for b in buffers if b.dtype is dtype] if depth > 0 else []
    choice = draw(st.integers(0, 9)) if depth > 0 else draw(st.integers(0, 1))
    if choice == 0 or (choice == 1 and not leaves):
        return draw(constants(dtype))  # type: ignore[no-any-return]
    if choice == 1:
        return draw(st.sampled_from(leaves))  # type: ignore[no-any-return]
    if choice == 2 and loads:
        b = draw(st.sampled_from(loads))
        return Load(b, tuple(sub(i64) for _ in b.shape))
    if choice == 3:
        if draw(st.integers(0, 3)) == 0:
            return Op("lookup", (sub(i64), *draw(st.lists(constants(dtype), min_size=1, max_size=4))))
        return Op("select", (sub(boolean), sub(dtype), sub(dtype)))
    if choice == 4:
        name = draw(st.sampled_from(["cast", "cast", "bitcast"]))
        return Op(name, (sub(draw(st.sampled_from(ALL))),), dtype)
    if dtype is boolean and choice in (5, 6, 7):
        kind = draw(st.sampled_from(ALL))
        results = [o for o in OPS.values() if o.rule == "bool" and kind.kind in o.kinds]
        info = draw(st.sampled_from(results))
        return Op(info.name, tuple(sub(kind) for _ in range(info.arity)))
    results = [o for o in OPS.values() if o.rule in ("same", "logic") and dtype.kind in o.kinds]
    info = draw(st.sampled_from(results))
    return Op(info.name, tuple(sub(dtype) for _ in range(info.arity)))


@st.composite
def symbols(draw: Any, used_names: set[str]) -> Var:
    lo = draw(st.one_of(st.none(), st.integers(-3, 8)))
    hi = draw(st.one_of(st.none(), st.integers(8, 4096)))
    likely = draw(st.one_of(st.just(()), st.lists(st.integers(0, 99), max_size=3).map(tuple)))
    return Var(draw(fresh_names(used_names)), i64, lo, hi, draw(st.sampled_from([1, 1, 2, 16])), likely=likely)


def field_values(t: Any, buffers: Sequence[str]) -> st.SearchStrategy[Any]:
    """Values of a note's field of a type, names of buffers among these."""
    arguments = get_args(t)
    if t is BufferName:
        return st.sampled_from(buffers)
    if get_origin(t) is Annotated:
        return st.integers(min_value=arguments[1].least)
    if get_origin(t) is Literal:
        return st.sampled_from(arguments)
    if get_origin(t) is tuple:
        return st.lists(field_values(arguments[0], buffers), max_size=3).map(tuple)
    if arguments:
        return st.one_of([field_values(a, buffers) for a in arguments])
    ordinary = {
        int: st.integers(),
        bool: st.booleans(),
        str: st.one_of(names, st.text(max_size=5)),
        type(None): st.none(),
    }
    return ordinary[t]


def notes_of(kind: type[Note], buffers: Sequence[str]) -> st.SearchStrategy[Note]:
    """Notes of a class that the verifier accepts."""
    if kind is Origin:
        return origins(())
    if kind is StorageAlign:
        row = st.tuples(st.sampled_from(buffers), st.integers(0, 3), st.integers(1, 64), st.integers(-64, 64))
        rows = st.lists(row, min_size=1, max_size=3)
        return rows.map(lambda inputs: StorageAlign(*zip(*inputs, strict=True)))
    fields = {f.name: field_values(f.type, buffers) for f in fields_of(kind)}
    drawn = st.fixed_dictionaries(
        {f.name: fields[f.name] for f in fields_of(kind) if f.default is MISSING},
        optional={f.name: fields[f.name] for f in fields_of(kind) if f.default is not MISSING},
    )
    return drawn.map(lambda inputs: kind(**inputs)).filter(lambda note: not list(note.conflicts()))


@st.composite
def origins(draw: Any, dims: Sequence[Var]) -> Origin:
    """Stages of operators as random graphs have them, with these symbols in attributes."""
    op = draw(names)
    return Origin(op, draw(names), draw(attributes_of(op, dims)))


@st.composite
def notes(draw: Any, place: type[Note], buffers: Sequence[Buffer], dims: Sequence[Var] = ()) -> tuple[Any, ...]:
    """Up to two notes for a place, of classes that need nothing else to be right."""
    results: tuple[Note, ...] = ()
    kinds = [kind for kind in all_notes().values() if issubclass(kind, place) and kind is not Workspaces]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=2)) if kinds else ():
        fitting = origins(dims) if kind is Origin else notes_of(kind, [b.name for b in buffers])
        results = with_note(results, draw(fitting))
    return results


@st.composite
def funcs(draw: Any) -> PrimFunc:
    """Any function that the verifier accepts; running it may make no sense."""
    used_names: set[str] = set()
    dims = [draw(symbols(used_names)) for _ in range(draw(st.integers(0, 2)))]
    params = [draw(_buffers(dims, used_names)) for _ in range(draw(st.integers(1, 3)))]
    if dims:
        params.append(Buffer(draw(fresh_names(used_names)), f32, tuple(dims)))
    locals_ = [draw(_buffers(dims, used_names)) for _ in range(draw(st.integers(0, 2)))]
    func = PrimFunc(draw(names), tuple(params), Seq(()), tuple(locals_), draw(notes(FuncNote, params)))
    body = draw(_stmts([*params, *locals_], list(func.symbols), list(func.symbols), used_names, 3))
    return func.with_body(body)


@st.composite
def _buffers(draw: Any, dims: list[Var], used_names: set[str]) -> Buffer:
    extent = st.integers(1, 9).map(const)
    if dims:
        extent = st.one_of(extent, st.sampled_from(dims), st.sampled_from([d + 1 for d in dims]))
    shape = tuple(draw(st.lists(extent, max_size=3)))
    scope = draw(st.sampled_from(["global", *SCOPES]))
    align = draw(st.sampled_from([None, None, 64]))
    return Buffer(draw(fresh_names(used_names)), draw(st.sampled_from(ALL)), shape, scope, align)


@st.composite
def _stmts(
    draw: Any, buffers: list[Buffer], scope: list[Var], dims: list[Var], used_names: set[str], depth: int
) -> Stmt:
    """Statements over `scope`; `dims` are the symbols, which blocks may use too."""

    def expr(dtype: DType) -> Expr:
        result: Expr = draw(exprs(dtype, scope, buffers, 2))
        return result

    def index() -> Expr:
        result: Expr = draw(exprs(i64, scope, [], 1))
        return result

    def inside(extra: list[Var], more: Sequence[Buffer] = ()) -> Stmt:
        result: Stmt = draw(_stmts([*buffers, *more], [*scope, *extra], dims, used_names, depth - 1))
        return result

    kind = draw(st.integers(0, 8 if depth > 0 else 1))
    match kind:
        case 2 | 3:
            loop = Var(draw(fresh_names(used_names)))
            what = draw(st.sampled_from(["serial", "parallel", "vectorized", "unrolled", "thread"]))
            thread = draw(st.sampled_from(THREADS)) if what == "thread" else None
            return For(loop, index(), inside([loop]), what, thread, draw(notes(LoopNote, buffers)))
        case 4:
            return draw(_blocks(buffers, scope, dims, used_names, depth))  # type: ignore[no-any-return]
        case 5:
            value = expr(draw(st.sampled_from(ALL)))
            let = Var(draw(fresh_names(used_names)), value.dtype)
            return Let(let, value, inside([let]))
        case 6:
            return If(expr(boolean), inside([]), inside([]) if draw(st.booleans()) else None)
        case 7:
            local = draw(_buffers(dims, used_names))
            return Allocate(local, inside([], [local]))
        case 8:
            parts = [inside([]) for _ in range(draw(st.integers(0, 3)))]
            return seq(parts) if parts else Seq(())
        case 1:
            regions = [
                Region(b, tuple((index(), index()) for _ in b.shape))
                for b in draw(st.lists(st.sampled_from(buffers), max_size=3))
            ]
            return Intrinsic(draw(names), tuple(regions[:1]), tuple(regions[1:]))
    target = draw(st.sampled_from(buffers))
    return Store(target, tuple(index() for _ in target.shape), expr(target.dtype))


@st.composite
def _blocks(
    draw: Any, buffers: list[Buffer], scope: list[Var], dims: list[Var], used_names: set[str], depth: int
) -> Block:
    iters = []
    for _ in range(draw(st.integers(0, 3))):
        var = Var(draw(fresh_names(used_names)))
        extent, binding = draw(exprs(i64, dims, [], 1)), draw(exprs(i64, scope, [], 1))
        iters.append(BlockIter(var, extent, draw(st.sampled_from(["spatial", "reduce"])), binding))
    own = [*dims, *(it.var for it in iters)]
    spatial = [*dims, *(it.var for it in iters if it.kind == "spatial")]
    init = None
    if any(it.kind == "reduce" for it in iters) and draw(st.booleans()):
        init = draw(_stmts(buffers, spatial, dims, used_names, 0))
    body = draw(_stmts(buffers, own, dims, used_names, depth - 1))
    predicate = draw(exprs(boolean, scope, [], 2)) if draw(st.booleans()) else TRUE
    return Block(
        draw(fresh_names(used_names)), tuple(iters), body, init, predicate, draw(notes(BlockNote, buffers, dims))
    )


@st.composite
def arrays(draw: Any, dtype: DType | None = None, max_size: int = 12) -> np.ndarray[Any, Any]:
    """A small array of any element type with any bits."""
    kind = draw(st.sampled_from(ALL)) if dtype is None else dtype
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = math.prod(shape)
    if kind is boolean or kind.bits < 8:
        return (
            (np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8) & 1)
            .astype(kind.numpy)
            .reshape(shape)
        )
    nbytes = size * kind.itemsize
    return np.frombuffer(draw(st.binary(min_size=nbytes, max_size=nbytes)), kind.numpy).reshape(shape)


@dataclass(frozen=True, slots=True)
class OneAttr(Attrs):
    value: Any


@dataclass(frozen=True, slots=True)
class SomeAttrs(Attrs):
    """With a keyword of texts among the names, and a default, which texts leave out."""

    block: Any
    a1: Any = None


def kind_of(op: str) -> type[Attrs]:
    """The attributes that operators of random graphs have."""
    return (Attrs, OneAttr, SomeAttrs)[len(op) % 3]


@st.composite
def selections(draw: Any) -> Selection:
    """A choice of algorithms for a node."""
    kind = draw(st.none() | st.sampled_from(list(algorithms().values())))
    sizes = {"int": st.integers()} | {
        f"tuple[{', '.join(['int'] * n)}]": st.tuples(*[st.integers()] * n) for n in (2, 4)
    }
    algorithm = None if kind is None else kind(*(draw(sizes[str(f.type)]) for f in dataclass_fields(kind)))
    return Selection(algorithm, draw(st.sampled_from(PRECISIONS)))


@st.composite
def attributes_of(draw: Any, op: str, dims: Sequence[Var]) -> Attrs:
    """Attributes of an operator of random graphs, with these symbols in expressions."""
    base = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        doubles.filter(lambda x: x == x),
        st.text(max_size=6),
        st.sampled_from(ALL),
        exprs(i64, dims, [], 2),
        arrays().map(ConstantArray),
    )
    attribute = st.recursive(base, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
    return kind_of(op)(*(draw(attribute) for _ in dataclass_fields(kind_of(op))))


@st.composite
def graphs(draw: Any) -> Graph:
    """Any graph that the verifier accepts (operators are not checked)."""
    used_names: set[str] = set()
    dims = [draw(symbols(set())) for _ in range(draw(st.integers(0, 2)))]
    dims = list({v.name: v for v in dims}.values())
    extent = st.integers(0, 9).map(const)
    if dims:
        extent = st.one_of(extent, st.sampled_from(dims), st.sampled_from([d * 2 for d in dims]))

    def type() -> TensorType:
        layout = draw(st.sampled_from(["", "", "NCHW16c", "odd layout"]))
        return TensorType(draw(st.sampled_from(ALL)), tuple(draw(st.lists(extent, max_size=3))), layout)

    inputs = [Value(draw(fresh_names(used_names)), type()) for _ in range(draw(st.integers(0, 2)))]
    if dims:
        inputs.append(Value(draw(fresh_names(used_names)), TensorType(f32, tuple(dims))))
    params = [Value(draw(fresh_names(used_names)), type()) for _ in range(draw(st.integers(0, 2)))]
    known = [*inputs, *params]
    nodes = []
    for _ in range(draw(st.integers(0, 4))):
        pick = st.one_of(st.none(), st.sampled_from(known)) if known else st.none()
        operands = tuple(draw(st.lists(pick, max_size=3)))
        outputs = tuple(Value(draw(fresh_names(used_names)), type()) for _ in range(draw(st.integers(0, 2))))
        op = draw(names)
        attrs = draw(attributes_of(op, dims))
        nodes.append(Node(op, operands, outputs, attrs, draw(st.none() | selections())))
        known.extend(outputs)
    results = tuple(draw(st.lists(st.sampled_from(known), max_size=3))) if known else ()
    return Graph(draw(names), tuple(inputs), tuple(params), tuple(nodes), results)


# Renaming and changing


def renamed_func(func: PrimFunc, new: Callable[[str], str], label: Callable[[str], str] | None = None) -> PrimFunc:
    """`func` with every name in it passed through `new` (which must be one to one), those of the function and of its
    blocks, which may be names of variables as well, through `label` if there is one."""
    label = label or new
    variables: dict[Expr, Expr] = {}
    memo: dict[Expr, Expr] = {}

    def var(v: Var) -> Var:
        return v.renamed(new(v.name))

    def on(node: Expr) -> Expr | None:
        if isinstance(node, Var):
            return variables.setdefault(node, var(node))
        return Load(buffer(node.buffer), node.indices) if isinstance(node, Load) else None

    def expr(e: Expr) -> Expr:
        return map_raw(e, on, memo)

    def buffer(b: Buffer) -> Buffer:
        return replace(b, name=new(b.name), shape=tuple(expr(d) for d in b.shape))

    def region(r: Region) -> Region:
        return Region(buffer(r.buffer), tuple((expr(a), expr(b)) for a, b in r.ranges))

    def value(v: Any) -> Any:
        return tuple(map(value, v)) if isinstance(v, tuple) else expr(v) if isinstance(v, Expr) else v

    def note_of_block(note: BlockNote) -> BlockNote:
        return replace(note, attrs=note.attrs.mapped(value)) if isinstance(note, Origin) else renamed(note, new)

    def stmt(s: Stmt) -> Stmt:
        match s:
            case For():
                mine = tuple(renamed(note, new) for note in s.notes)
                return replace(s, var=var(s.var), extent=expr(s.extent), body=stmt(s.body), notes=mine)
            case Block():
                iters = tuple(BlockIter(var(it.var), expr(it.extent), it.kind, expr(it.binding)) for it in s.iters)
                init = None if s.init is None else stmt(s.init)
                mine = tuple(note_of_block(note) for note in s.notes)
                return Block(label(s.name), iters, stmt(s.body), init, expr(s.predicate), mine)
            case Store():
                return Store(buffer(s.buffer), tuple(expr(i) for i in s.indices), expr(s.value))
            case Let():
                return Let(var(s.var), expr(s.value), stmt(s.body))
            case If():
                return If(expr(s.condition), stmt(s.then), None if s.orelse is None else stmt(s.orelse))
            case Allocate():
                return Allocate(buffer(s.buffer), stmt(s.body))
            case Seq():
                return Seq(tuple(stmt(c) for c in s.stmts))
            case Intrinsic():
                return Intrinsic(s.name, tuple(map(region, s.outputs)), tuple(map(region, s.inputs)))
        raise AssertionError(s)

    params, buffers = (tuple(map(buffer, side)) for side in (func.params, func.buffers))
    notes = tuple(renamed(note, new) for note in func.notes)
    return PrimFunc(label(func.name), params, stmt(func.body), buffers, notes)


def map_raw(e: Expr, f: Callable[[Expr], Expr | None], memo: dict[Expr, Expr]) -> Expr:
    """`rewrite.map_expr` that folds nothing."""
    done = memo.get(e)
    if done is None:
        children = tuple(map_raw(c, f, memo) for c in e.children)
        same = Op(e.name, children, e.dtype) if isinstance(e, Op) else rebuild(e, children) if children else e
        changed = f(same)
        done = memo[e] = same if changed is None else changed
    return done


def canonical(func: PrimFunc) -> PrimFunc:
    """A generated function with names by first appearance: equal for functions that are equal up to names."""
    order: dict[str, str] = {}
    return renamed_func(func, lambda name: order.setdefault(name, f"n{len(order)}"), lambda _: "")


# Programs to run


def examples(count: int) -> settings:
    """Settings of `count` examples in the tests, a hundred times as many under `make fuzz`."""
    return settings(max_examples=count * (100 if os.environ.get("TILEWRIGHT_FUZZ") else 1))


EXACT = ("add", "sub", "mul", "min", "max", "neg", "abs")
"""Operators whose native results are equal bit for bit."""


@dataclass(frozen=True)
class Program:
    """A function and arrays for its parameters."""

    func: PrimFunc
    arrays: tuple[np.ndarray[Any, Any], ...]

    def fresh(self) -> list[np.ndarray[Any, Any]]:
        return [a.copy() for a in self.arrays]


def small_values(dtype: DType, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Numbers whose sums and products are exact in f32: quarters between -2 and 2, or small integers."""
    rng = np.random.default_rng(seed)
    if dtype is boolean:
        return rng.integers(0, 2, shape).astype(np.bool_)
    # Sums over some hundred elements of products of products of wide ones must stay below 2^24 in any order.
    limit = 8 if dtype.is_float or dtype.bits > 16 else min(64, int(dtype.max))
    whole = rng.integers(0 if dtype.kind == "uint" else -limit, limit + 1, shape)
    return (whole / 4).astype(dtype.numpy) if dtype.is_float else whole.astype(dtype.numpy)


@st.composite
def values(draw: Any, dtype: DType, leaves: Sequence[Expr], depth: int) -> Expr:
    """An expression over `leaves` (of any type) that every backend must compute exactly."""

    def sub(kind: DType) -> Expr:
        result: Expr = draw(values(kind, leaves, depth - 1))
        return result

    own = [e for e in leaves if e.dtype is dtype]
    choice = draw(st.integers(0, 9)) if depth > 0 else 0
    if choice <= 1:
        if own and draw(st.integers(0, 3)):
            return draw(st.sampled_from(own))  # type: ignore[no-any-return]
        if dtype is boolean:
            return const(draw(st.booleans()))
        number = draw(st.integers(0 if dtype.kind == "uint" else -8, 7))
        return const(number / 2 if dtype.is_float else number, dtype)
    if choice == 2:
        if draw(st.integers(0, 3)) == 0:
            numbers = draw(st.lists(st.integers(0, 1 if dtype is boolean else 3), min_size=1, max_size=5))
            return Op("lookup", (sub(i64), *(const(bool(n) if dtype is boolean else n, dtype) for n in numbers)))
        return select(sub(boolean), sub(dtype), sub(dtype))
    if choice == 3 and leaves:
        source = draw(st.sampled_from([e.dtype for e in leaves]))
        return cast(sub(source), dtype)
    if dtype is boolean:
        if choice < 7:
            kind = draw(st.sampled_from([f32, i64, *(e.dtype for e in leaves)]))
            compare = draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
            return Op(compare, (sub(kind), sub(kind)))
        return Op(draw(st.sampled_from(["and", "or"])), (sub(dtype), sub(dtype)))
    if dtype.is_int and choice > 6:
        name = draw(st.sampled_from(["floordiv", "mod", "truncdiv", "truncmod", "bitand", "bitor", "bitxor"]))
        return Op(name, (sub(dtype), sub(dtype)))
    if dtype.is_float and choice > 7:
        rounding = draw(st.sampled_from(["floor", "ceil", "trunc", "round"]))
        return Op(rounding, (sub(dtype),))
    name = draw(st.sampled_from(EXACT))
    return Op(name, tuple(sub(dtype) for _ in range(OPS[name].arity)))


EXTENTS = (1, 2, 3, 4, 5, 8, 16, 17, 33)


@st.composite
def programs(draw: Any, dtypes: Sequence[DType] = (f32,), depth: int = 3) -> Program:
    """One to three stages of tensor expressions: pointwise, padded, gathered, reductions, products; the first dimension
    may be symbolic."""
    n = draw(st.integers(1, 6))
    symbolic = draw(st.booleans())
    first: Any = te.var("n", hi=64) if symbolic else const(n)
    extents = [first, *(const(draw(st.sampled_from(EXTENTS))) for _ in range(2))]
    inputs = []
    for k in range(draw(st.integers(1, 2))):
        shape = [draw(st.sampled_from(extents)) for _ in range(draw(st.integers(1, 3)))]
        if k == 0:
            shape[0] = first
        inputs.append(te.placeholder(shape, draw(st.sampled_from(list(dtypes))), name=f"I{k}"))
    tensors = list(inputs)
    for k in range(draw(st.integers(1, 3))):
        tensors.append(draw(_stages(tensors, extents, list(dtypes), depth, f"S{k}")))
    func = te.create_prim_func([*inputs, tensors[-1]], "program")
    seed = draw(st.integers(0, 1 << 16))

    def size(e: Expr) -> int:
        return n if e is first else int(e.value)  # type: ignore[attr-defined]

    shapes = [tuple(size(e) for e in b.shape) for b in func.params]
    return Program(
        func,
        tuple(small_values(b.dtype, s, seed + i) for i, (b, s) in enumerate(zip(func.params, shapes, strict=True))),
    )


@st.composite
def _stages(draw: Any, tensors: list[Any], extents: list[Any], dtypes: list[DType], depth: int, name: str) -> Any:
    dtype = draw(st.sampled_from([t.dtype for t in tensors] + dtypes))
    rank, steps = draw(st.integers(1, 3)), draw(st.sampled_from([0, 0, 1, 2])) if dtype is not boolean else 0
    drawn = [draw(st.sampled_from(extents)) for _ in range(rank + steps)]
    # The interpreter does some 500,000 points a second.
    while math.prod(as_int(e) or 6 for e in drawn) > 4000:
        drawn[drawn.index(max(drawn, key=lambda e: as_int(e) or 6))] = const(1)
    shape = drawn[:rank]
    axes = [te.reduce_axis(e, f"r{k}") for k, e in enumerate(drawn[rank:])]

    def body(*point: Expr) -> Expr:
        known = [*zip(point, shape, strict=True)]
        if axes:
            known += [(axis.var, axis.extent) for axis in axes]
        leaves = [_element(draw, t, known) for t in tensors]
        newest = cast(leaves[-1], dtype)
        if axes:
            other = cast(draw(st.sampled_from(leaves)), dtype)
            term = newest * other if draw(st.booleans()) else newest
            reducer = draw(st.sampled_from([te.sum, te.sum, te.max, te.min]))
            return reducer(term, axes)  # type: ignore[no-any-return]
        leaves += [leaf for leaf in (_padded(draw, t, known) for t in tensors) if leaf is not None]
        leaves += [v for v, _ in known]
        name = "or" if dtype is boolean else draw(st.sampled_from(["add", "sub", "min", "max"]))
        return Op(name, (newest, draw(values(dtype, leaves, depth))))

    return te.compute(shape, body, name=name)


def _element(draw: Draw, tensor: Any, known: list[tuple[Expr, Any]]) -> Expr:
    """An element of a tensor at indices that lie inside."""
    index = []
    for extent in tensor.shape:
        fitting = [v for v, e in known if e is extent]
        if fitting and draw(st.integers(0, 4)):
            index.append(draw(st.sampled_from(fitting)))
        else:
            v, _ = draw(st.sampled_from(known))
            index.append((v + draw(st.integers(0, 3))) % extent)
    return tensor[tuple(index)]  # type: ignore[no-any-return]


def _padded(draw: Draw, tensor: Any, known: list[tuple[Expr, Any]]) -> Expr | None:
    """An element at shifted indices, a literal where those lie outside."""
    index, inside = [], []
    for extent in tensor.shape:
        v, _ = draw(st.sampled_from(known))
        at = v - draw(st.integers(-1, 2))
        index.append(at)
        inside += [at >= 0, at < extent]
    if not draw(st.booleans()):
        return None
    return select(all_of(inside), tensor[tuple(index)], const(1, tensor.dtype))


def flattened(func: PrimFunc) -> PrimFunc:
    """`func` with its blocks replaced by what they do, and its buffers allocated: the plainest lowering."""

    def on(s: Stmt) -> Stmt | None:
        if not isinstance(s, Block):
            return None
        binding = {it.var: it.binding for it in s.iters}
        body = substitute_stmt(s.body, binding)
        if s.init is not None:
            first = all_of(equal(it.binding, 0) for it in s.iters if it.kind == "reduce")
            init = substitute_stmt(s.init, binding)
            body = seq([init if first is TRUE else If(first, init), body])
        return body if s.predicate is TRUE else If(s.predicate, body)

    body = map_stmt(func.body, on)
    for b in reversed(func.buffers):
        body = Allocate(b, body)
    return replace(func, body=body, buffers=())


def assert_same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], what: str = "") -> None:
    """Equal elements; any NaN equals any other, and the zeros are equal."""
    wide = np.float64 if a.dtype.kind not in "iub" and a.dtype != bool else a.dtype
    np.testing.assert_array_equal(a.astype(wide), b.astype(wide), err_msg=what)
