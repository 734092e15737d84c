"""Each rule of the verifier on a program that breaks it; all problems are listed at once."""

from __future__ import annotations

import pytest

from tilewright import te
from tilewright.ir.dtype import f32, f64, i32
from tilewright.ir.expr import Buffer, Load, Var, cast, const
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.loops import (
    NTHREADS,
    TID,
    TRUE,
    Allocate,
    Barrier,
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
from tilewright.ir.notes import MayAlias, Unroll, Workspaces
from tilewright.ir.parser import parse_func
from tilewright.ir.verify import verify_func, verify_graph
from tilewright.support.errors import VerifyError

BLOCK = "block B (v = spatial(n): i) { A[v] = 0.0 }"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("A[i] = 0.0", "the variable 'i' is not defined here"),
        ("for i in 0..n { } for i in 0..n { }", "loop 'i': the variable 'i' is bound twice"),
        ("for n in 0..4 { }", "the variable 'n' is bound twice"),
        ("let x = f64(n) for i in 0..n { A[i] = f32(x) } let x = 3", "the variable 'x' is bound twice"),
        (
            f"for i in 0..n {{ {BLOCK} }} for j in 0..n {{ {BLOCK.replace(': i', ': j')} }}",
            "is a second block of this name",
        ),
        (
            "for i in 0..n { block B (v = spatial(n): i) { A[i] = 0.0 } }",
            "block 'B': the variable 'i' is not defined here",
        ),
        (
            "for i in 0..n { block B (v = spatial(i): i) { A[v] = 0.0 } }",
            "block 'B': the variable 'i' is not defined here",
        ),
        ("block B (v = spatial(n): 0) { init { A[v] = 0.0 } A[v] = 0.0 }", "has an init but no reduction iterator"),
        ("block B (v = reduce(n): 0) { init { A[v] = 0.0 } A[v] = 0.0 }", "block 'B', init: the variable 'v' is not"),
        ("A[i32(0)] = 0.0", "an index of A is i32, not i64"),
        ("A[0] = A[i32(0)]", "A[i32(0)] is indexed with i32, not i64"),
        ("for i in 0..i32(n) { }", "the extent is i32, not i64"),
        ("if n { }", "a condition is i64, not bool: n"),
        ("alloc A: f32[4]", "buffer 'A': is declared twice"),
        ("for i in 0..4 thread { }", "a loop names a hardware index exactly if"),
        ("call f(A[m +: 4];)", "intrinsic 'f': the variable 'm' is not defined here"),
    ],
)
def test_function(body: str, problem: str) -> None:
    func = parse_func(f"func @f(A: f32[n]) where n in 1..64 {{ {body} }}")
    with pytest.raises(VerifyError) as caught:
        verify_func(func)
    assert problem in str(caught.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(VerifyError) as caught:
        verify_func(parse_func("func @f(A: f32[4]) { A[i] = 0.0 A[j] = 0.0 if 3 { } }"))
    assert len(caught.value.problems) == 3


def test_sequences_are_flat() -> None:
    func = parse_func("func @f(A: f32[4]) { A[0] = 0.0 A[1] = 0.0 }")
    nested = PrimFunc("f", func.params, Seq((func.body, func.body)))
    with pytest.raises(VerifyError, match="nested"):
        verify_func(nested)


def test_other_buffer_of_the_same_name() -> None:
    good = parse_func("func @f(A: f32[4]) { A[0] = 0.0 }")
    other = parse_func("func @f(A: f32[8]) { A[0] = 0.0 }")
    with pytest.raises(VerifyError, match=r"otherwise than declared: expected A: f32\[4\], got A: f32\[8\]"):
        verify_func(PrimFunc("f", good.params, other.body))


def value(name: str, dtype: object = f32, dim: object = 4) -> Value:
    return Value(name, TensorType(dtype, (const(dim) if isinstance(dim, int) else dim,)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (Graph("g", (value("x"), value("x")), (), (), ()), "value 'x': is defined twice"),
        (Graph("g", (), (), (), (value("x"),)), "outputs, value 'x': is used but not defined before"),
        (
            Graph("g", (value("x"),), (), (), (value("x", f64),)),
            "is used with another type: expected f32[4], got f64[4]",
        ),
        (Graph("g", (value("x"),), (value("w", dim=Var("n")),), (), ()), "uses n, which is no symbol"),
    ],
)
def test_graph(graph: Graph, problem: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_graph(graph)
    assert problem in str(caught.value)


def test_operators_are_checked_by_the_callback() -> None:
    graph = Graph("g", (value("x"),), (), (Node("relu", (value("x"),), (value("y"),)),), (value("y"),))
    verify_graph(graph, lambda node: [])
    with pytest.raises(VerifyError, match=r"node 0 \(relu\): no such operator"):
        verify_graph(graph, lambda node: ["no such operator"])


I, J, N = Var("i"), Var("j"), Var("n", lo=1, hi=64)
A, B = Buffer("A", f32, (N,)), Buffer("B", f32, (N,))


def put(at: object = I, value: object = 0.0, to: Buffer = A) -> Store:
    return Store(to, (at,), const(value) if isinstance(value, float) else value)  # type: ignore[arg-type]


def block(*iters: BlockIter, body: Stmt | None = None, init: Stmt | None = None, predicate: object = TRUE) -> Block:
    return Block("b", iters, body or put(J), init, predicate)  # type: ignore[arg-type]


SPATIAL, REDUCE = BlockIter(J, N, "spatial", I), BlockIter(J, N, "reduce", I)
K = te.reduce_axis(4, "k")

RIGHT: list[Stmt] = [
    For(I, N, block(SPATIAL)),
    For(I, N, block(BlockIter(J, N, "reduce", I), body=put(J), init=put(const(0)))),
    For(I, N, seq([put(), Allocate(Buffer("t", f32, (I + 1,)), put(I, 1.0, Buffer("t", f32, (I + 1,))))])),
    Let(Var("x", f32), A[const(0)], put(const(0), Var("x", f32))),
    If(N < 3, put(const(0)), put(const(1))),
    Intrinsic("f", (Region(A, ((const(0), N),)),), (Region(B, ((const(0), N),)),)),
    For(I, N, put(), "thread", "threadIdx.x"),
]


@pytest.mark.parametrize("body", RIGHT, ids=range(len(RIGHT)))
def test_what_is_right_passes(body: Stmt) -> None:
    verify_func(PrimFunc("f", (A,), body, (B,), (MayAlias(), Workspaces(1))))


T = Buffer("t", f32, (const(4),))
WRONG: dict[str, tuple[Stmt, str]] = {
    "loop of 32 bits": (
        For(Var("l", i32), N, put(const(0))),
        "the variable 'l' has the wrong type: expected i64, got i32",
    ),
    "let of another type": (
        Let(Var("x", f64), A[const(0)], put(const(0))),
        "the variable 'x' has the wrong type: expected f32, got f64",
    ),
    "let seen too early": (Let(I, I + 1, put()), "the variable 'i' is not defined here"),
    "loop over itself": (For(I, I + 1, put()), "loop 'i': the variable 'i' is not defined here"),
    "behind its loop": (seq([For(I, N, put()), put()]), "body: the variable 'i' is not defined here"),
    "in an index": (For(I, N, put(J)), "the variable 'j' is not defined here"),
    "in a value": (For(I, N, put(I, cast(J, f32))), "the variable 'j' is not defined here"),
    "in a read": (For(I, N, put(I, A[J])), "the variable 'j' is not defined here"),
    "in a condition": (If(J < 3, put(const(0))), "the variable 'j' is not defined here"),
    "under else": (If(N < 3, put(const(0)), put()), "the variable 'i' is not defined here"),
    "of another range": (
        For(I, N, put(Var("i", lo=0))),
        "'i' is used with another type or range than it was bound with",
    ),
    "no buffer": (put(const(0), to=T), "the buffer 't' is not declared"),
    "no buffer that is read": (put(const(0), T[const(0)]), "the buffer 't' is not declared"),
    "buffer behind its place": (
        seq([Allocate(T, put(const(0), to=T)), put(const(0), to=T)]),
        "the buffer 't' is not declared",
    ),
    "allocated by no number": (Allocate(Buffer("t", f32, (J,)), put(const(0))), "the variable 'j' is not defined here"),
    "scope": (Allocate(Buffer("t", f32, (N,), "far"), put(const(0))), "has an unknown scope: expected one of global"),  # type: ignore[arg-type]
    "hardware": (
        For(I, N, put(), "thread", "threadIdx.w"),  # type: ignore[arg-type]
        "an unknown hardware index: expected one of blockIdx.x",
    ),
    "barrier": (Barrier("grid"), "a barrier of an unknown group: expected one of block, warp, got 'grid'"),  # type: ignore[arg-type]
    "hardware of a serial loop": (For(I, N, put(), "serial", "threadIdx.x"), "exactly if its kind is 'thread'"),
    "note of a function": (For(I, N, put(), notes=(MayAlias(),)), "loop 'i'"),  # type: ignore[arg-type]
    "a note twice": (For(I, N, put(), notes=(Unroll(2), Unroll(3))), "loop 'i'"),
    "sum": (put(const(0), te.sum(A[K.var], K)), "a reduction stands inside a loop program"),
    "region without dimensions": (
        Intrinsic("f", (Region(A, ()),), ()),
        "a region of A has the wrong number of dimensions",
    ),
    "region of an unknown buffer": (
        Intrinsic("f", (), (Region(T, ((const(0), N),)),)),
        "the buffer 't' is not declared",
    ),
    "region from 32 bits": (
        Intrinsic("f", (Region(A, ((const(0, i32), N),)),), ()),
        "a region's start is i32, not i64",
    ),
    "region of 32 bits": (
        Intrinsic("f", (), (Region(A, ((const(0), const(2, i32)),)),)),
        "a region's extent is i32, not i64",
    ),
    "binding": (For(I, N, block(BlockIter(J, N, "spatial", cast(I, i32)))), "the binding of j is i32, not i64"),
    "binding to nothing": (block(SPATIAL), "block 'b': the variable 'i' is not defined here"),
    "extent by a loop": (For(I, N, block(BlockIter(J, I, "spatial", I))), "block 'b': the variable 'i' is not defined"),
    "predicate": (For(I, N, block(SPATIAL, predicate=I)), "a condition is i64, not bool: i"),
    "predicate over iterators": (
        For(I, N, block(SPATIAL, predicate=J < 3)),
        "block 'b': the variable 'j' is not defined",
    ),
    "loop inside a block": (For(I, N, block(SPATIAL, body=put(I))), "block 'b': the variable 'i' is not defined here"),
    "start by a reduction": (For(I, N, block(REDUCE, init=put(J))), "block 'b', init: the variable 'j' is not defined"),
    "start of no reduction": (For(I, N, block(SPATIAL, init=put(const(0)))), "has an init but no reduction iterator"),
    "iterator bound twice": (For(I, N, block(SPATIAL, SPATIAL)), "block 'b': the variable 'j' is bound twice"),
    "thread's number": (put(TID), "the variable 'tid' is not defined here"),
    "sequence of one": (Seq((put(const(0)),)), "a sequence is nested or has one statement"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    body, message = WRONG[case]
    with pytest.raises(VerifyError) as caught:
        verify_func(PrimFunc("f", (A,), body, (B,)))
    assert message in str(caught.value)


def test_parameters_and_notes_of_a_function() -> None:
    body = put(const(0))
    parts = Buffer("P", f32, (NTHREADS,))
    verify_func(PrimFunc("f", (A, parts), put(TID, to=parts)))
    other = Buffer("C", f32, (Var("n", lo=0),))
    for func, message in (
        (PrimFunc("f", (A, other), body), "parameters: two symbols have one name"),
        (PrimFunc("f", (A, A), body), "parameters, buffer 'A': is declared twice"),
        (PrimFunc("f", (A,), body, (A,)), "buffers, buffer 'A': is declared twice"),
        (PrimFunc("f", (A,), body, (Buffer("C", f32, (J,)),)), "buffers, buffer 'C': the variable 'j' is not defined"),
        (PrimFunc("f", (A,), body, (Buffer("C", f32, (const(3, i32),)),)), "an extent is i32, not i64"),
        (PrimFunc("f", (A,), body, notes=(Workspaces(2),)), "more workspaces than parameters: expected <= 1, got 2"),
        (PrimFunc("f", (A,), body, notes=(Unroll(2),)), "notes"),  # type: ignore[arg-type]
        (PrimFunc("f", (A,), For(N, N, put(N))), "the variable 'n' is bound twice"),
    ):
        with pytest.raises(VerifyError) as caught:
            verify_func(func)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("extent", "problem"),
    [
        (const(3, i32), "the extent 3:i32 is i32, not i64"),
        (Load(Buffer("D", f32, (const(1),)), (const(0),)), "depends on data"),
        (N + J, "uses j, which is no symbol of the graph's inputs"),
    ],
)
def test_extents_of_values(extent: object, problem: str) -> None:
    x = value("x", dim=N)
    node = Node("op", (x,), (value("y", dim=extent),))
    with pytest.raises(VerifyError) as caught:
        verify_graph(Graph("g", (x,), (), (node,), (x,)))
    assert "node 0 (op), value 'y': the extent" in str(caught.value) and problem in str(caught.value)
    verify_graph(Graph("g", (x,), (), (Node("op", (x,), (value("y", dim=N * 2),)),), (x,)))
    if problem.startswith("uses"):
        verify_graph(Graph("g", (x,), (), (node,), (x,)), enclosing=(J,))


def test_values_are_defined_in_order() -> None:
    x, y, z = value("x"), value("y"), value("z")
    first, second = Node("a", (x, None), (y,)), Node("b", (y,), (z,))
    verify_graph(Graph("g", (x,), (), (first, second), (z, y)))
    for nodes, outputs, message in (
        ((second, first), (z,), "node 0 (b), value 'y': is used but not defined before"),
        ((first, first), (y,), "node 1 (a), value 'y': is defined twice"),
        ((first,), (z,), "outputs, value 'z': is used but not defined before"),
    ):
        with pytest.raises(VerifyError) as caught:
            verify_graph(Graph("g", (x,), (), nodes, outputs))
        assert message in str(caught.value)
    asked: list[str] = []
    wrong = Graph("g", (x, x), (), (first,), (y,))
    with pytest.raises(VerifyError):  # operators are asked of graphs whose values are right
        verify_graph(wrong, lambda node: asked.append(node.op) or [])
    assert asked == []
