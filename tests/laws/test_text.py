"""Law 1: what is printed parses back to the same program. Hostile text gives a ParseError, nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.generators import exprs, funcs, graphs, kind_of
from tilewright.ir.dtype import ALL, f16, f32, i8
from tilewright.ir.expr import Buffer, Expr, Op, Var, const
from tilewright.ir.graph import Graph
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_expr, parse_func, parse_graph
from tilewright.ir.verify import verify_func, verify_graph
from tilewright.support.errors import ParseError

N = Var("n", lo=1, hi=64)
VARIABLES = [N, Var("i"), Var("x", f32), Var("for"), Var("h", f16)]
BUFFERS = [Buffer("A", f32, (N, const(4))), Buffer("b 1", i8, ())]


def read_graph(text: str) -> Graph:
    return parse_graph(text, kind_of)


def read_func(text: str) -> PrimFunc:
    return parse_func(text, kind_of)


@given(st.data())
def test_expressions_round_trip(data: Any) -> None:
    e = data.draw(exprs(data.draw(st.sampled_from(ALL)), VARIABLES, BUFFERS, 4))
    assert parse_expr(str(e), VARIABLES, BUFFERS) is e


@given(
    exprs(f32, VARIABLES, BUFFERS, 3), st.lists(st.sampled_from(["add", "sub", "mul", "min", "select"]), max_size=20)
)
def test_expressions_with_shared_parts_round_trip(e: Expr, names: list[str]) -> None:
    parts = [e, e]
    for name in names:
        args = (parts[-1], parts[-2]) if len(parts) % 2 else (parts[-1], parts[-1])
        parts.append(Op(name, args) if name != "select" else Op(name, (Op("lt", args), *args)))
    assert parse_expr(str(parts[-1]), VARIABLES, BUFFERS) is parts[-1]


@given(funcs())
def test_functions_round_trip(func: PrimFunc) -> None:
    verify_func(func)
    assert read_func(str(func)) == func


@given(graphs())
def test_graphs_round_trip(graph: Graph) -> None:
    verify_graph(graph)
    assert read_graph(str(graph)) == graph


@given(st.one_of(funcs().map(str), graphs().map(str)), st.data())
def test_damaged_text_is_refused_or_read(text: str, data: Any) -> None:
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 20))
    insert = data.draw(
        st.sampled_from(["", "(", ")", "[", "{", "}", "0", "-", "%", '"', "for", "@", "1e999", "\0", "é"])
    )
    damaged = text[:at] + insert + text[at + length :]
    for parse in (read_func, read_graph):
        try:
            parse(damaged)
        except ParseError as error:
            assert str(error).startswith("<text>:")


@given(st.text(alphabet='()[]{}-+*/%<>=,:;.0123456789abfinx \n"\\', max_size=60))
def test_any_text_is_refused_or_read(text: str) -> None:
    for parse in (parse_expr, read_func, read_graph):
        with suppress(ParseError):
            parse(text)
