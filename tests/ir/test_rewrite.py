"""Walking, rewriting and reading programs: statements, loads under conditions, repeated parts, graphs."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import pytest

from tilewright.ir.attributes import Attrs
from tilewright.ir.combine import combine, without_new
from tilewright.ir.dim import Dim, size
from tilewright.ir.dtype import boolean, f32, i64
from tilewright.ir.expr import Buffer, Expr, Load, Op, Var, const, maximum, select
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value, base_name
from tilewright.ir.guarded import guarded_loads
from tilewright.ir.loops import (
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
from tilewright.ir.notes import Workspaces
from tilewright.ir.parser import parse_stmt
from tilewright.ir.reduce import Reducer
from tilewright.ir.rewrite import (
    buffers_in,
    exprs_of,
    fresh_name,
    loads,
    map_expr,
    map_exprs_of,
    names_of,
    replace_buffers,
    replace_stmt,
    substitute,
    substitute_stmt,
    uses,
    variables,
    walk,
    walk_expr,
    with_children,
)
from tilewright.ir.sharing import repeated

N = Var("n", lo=1)
I, J, P = Var("i"), Var("j"), Var("p", boolean)
A, B, C = (Buffer(name, f32, (N,)) for name in "ABC")
AT = Buffer("at", i64, (N,))


def store(to: Buffer, e: Expr | float = 1.0, at: Expr = I) -> Store:
    return Store(to, (at,), e if isinstance(e, Expr) else const(e))


BLOCK = Block("b", (BlockIter(J, const(4), "reduce", I),), store(A, B[J], J), store(A, at=J), I < 3)
CALL = Intrinsic("f", (Region(A, ((I, const(2)),)),), (Region(B, ((J, N),)),))
EVERY: tuple[Stmt, ...] = (
    For(I, N, store(A)),
    BLOCK,
    store(A, B[I]),
    Let(J, I + 1, store(A, at=J)),
    If(I < 3, store(A), store(B)),
    Allocate(Buffer("t", f32, (N, const(3))), store(A)),
    CALL,
    Seq((store(A), store(B))),
)


def test_expressions_that_stand_in_a_statement() -> None:
    result = [[str(e) for e in exprs_of(s)] for s in EVERY]
    assert result == [
        ["n"], ["4", "i", "i < 3"], ["i", "B[i]"], ["i + 1"], ["i < 3"], ["n", "3"], ["i", "2", "j", "n"], [],
    ]  # fmt: skip


def test_every_expression_is_mapped() -> None:
    """All but the extents of what is allocated, which are not to be changed without the reads of it."""
    for s in EVERY:
        changed = map_exprs_of(s, lambda e: e + 1 if e.dtype is i64 else e)
        before, after = list(exprs_of(s)), list(exprs_of(changed))
        if isinstance(s, Allocate):
            assert changed is s
            continue
        assert [str(e) for e in after] == [str(e + 1 if e.dtype is i64 else e) for e in before]
        assert changed.children == s.children
        assert map_exprs_of(s, lambda e: e) == s


def test_other_children() -> None:
    for s in EVERY:
        assert with_children(s, s.children) is s
        other = tuple(store(C, float(k), I) for k in range(len(s.children)))
        assert with_children(s, other).children == other
        assert list(exprs_of(with_children(s, other))) == list(exprs_of(s))


def test_walks_come_to_all_parents_first() -> None:
    nest = For(I, N, seq([BLOCK, Let(J, I + 1, If(I < 3, store(A), store(B)))]))
    names = [type(s).__name__ for s in walk(nest)]
    assert names == ["For", "Seq", "Block", "Store", "Store", "Let", "If", "Store", "Store"]
    shared = A[I] + 1.0
    parts = [str(e) for e in walk_expr(shared * shared)]
    assert parts == ["(A[i] + 1.0) * (A[i] + 1.0)", "A[i] + 1.0", "A[i]", "i", "1.0"]
    assert variables(A[J] * B[I + J]) == (J, I) and loads(A[J] * B[I + J] + A[J]) == (A[J], B[I + J])
    assert loads(B[I]) == (B[I],) and variables(I) == (I,) and variables(const(1)) == ()
    inner = Load(A, (Load(AT, (I,)),))
    assert loads(inner) == (inner, AT[I])


def test_statements_are_replaced_or_removed() -> None:
    first, second, third = store(A), store(B), store(C)
    nest = For(I, N, seq([first, If(P, second, third)]))
    assert replace_stmt(nest, first, third) == For(I, N, seq([third, If(P, second, third)]))
    assert replace_stmt(nest, first, None) == For(I, N, If(P, second, third))
    assert replace_stmt(nest, third, None) == For(I, N, seq([first, If(P, second)]))
    assert replace_stmt(nest, store(A), None) is nest  # equal is not the same
    assert replace_stmt(nest, nest, None) is None and replace_stmt(For(I, N, first), first, None) is None
    both = seq([first, second])
    assert replace_stmt(replace_stmt(both, first, None) or both, second, None) is None
    assert replace_stmt(If(P, first), first, None) is None
    assert replace_stmt(If(P, first, second), first, None) == If(~P, second)


def test_variables_and_buffers_are_replaced_everywhere() -> None:
    for s in EVERY:
        text = str(substitute_stmt(s, {N: const(7)}))
        assert substitute_stmt(s, {}) is s
        assert isinstance(s, Allocate) or "n" not in text.replace("init", "").replace("in ", "")
    moved = replace_buffers(seq([*EVERY[:5], CALL, Allocate(A, store(A, A[I]))]), {A: C, B: AT_B})
    assert {b.name for s in walk(moved) for e in exprs_of(s) for b in [x.buffer for x in loads(e)]} == {"C", "D"}
    assert {s.buffer.name for s in walk(moved) if isinstance(s, Store | Allocate)} == {"C", "D"}
    (call,) = (s for s in walk(moved) if isinstance(s, Intrinsic))
    assert [r.buffer for r in (*call.outputs, *call.inputs)] == [C, AT_B]


AT_B = Buffer("D", f32, (N,))


def test_rewriting_leaves_nothing_for_the_collector() -> None:
    """A function inside of a rewrite that calls itself would be a cycle with all that it remembers."""
    sums = [A[I] * float(k) + B[J] for k in range(20)]
    nest = For(I, N, seq([store(C, e, J) for e in sums]))
    gc.collect()
    gc.disable()
    try:
        for e in sums:
            map_expr(e, lambda x: J if x is I else None)
            substitute(e, {I: J + 1})
        substitute_stmt(nest, {J: I + 1})
        replace_buffers(nest, {A: B})
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_buffers_by_first_appearance() -> None:
    """Loaded buffers come before stored ones, whatever the statement; regions of a call, outputs first."""
    assert buffers_in(store(A, B[I] + C[I])) == (B, C, A)
    assert buffers_in(seq([For(I, N, If(B[I] < 1.0, store(A, at=AT[I]))), store(C, A[I])])) == (B, AT, A, C)
    assert buffers_in(Let(J, AT[I], store(A))) == (AT, A)
    assert buffers_in(CALL) == (A, B) and buffers_in(Allocate(C, CALL)) == (A, B)
    assert buffers_in(BLOCK) == (A, B) and buffers_in(If(P, CALL, store(C))) == (A, B, C)


def test_who_uses_a_buffer() -> None:
    """Loads, stores and regions use a buffer; an allocation alone does not."""
    nested = seq([For(I, N, If(B[I] < 1.0, store(A, at=AT[I]))), Let(J, AT[I], Allocate(C, CALL))])
    for s in (*EVERY, nested, store(A, B[I] + C[I]), If(P, CALL, store(C)), Seq(())):
        assert {b for b in (A, B, C, AT) if uses(s, b)} == set(buffers_in(s))
    assert not uses(Allocate(C, CALL), C)


def test_names() -> None:
    selected = {"x", "x_1"}
    assert [fresh_name(n, selected) for n in ("x", "y", "y", "x")] == ["x_2", "y", "y_1", "x_3"]
    assert selected == {"x", "x_1", "x_2", "x_3", "y", "y_1"}
    inside = seq([For(Var("l"), N, BLOCK), Let(Var("k"), N, Allocate(B, CALL))])
    func = PrimFunc("f", (A,), inside, (C,), (Workspaces(1),))
    assert names_of(func) == {"A", "C", "n", "l", "b", "j", "k", "B"}
    assert func.workspaces == (A,) and func.symbols == (N,) and PrimFunc("f", (A,), inside).workspaces == ()


def test_sequences_are_flat() -> None:
    one, two, three = store(A), store(B), store(C)
    assert seq([one]) is one and seq([seq([one, two]), three]) == Seq((one, two, three)) and seq([]) == Seq(())


# Loads under conditions


def read(b: Buffer) -> Load:
    e = b[I]
    assert isinstance(e, Load)
    return e


X, Y, Z = (read(b) for b in (A, B, C))
LOW = X < 1.0


@pytest.mark.parametrize(
    ("e", "results"),
    [
        (X + Y, ["A", "B"]),
        (X * X, ["A"]),
        (select(LOW, Y, Z), ["A", "B if A[i] < 1.0", "C if not A[i] < 1.0"]),
        (LOW & (Y < 2.0), ["A", "B if A[i] < 1.0"]),
        (LOW | (Y < 2.0), ["A", "B if not A[i] < 1.0"]),
        (select(P, select(LOW, Y, X), Z), ["A if p", "B if p if A[i] < 1.0", "A if p if not A[i] < 1.0",
                                           "C if not p"]),
        (maximum(select(P, Y, Z), Z), ["B if p", "C if not p", "C"]),
    ],
)  # fmt: skip
def test_loads_with_their_conditions(e: Expr, results: list[str]) -> None:
    listed = [" if ".join([x.buffer.name, *map(str, known)]) for x, known in guarded_loads(e, {X, Y, Z})]
    assert listed == results


def test_only_wanted_loads_are_listed_and_those_of_indices_first() -> None:
    inner = AT[I]
    outer = Load(A, (inner,))
    assert isinstance(inner, Load)
    assert [x for x, _ in guarded_loads(outer + Y, {outer, inner})] == [inner, outer]
    assert list(guarded_loads(X + Y, {Z})) == []
    assert [known for _, known in guarded_loads(X, {X}, (P,))] == [(P,)]


def chain(links: int) -> Expr:
    """`links` squares, each of the one before: as a tree twice as long each time."""
    e: Expr = I
    for k in range(links):
        e = e * e + (k + 2)
    return e


def test_repeated_parts_of_long_expressions_alone() -> None:
    assert repeated(chain(7)) == frozenset()  # 7 * 3 + 1 parts
    parts = repeated(chain(8))
    assert len(parts) == 7 and all(isinstance(p, Op) and p.name == "add" for p in parts)
    line: Expr = I
    for k in range(40):
        line = line + Var(f"v{k}")
    assert repeated(line) == frozenset()  # long, but nothing comes twice
    assert repeated(line * line) == frozenset()  # one part twice: hardly longer than once


# Steps of reductions

LHS, RHS = Var("l", f32), Var("r", f32)
LHS1, RHS1 = Var("l1", i64), Var("r1", i64)
WHERE = Buffer("W", i64, (N,))
LARGEST = Reducer(
    "largest",
    (LHS, LHS1),
    (RHS, RHS1),
    (select(LHS >= RHS, LHS, RHS), select(LHS >= RHS, LHS1, RHS1)),
    (const(0.0), const(0)),
)


def load(b: Buffer) -> Load:
    return Load(b, (I,))


def test_steps_of_known_reducers_are_stores() -> None:
    add = Reducer("add", (LHS,), (RHS,), (LHS + RHS,), (const(0.0),))
    assert combine(add, [load(A)], [B[I]], set()) == store(A, A[I] + B[I])
    transposed = Reducer("add", (LHS,), (RHS,), (RHS + LHS,), (const(0.0),))
    assert combine(transposed, [load(A)], [B[I]], set()) == store(A, B[I] + A[I])
    twice = Reducer("twice", (LHS,), (RHS,), (LHS + LHS,), (const(0.0),))
    own = Reducer("own", (LHS,), (RHS,), (LHS * 0.5 + RHS,), (const(0.0),))
    for other in (twice, own):
        step = combine(other, [load(A)], [B[I]], set())
        assert isinstance(step, Let) and step.value is B[I] and step.var.name == "A_new"
        assert isinstance(step.body, Store) and without_new(step) == step


def test_steps_of_several_values_see_no_other_result() -> None:
    step = combine(LARGEST, [load(A), Load(WHERE, (I,))], [B[I], J], {"A_new"})
    assert str(step) == (
        "let A_new_1 = B[i]\n"
        "let W_new = j\n"
        "let A_next = select(A[i] >= A_new_1, A[i], A_new_1)\n"
        "let W_next = select(A[i] >= A_new_1, W[i], W_new)\n"
        "A[i] = A_next\n"
        "W[i] = W_next"
    )
    ordinary = without_new(step)
    assert str(ordinary) == (
        "let A_next = select(A[i] >= B[i], A[i], B[i])\n"
        "let W_next = select(A[i] >= B[i], W[i], j)\n"
        "A[i] = A_next\n"
        "W[i] = W_next"
    )
    assert without_new(If(P, step)) == If(P, ordinary)
    assert without_new(If(P, step, step)) == If(P, step, step) and without_new(ordinary) == ordinary
    assert isinstance(ordinary, Let) and without_new(ordinary.body) == ordinary.body
    swapped = parse_stmt(str(step).replace("W[i] = W_next", "W[i] = W_new"), [I, J], [A, B, WHERE])
    assert without_new(swapped) == swapped


# Graphs


@dataclass(frozen=True, slots=True)
class With(Attrs):
    body: object = None
    size: object = None
    defines: object = None

    def __post_init__(self) -> None:
        pass  # of any type: nodes are all that is asked here


def value(name: str, *dims: Expr | int) -> Value:
    return Value(name, TensorType(f32, tuple(d if isinstance(d, Expr) else const(d) for d in dims)))


M, K = Var("m", lo=1), Var("k", lo=1)
INNER = Graph("inner", (value("a", M),), (), (), (value("a", M),))
FIRST = Node("lowered.first", (value("x", N), None, value("x", N)), (value("y", N, 4),), With(INNER, (K, (2, K + 1))))
SECOND = Node("second", (value("y", N, 4), value("x", N)), (value("z", 3),), With(defines=K))
GRAPH = Graph("g", (value("x", N),), (value("w", 2, 3),), (FIRST, SECOND), (value("z", 3),))


def test_what_a_graph_knows() -> None:
    assert GRAPH.producers() == {FIRST.output: FIRST, SECOND.output: SECOND}
    assert GRAPH.consumers() == {value("x", N): [FIRST, SECOND], value("y", N, 4): [SECOND]}
    assert GRAPH.symbols == (N,) and set(GRAPH.used_symbols) == {N, M}
    assert set(FIRST.symbols) == {M, K} and FIRST.defines is None and SECOND.defines is K
    assert FIRST.bodies == (INNER,) and SECOND.bodies == ()
    assert FIRST.label == "first" and SECOND.label == base_name("a.b.second") == "second"
    assert [v.known_bytes for v in (value("w", 2, 3), value("x", N), value("s"))] == [24, 0, 4]
    assert value("w", 2, 3).type.rank == 2 and str(TensorType(f32, (N,), "NC")) == "f32[n]:NC"
    assert FIRST.precision == "fp32" and FIRST.algorithm is None


def test_bodies_are_changed() -> None:
    other = Graph("other", (), (), (), ())
    assert FIRST.with_bodies(lambda g: g) is FIRST and SECOND.with_bodies(lambda g: other) is SECOND
    changed = FIRST.with_bodies(lambda g: other if g is INNER else g)
    assert changed.bodies == (other,) and changed.inputs == FIRST.inputs and changed.attrs != FIRST.attrs


def test_builders_name_values() -> None:
    b = GraphBuilder("built")
    kind = TensorType(f32, (N,))
    x, w = b.input("x", kind), b.param("x", kind)
    first = b.node("dialect.op", (x,), (kind, kind), names=("r",))
    (second,) = b.node("op", (w,), (kind,))
    assert [v.name for v in (x, w, *first, second)] == ["x", "x_1", "r", "op", "op_1"]
    graph = b.finish((second,))
    assert (graph.name, graph.inputs, graph.params, graph.outputs) == ("built", (x,), (w,), (second,))
    assert [n.op for n in graph.nodes] == ["dialect.op", "op"] and graph.nodes[0].outputs == first


def test_dimensions_as_symbols() -> None:
    """The model's needs narrow what the caller says, and likely values that it rules out go."""
    said = Dim(2, 64, 4, (4, 6, 8, 12, 16))
    assert said.var("n") is Var("n", lo=2, hi=64, multiple=4, likely=(4, 8, 12, 16))
    assert said.var("n", Dim(8, None, 6)) is Var("n", lo=8, hi=64, multiple=12, likely=(12,))
    assert Dim(2).var("n", Dim(1)) is Var("n", lo=2) and str(Dim(2, 5)) == "2..5" and str(Dim(2)) == "2.."
    assert size("batch", {"batch": 4}, "n") is const(4) and size("batch", {}, "n") is Var("n", lo=1)
    assert size("batch", {"batch": Dim(3)}, "s", Dim(5)) is Var("s", lo=5)
