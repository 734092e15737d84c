"""Law 2: keys are equal under renaming and differ under any other change."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.generators import OneAttr, canonical, exprs, funcs, graphs, map_raw, renamed_func
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import ALL, f32, f64, i32, i64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Var, const
from tilewright.ir.graph import Graph, Node, TensorType, Value
from tilewright.ir.key import key
from tilewright.ir.loops import Block, For, PrimFunc, Stmt
from tilewright.ir.notes import SingleThread, Unroll, with_note
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import map_stmt
from tilewright.ir.selection import Selection

X = Var("x", f32)


@given(funcs())
def test_renaming_a_function_keeps_its_key(func: PrimFunc) -> None:
    other = renamed_func(func, lambda name: name[::-1] + "'")
    assert key(other) == key(func)


NAMED_AS_ITS_BUFFER = parse_func("func @A(A: f32[]) { for i in 0..1 { call f(;) } }")
NAMED_OTHERWISE = parse_func("func @f(A: f32[]) { for i in 0..1 { call f(;) } }")


@given(funcs(), funcs())
@example(NAMED_AS_ITS_BUFFER, NAMED_OTHERWISE)
def test_different_functions_have_different_keys(a: PrimFunc, b: PrimFunc) -> None:
    assert (key(a) == key(b)) == (canonical(a) == canonical(b))


@given(funcs(), st.data())
def test_a_change_changes_the_key(func: PrimFunc, data: Any) -> None:
    changed = data.draw(st.sampled_from(CHANGES))(func)
    assume(changed is not None and canonical(changed) != canonical(func))
    assert key(changed) != key(func)


@given(st.data())
def test_expressions(data: Any) -> None:
    dtype = data.draw(st.sampled_from(ALL))
    variables, buffers = [Var("i"), X], [Buffer("A", f32, (const(4),))]
    a = data.draw(exprs(dtype, variables, buffers))

    def rename(e: Expr) -> Expr | None:
        if isinstance(e, Var):
            return Var(e.name + "_new", e.dtype)
        return Load(replace(e.buffer, name="B"), e.indices) if isinstance(e, Load) else None

    assert key(map_raw(a, rename, {})) == key(a)


@given(graphs())
def test_graphs(graph: Graph) -> None:
    values: dict[Value, Value] = {}

    def new(v: Value) -> Value:
        return values.setdefault(v, Value(v.name + "/new", v.type))

    nodes = tuple(
        replace(n, inputs=tuple(None if v is None else new(v) for v in n.inputs), outputs=tuple(map(new, n.outputs)))
        for n in graph.nodes
    )
    inputs, params, outputs = (tuple(map(new, side)) for side in (graph.inputs, graph.params, graph.outputs))
    assert key(Graph("other", inputs, params, nodes, outputs)) == key(graph)
    longer = Node("added", (), ())
    assert key(replace(graph, nodes=(*graph.nodes, longer))) != key(graph)
    for i, node in enumerate(graph.nodes):
        other = Selection() if node.selected is None else None
        for changed in (replace(node, op=node.op + "x"), replace(node, selected=other)):
            assert key(replace(graph, nodes=(*graph.nodes[:i], changed, *graph.nodes[i + 1 :]))) != key(graph)


def test_attributes_of_a_graph_count() -> None:
    value = Value("x", TensorType(f32, (const(4),)))

    def with_attr(v: Any) -> str:
        return key(Graph("g", (value,), (), (Node("op", (value,), (), OneAttr(v)),), (value,)))

    attrs: list[Any] = [
        1,
        1.0,
        True,
        "1",
        None,
        (),
        (1,),
        ((1,),),
        f32,
        f64,
        const(1),
        const(1, i32),
        -0.0,
        0.0,
        ("1",),
    ]
    attrs += [ConstantArray(np.array(x)) for x in ([1.0], [[1.0]], [2.0], [1])]
    assert len({with_attr(a) for a in attrs}) == len(attrs)


def test_a_digest_is_the_same_in_another_process() -> None:
    text = (
        "from tilewright.ir.key import key; from tilewright.ir.parser import parse_func;"
        "print(key(parse_func('func @f(A: f32[n]) where n in 1..8 { for i in 0..n { A[i] = 1.0 } }')))"
    )
    prints = {
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, env=env).stdout
        for env in ({"PYTHONHASHSEED": "1", "PYTHONPATH": "src"}, {"PYTHONHASHSEED": "2", "PYTHONPATH": "src"})
    }
    assert len(prints) == 1
    assert len(prints.pop().strip()) == 32


# Ways to change a function; None where there is nothing to change.


def _change_constant(func: PrimFunc) -> PrimFunc | None:
    def on(e: Expr) -> Expr | None:
        return Const(e.value + 1, i64) if isinstance(e, Const) and e.dtype is i64 and e.value < 100 else None

    memo: dict[Expr, Expr] = {}
    return func.with_body(map_stmt(func.body, lambda s: None, lambda e: map_raw(e, on, memo)))


def _change_stmt(func: PrimFunc, f: Any) -> PrimFunc | None:
    return func.with_body(map_stmt(func.body, f))


def _kind(s: Stmt) -> Stmt | None:
    return replace(s, kind="unrolled" if s.kind == "serial" else "serial", thread=None) if isinstance(s, For) else None


def _annotate(s: Stmt) -> Stmt | None:
    return replace(s, notes=with_note(s.notes, Unroll(1000))) if isinstance(s, For) else None


def _iters(s: Stmt) -> Stmt | None:
    if not isinstance(s, Block):
        return None
    swap = {"spatial": "reduce", "reduce": "spatial"}
    return replace(s, iters=tuple(replace(it, kind=swap[it.kind]) for it in s.iters))  # type: ignore[arg-type]


CHANGES = [
    _change_constant,
    lambda f: _change_stmt(f, _kind),
    lambda f: _change_stmt(f, _annotate),
    lambda f: _change_stmt(f, _iters),
    lambda f: replace(f, notes=with_note(f.notes, SingleThread())),
    lambda f: replace(f, params=f.params[::-1]),
    lambda f: replace(f, buffers=(*f.buffers, Buffer("_new", f32, ()))),
]
