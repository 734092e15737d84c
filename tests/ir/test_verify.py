"""Each rule of the verifier on a program that breaks it; all problems are listed at once."""

from __future__ import annotations

import pytest

from tilewright.ir.dtype import f32, f64
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.loops import PrimFunc, Seq
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
