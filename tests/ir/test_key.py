"""The dependences of a key: a program a line, each with one change to the one that all of them begin with."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tilewright.algorithms.winograd.selection import Winograd
from tilewright.ir.attributes import Attrs
from tilewright.ir.dtype import f32, i64
from tilewright.ir.expr import Buffer, Expr, Var, const
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.key import digest, key
from tilewright.ir.parser import parse_expr, parse_func
from tilewright.ir.selection import Direct, Selection

HEAD = "func @f(A: f32[n], B: f32[n]) where n in 1..8 "

FUNCTIONS = [
    HEAD + "{ A[0] = 1.0 }",
    HEAD + "@may_alias { A[0] = 1.0 }",
    HEAD + "@workspaces(count=1) { A[0] = 1.0 }",
    HEAD + "{ buffer C: f32[4] A[0] = 1.0 }",
    "func @f(A: f32[n], B: f32[n]) where n in 1..9 { A[0] = 1.0 }",
    "func @f(A: f32[n], B: f32[n]) where n in 1..8 % 2 { A[0] = 1.0 }",
    "func @f(A: f32[n], B: f32[n]) where n in 1..8 likely 4 { A[0] = 1.0 }",
    "func @f(A: f32[n], B: f32[n, 1]) where n in 1..8 { A[0] = 1.0 }",
    "func @f(A: f32[n], B: f64[n]) where n in 1..8 { A[0] = 1.0 }",
    "func @f(B: f32[n], A: f32[n]) where n in 1..8 { A[0] = 1.0 }",
    "func @f(A: f32[n]) where n in 1..8 { A[0] = 1.0 }",
    HEAD + "{ A[1] = 1.0 }",
    HEAD + "{ A[0] = -1.0 }",
    HEAD + "{ A[0] = 0.0 }",
    HEAD + "{ A[0] = -0.0 }",
    HEAD + "{ A[0] = A[0] }",
    HEAD + "{ A[0] = B[0] }",
    HEAD + "{ A[0] = A[0] + B[0] }",
    HEAD + "{ A[0] = A[0] - B[0] }",
    HEAD + "{ A[0] = B[0] - A[0] }",
    HEAD + "{ A[0] = f32(i32(A[0])) }",
    HEAD + "{ A[0] = f32(i64(A[0])) }",
    HEAD + "{ A[0] = 1.0 A[1] = 2.0 }",
    HEAD + "{ A[1] = 2.0 A[0] = 1.0 }",
    HEAD + "{ for i in 0..n { A[i] = 1.0 } }",
    HEAD + "{ for i in 0..4 { A[i] = 1.0 } }",
    HEAD + "{ for i in 0..n { A[0] = 1.0 } }",
    HEAD + "{ for i in 0..n unrolled { A[i] = 1.0 } }",
    HEAD + "{ for i in 0..n thread(blockIdx.x) { A[i] = 1.0 } }",
    HEAD + "{ for i in 0..n thread(threadIdx.x) { A[i] = 1.0 } }",
    HEAD + "{ for i in 0..n @unroll(times=2) { A[i] = 1.0 } }",
    HEAD + "{ for i in 0..n @unroll(times=3) { A[i] = 1.0 } }",
    HEAD + "{ for i in 0..n { A[i] = 1.0 } A[0] = 2.0 }",
    HEAD + "{ for i in 0..n { A[i] = 1.0 A[0] = 2.0 } }",
    HEAD + "{ let x = A[0] { A[0] = x } }",
    HEAD + "{ let x = A[0] { A[0] = A[0] } }",
    HEAD + "{ let x = A[1] { A[0] = x } }",
    HEAD + "{ if A[0] < 1.0 { A[0] = 1.0 } }",
    HEAD + "{ if A[0] <= 1.0 { A[0] = 1.0 } }",
    HEAD + "{ if A[0] < 1.0 { A[0] = 2.0 } }",
    HEAD + "{ if A[0] < 1.0 { A[0] = 1.0 } else { A[0] = 2.0 } }",
    HEAD + "{ if A[0] < 1.0 { A[0] = 2.0 } else { A[0] = 1.0 } }",
    HEAD + "{ if A[0] < 1.0 { A[0] = 1.0 } A[0] = 2.0 }",
    HEAD + "{ alloc T: f32[4] { T[0] = 1.0 } }",
    HEAD + "{ alloc T: f32[4] in local { T[0] = 1.0 } }",
    HEAD + "{ alloc T: f32[4] align 64 { T[0] = 1.0 } }",
    HEAD + "{ alloc T: f32[4] { A[0] = 1.0 } }",
    HEAD + "{ alloc T: f32[4] { T[0] = 1.0 } A[0] = 1.0 }",
    HEAD + "{ alloc T: f32[4] { T[0] = 1.0 A[0] = 1.0 } }",
    HEAD + "{ call dot(A[0 +: 4]; B[0 +: 4]) }",
    HEAD + "{ call dor(A[0 +: 4]; B[0 +: 4]) }",
    HEAD + "{ call dot(B[0 +: 4]; A[0 +: 4]) }",
    HEAD + "{ call dot(A[0 +: 4]; B[0 +: 4], B[0 +: 4]) }",
    HEAD + "{ call dot(A[0 +: 4], B[0 +: 4];) }",
    HEAD + "{ call dot(;A[0 +: 4], B[0 +: 4]) }",
    HEAD + "{ call dot(A[1 +: 4]; B[0 +: 4]) }",
    HEAD + "{ call dot(A[0 +: 5]; B[0 +: 4]) }",
    HEAD + "{ block b (v = spatial(4): 0) { A[v] = 1.0 } }",
    HEAD + "{ block b (v = reduce(4): 0) { A[v] = 1.0 } }",
    HEAD + "{ block b (v = spatial(5): 0) { A[v] = 1.0 } }",
    HEAD + "{ block b (v = spatial(4): 1) { A[v] = 1.0 } }",
    HEAD + "{ block b (v = spatial(4): 0, w = spatial(4): 0) { A[v] = 1.0 } }",
    HEAD + "{ block b (w = spatial(4): 0, v = spatial(4): 0) { A[v] = 1.0 } }",
    HEAD + "{ block b (v = spatial(4): 0) if n < 3 { A[v] = 1.0 } }",
    HEAD + "{ block b (v = spatial(4): 0) { init { A[v] = 0.0 } A[v] = 1.0 } }",
    HEAD + "{ block b (v = spatial(4): 0) { init { A[v] = 1.0 } A[v] = 1.0 } }",
]
"""Programs that differ in what they do, or in what is said of them."""


def test_all_of_a_function_counts() -> None:
    keys: dict[str, str] = {}
    for text in FUNCTIONS:
        func = parse_func(text)
        assert parse_func(str(func)) == func
        assert keys.setdefault(key(func), text) == text
    assert len(keys) == len(FUNCTIONS)


@pytest.mark.parametrize("text", FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_names_do_not_count(text: str) -> None:
    words = {"@f": "@g", "A": "X", "B": "Y", "C": "Z", "T": "U", "n": "size", "i": "k", "x": "y", "v": "p", "w": "q"}
    renamed = re.sub(r"@?[A-Za-z]\w*(\.\w+)?", lambda word: words.get(word[0], word[0]), text)
    assert renamed != text and key(parse_func(renamed)) == key(parse_func(text))


SUM = "reduce(sum(a: f32; b: f32) -> (a + b) from (0.0) over k in 0..8 of D[k])"
REDUCTIONS = [
    SUM,
    SUM.replace("a + b", "a - b"),
    SUM.replace("a + b", "b + a"),
    SUM.replace("(0.0)", "(1.0)"),
    SUM.replace("0..8", "0..7"),
    SUM.replace("0..8", "0..8, j in 0..2"),
    SUM.replace("D[k]", "D[k + 1]"),
    SUM.replace("D[k]", "D[k] if k < 3"),
    SUM.replace("D[k]", "D[k] if k < 4"),
    "reduce(two(a: f32, c: f32; b: f32, d: f32) -> (a + b, c + d) from (0.0, 0.0) over k in 0..8 of D[k], D[k])",
    "reduce(two(a: f32, c: f32; b: f32, d: f32) -> (a + b, c + d) from (0.0, 0.0) over k in 0..8 of D[k], D[k] at 1)",
]


def test_reductions() -> None:
    """Keys of a tensor expression, before it becomes loops."""
    d, e = (Buffer(name, f32, (const(9),)) for name in "DE")
    parsed = [parse_expr(text, buffers=[d]) for text in REDUCTIONS]
    assert [str(e) for e in parsed] == REDUCTIONS and len({key(e) for e in parsed}) == len(REDUCTIONS)
    other = parse_expr("reduce(add(x: f32; y: f32) -> (x + y) from (0.0) over m in 0..8 of E[m])", buffers=[e])
    assert key(other) == key(parsed[0])


@dataclass(frozen=True, slots=True)
class Inner(Attrs):
    body: Graph


N, M = Var("n", lo=1), Var("m", lo=1)


def value(name: str, *shape: Expr | int) -> Value:
    return Value(name, TensorType(f32, tuple(d if isinstance(d, Expr) else const(d) for d in shape)))


def loop(op: str = "relu", shape: tuple[Expr | int, ...] = (4,), names: str = "ab", outer: Expr | int = 4) -> Graph:
    """A graph with another one inside."""
    a, b = (value(name, *shape) for name in names)
    body = Graph("body", (a,), (), (Node(op, (a,), (b,)),), (b,))
    x, y = value("x", outer), value("y", outer)
    return Graph("g", (x,), (), (Node("loop", (x,), (y,), Inner(body)),), (y,))


def test_graphs_inside_graphs() -> None:
    """Graphs inside graphs have values of their own; symbols are those around them."""
    assert key(loop(names="xy")) == key(loop(names="pq")) == key(loop())
    assert len({key(g) for g in (loop(), loop("exp"), loop(shape=(5,)), loop(shape=(4, 1)))}) == 4
    assert key(loop(shape=(N,), outer=N)) == key(loop(shape=(M,), outer=M)) != key(loop(shape=(N,), outer=M))


def test_what_is_chosen_for_a_node_counts() -> None:
    x, y = value("x", 4), value("y", 4)
    chosen = [None, Selection(), Selection(None, "bf16"), Selection(Direct()), Selection(Direct(), "bf16")]
    chosen += [Selection(Winograd(*numbers)) for numbers in ((4, 32, 2), (6, 32, 2), (4, 16, 2), (4, 32, 1))]
    nodes = [Node("conv", (x,), (y,), selected=s) for s in chosen]
    assert len({key(Graph("g", (x,), (), (n,), (y,))) for n in nodes}) == len(chosen)


def test_digests_tell_lists_separate() -> None:
    lists = [["ab"], ["a", "b"], ["", "ab"], ["ab", ""], ["a,b"], [], [""]]
    assert len({digest(x) for x in lists}) == len(lists)


def test_what_has_no_key() -> None:
    for thing in (i64, "text", None):
        with pytest.raises(TypeError, match="no key for a"):
            key(thing)  # type: ignore[arg-type]
