"""Programs as text, and errors about text that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tilewright import te
from tilewright.ir.attributes import Attrs, ConstantArray, Dims
from tilewright.ir.dtype import BY_NAME, DType, bf16, f16, f32, i32
from tilewright.ir.expr import Buffer, Expr, Op, Var, cast, const, equal, select
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType
from tilewright.ir.loops import Allocate, Barrier, For, If, Intrinsic, Let, PrimFunc, Region, Store, seq
from tilewright.ir.notes import MayAlias, Unroll, Workspaces
from tilewright.ir.parser import parse_expr, parse_func, parse_graph, parse_stmt
from tilewright.ir.printer import stmt_text
from tilewright.support.errors import ParseError

i, j, n = Var("i"), Var("j"), Var("n", lo=1, hi=1024, multiple=8)
x = Var("x", f32)
A = Buffer("A", f32, (n,))
VARIABLES = [n, x, Var("h", f16)]


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (i + j * 2 - 1, "i + j * 2 - 1"),
        ((i + j) * 2, "(i + j) * 2"),
        (i - (j - 1), "i - (j - 1)"),
        (i // 4 % 3, "i // 4 % 3"),
        (i // (j % 3), "i // (j % 3)"),
        (-(i + 1), "-(i + 1)"),
        (-i * 2, "-i * 2"),
        (Op("neg", (const(3),)), "-(3)"),
        (const(-3) * i, "-3 * i"),
        (i + -3, "i + -3"),
        ((i < n) & (j >= 0) | (i > j), "i < n and j >= 0 or i > j"),
        (~((i < n) & (j < n)), "not (i < n and j < n)"),
        ((i < j) & ~(j < i), "i < j and not j < i"),
        (equal(i < n, j < n), "(i < n) == (j < n)"),
        (select(i < n, A[i], 0.0), "select(i < n, A[i], 0.0)"),
        (cast(i, f32) * x, "f32(i) * x"),
        (const(3, i32), "3:i32"),
        (const(0.5, bf16), "0.5:bf16"),
        (const(float("-inf")), "-inf"),
        (const(float("nan"), f16), "nan:f16"),
        (const(-0.0), "-0.0"),
        (const(True), "true"),
        (Op("bitcast", (x,), i32), "bitcast(x, i32)"),
        (Op("fma", (x, x, const(1.0))), "fma(x, x, 1.0)"),
    ],
)
def test_expression(expr: Expr, text: str) -> None:
    assert str(expr) == text
    assert parse_expr(text, VARIABLES, [A]) is expr


def test_long_sums_print_and_parse() -> None:
    total: Expr = i
    for k in range(900):
        total = total + Var(f"v{k}")
    assert parse_expr(str(total)) is total


def test_shared_parts_are_printed_once() -> None:
    power: Expr = x + 1.0
    for _ in range(60):
        power = power * power - x
    text = str(power)
    assert text.startswith("(&60 := (&59 := ")
    assert len(text) < 2000
    assert parse_expr(text, VARIABLES) is power
    stored = Store(Buffer("R", f32, (const(2),)), (const(0),), power)
    twice = seq([stored, Store(stored.buffer, (const(1),), power * 2.0)])
    assert parse_stmt(str(twice), VARIABLES, [stored.buffer]) == twice
    with pytest.raises(ParseError, match="no part of this number came before"):
        parse_expr("&1 + (&1 := x)", VARIABLES)


def test_reduction_of_a_tensor_expression() -> None:
    k = Var("k")
    data = Buffer("D", f32, (const(8),))
    stage = te.sum(te.placeholder((8,), name="D")[k], te.IterVar(k, const(8), "reduce", "k"), where=k < 7)
    text = str(stage)
    assert text == "reduce(sum(lhs0: f32; rhs0: f32) -> (lhs0 + rhs0) from (0.0) over k in 0..8 of D[k] if k < 7)"
    assert str(parse_expr(text, buffers=[data])) == text


def matmul() -> PrimFunc:
    m = te.var("m", hi=64)
    a, b = te.placeholder((m, 32), name="A"), te.placeholder((32, 16), name="B")
    k = te.reduce_axis(32, "k")
    c = te.compute((m, 16), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="C")
    d = te.compute((m, 16), lambda i, j: te.maximum(c[i, j], 0.0), name="D")
    return te.create_prim_func([a, b, d], "matmul_relu")


def test_function(golden: Callable[..., None]) -> None:
    func = matmul()
    golden(str(func))
    assert parse_func(str(func)) == func


def test_every_statement(golden: Callable[..., None]) -> None:
    t, y = Buffer("T", f32, (const(4),), "local", 64), Var("y", f32)
    inner = Var("k")
    body = seq(
        [
            Allocate(t, For(inner, const(4), Store(t, (inner,), A[inner]), "vectorized", None, (Unroll(2),))),
            Let(y, A[0] * 2.0, Store(A, (const(0),), y)),
            For(
                i,
                n,
                If(
                    i < 4, Store(A, (i,), const(1.0)), If(i < 8, Store(A, (i,), const(2.0)), Store(A, (i,), const(3.0)))
                ),
                "parallel",
            ),
            For(
                Var("b"),
                const(2),
                seq([Intrinsic("dot", (Region(A, ((Var("b") * 4, const(4)),)),), ()), Barrier(), Barrier("warp")]),
                "thread",
                "blockIdx.x",
            ),
            Let(Var("last"), n - 1, Store(A, (Var("last"),), const(0.0))),
        ]
    )
    func = PrimFunc("all of it", (A,), body, notes=(MayAlias(), Workspaces(1)))
    golden(str(func))
    assert parse_func(str(func)) == func
    assert parse_stmt(stmt_text(body), VARIABLES, [A]) == body


@dataclass(frozen=True, slots=True)
class Transposed(Attrs):
    transpose_a: bool = False
    transpose_b: bool = False


@dataclass(frozen=True, slots=True)
class Shaped(Attrs):
    shape: Dims


@dataclass(frozen=True, slots=True)
class Various(Attrs):
    value: ConstantArray
    to: DType
    name: str
    none: int | None
    alpha: float


@dataclass(frozen=True, slots=True)
class Sized(Attrs):
    sizes: ConstantArray


@dataclass(frozen=True, slots=True)
class Looped(Attrs):
    body: Graph
    size: int | Expr


KINDS = {"matmul": Transposed, "reshape": Shaped, "constant": Various, "split": Sized, "loop": Looped}


def read_graph(text: str) -> Graph:
    return parse_graph(text, lambda op: KINDS.get(op, Attrs))


def test_graph(golden: Callable[..., None]) -> None:
    g = GraphBuilder()
    batch = Var("batch", lo=1, hi=64)
    a = g.input("obs/x:0", TensorType(f32, (batch, const(17))))
    w = g.param("12", TensorType(f32, (const(64), const(17))))
    (h,) = g.node("matmul", (a, w), (TensorType(f32, (batch, const(64))),), Transposed(transpose_b=True), ("h",))
    shape = (batch * 2, 32, const(3, i32))
    (r,) = g.node("reshape", (h, None), (TensorType(f32, (batch * 2, const(32)), "NC16c"),), Shaped(shape), ("r",))
    table = np.array([[1.0, -0.0], [np.nan, 0.1]], np.float32)
    attrs = Various(table, f16, 'a "b"', None, 1e-5)
    (c,) = g.node("constant", (), (TensorType(f32, (const(2), const(2))),), attrs)
    big = np.zeros(300, np.int8)
    s, t = g.node("split", (r, c), (TensorType(f32, ()), TensorType(f32, ())), Sized(big))
    graph = g.finish((s, t, h))
    golden(str(graph))
    assert read_graph(str(graph)) == graph


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func @f(A: f32[n]) { A[0] = B[0] }", "<text>:1:29: no buffer is named 'B'"),
        ("func @f(A: f32[n]) {\n  A[0] = 1\n}", "<text>:2:3: storing i64 into A of f32"),
        ("func @f(A: f32[n]) {\n  A[0, 1] = 1.0\n}", "<text>:2:3: A has 1 dimensions, not 2"),
        ("func @f(A: f32[n]) { for i in 1..n { } }", "<text>:1:31: ranges start at 0"),
        (
            "func @f(A: f32[n]) { A[0] = 1.0",
            "<text>:1:32: cannot read this: expected a statement, got the end of the text",
        ),
        ("func @f(A: f99[n]) { }", "<text>:1:12: cannot read this: expected an element type, got 'f99'"),
        ("func @f(A: f32[n]) where n in 1..2, n in 1..3 { }", "<text>:1:37: 'n' is described twice"),
        ("func @f(A: f32[1], A: f32[1]) { }", "<text>:1:20: a second buffer named 'A'"),
        ("func @f(A: f32[n]) { A[0] = exq(A[0]) }", "<text>:1:29: no scalar operator is named 'exq'"),
        ("func @f(A: f32[n]) { A[0] = exp(A[0], A[0]) }", "<text>:1:29: exp takes 1 arguments, got 2"),
        ("func @f(A: f32[n]) { A[0] = A[0] + 1 }", "<text>:1:34: add: argument types do not agree: f32, i64"),
        ("func @f(A: i8[n]) { A[0] = 300:i8 }", "<text>:1:28: 300 does not fit i8"),
        ("func @f(A: f32[n]) { if 0 < n < 3 { } }", "<text>:1:31: comparisons do not chain; use parentheses"),
        (
            "func @f(A: f32[n]) { A[0] = nan(12) }",
            "<text>:1:33: cannot read this: expected the 64 bits of a NaN as 0x..., got '12'",
        ),
        (
            "func @f(A: f32[n]) { A[0] = nan(0x10000000000000000) }",
            "<text>:1:33: cannot read this: expected the 64 bits of a NaN as 0x..., got '0x10000000000000000'",
        ),
        (
            "func @f(A: f32[n]) { A[0] = nan(0x7ff0000000000000) }",
            "<text>:1:33: these bits are not a NaN",
        ),
        ("func @f(A: f32[n]) { } x", "<text>:1:24: text after the end: expected nothing more, got 'x'"),
        ("func @f(A: f32[n]) { A[0] = 1.5:i8 }", "<text>:1:29: 1.5 is not an integer"),
        (
            "func @f(A: f32[n]) { block b (v = both(4): 0) { } }",
            "<text>:1:35: cannot read this: expected 'spatial' or 'reduce', got 'both'",
        ),
        ("func @f(A: f32[n]) { call g(A[0 +: 1, 0 +: 1];) }", "<text>:1:29: A has 1 dimensions, not 2"),
        ("func @f(A: f32[n]) where n % x { }", "<text>:1:30: cannot read this: expected an integer, got 'x'"),
        ("func @f(A: f32[n]) { A[0] = exp(A[0] }", "<text>:1:38: cannot read this: expected ',' or ')', got '}'"),
        ("func @f(A: f32[n]) ~ { }", "<text>:1:20: unexpected character '~'"),
    ],
)
def test_function_errors(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_func(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "graph @g(%x: f32[2]) {\n  %y = conv(%x) by winograd {panels = 1, tile = 4, width = 32} in fp32 : f32[2]\n"
        "  %z = conv(%y) by direct in bf16 : f32[2]\n  %w = matmul(%z) {transpose_a = true} in int8 : f32[2]\n"
        "  return %w\n}",
        "graph @g(%x: f32[n]) where n in ..8, k in 3.. {\n  print(%x)\n  %y = shape(%x) : f32[k]\n  return %y\n}",
        'graph @g() { %y = constant() {alpha = nan, name = "", "none" = none, to = f16, value = array f32[] (1.0)}'
        " : f32[] return %y }",
        "graph @g(%x: f32[n]) where n in 1.. {\n"
        "  %y = loop(%x) {body = graph @step(%x: f32[n]) { %z = relu(%x) : f32[n] return %z }, size = $(n * 2)}"
        " : f32[n]\n  return %y\n}",
    ],
)
def test_graphs_read_back(text: str) -> None:
    """Selections, nodes without outputs, bounds of all kinds, graphs inside graphs, attributes that are no numbers."""
    graph = read_graph(text)
    assert read_graph(str(graph)) == graph
    assert " ".join(str(graph).split()) == " ".join(text.split())


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.array([True, False]), "array bool[2] (true, false)"),
        (np.array([255, 0], np.uint8), "array u8[2] (255, 0)"),
        (np.array([2**64 - 1], np.uint64), "array u64[1] (18446744073709551615)"),
        (np.array([-(2**63)]), "array i64[1] (-9223372036854775808)"),
        (np.array([1.0, 0.1, np.inf, -0.0], np.float16), "array f16[4] (1.0, 0.1, inf, -0.0)"),
        (np.array([0x7FC00001], np.uint32).view(np.float32), "array f32[1] (0x7fc00001)"),
        (np.array([1.0, -2.0]).astype(bf16.numpy), "array bf16[2] (1.0, -2.0)"),
        (np.array([1.0]).astype(BY_NAME["f8e4m3fn"].numpy), "array f8e4m3fn[1] (0x38)"),
        (np.array(0.1), "array f64[] (0.1)"),
        (np.zeros((0, 3), np.float32), "array f32[0, 3] ()"),
        (np.arange(300, dtype=">i2"), None),
    ],
)
def test_elements_of_arrays(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], text: str | None) -> None:
    """The shortest text that gives the same bits back; many as base64, the lowest byte first."""
    graph = Graph("g", (), (), (Node("split", (), (), Sized(ConstantArray(values))),), ())
    read = read_graph(str(graph)).nodes[0].attrs
    assert (
        isinstance(read, Sized)
        and read.sizes.array.tobytes() == values.astype(values.dtype.newbyteorder("<")).tobytes()
    )
    assert read.sizes.array.shape == values.shape
    if text is not None:
        assert f"sizes = {text}" in str(graph)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph @g(%x: f32[2]) { return %y }", "<text>:1:31: no value is named 'y'"),
        ("graph @g(%x: f32[2]) { %x = relu(%x) : f32[2] return %x }", "<text>:1:24: a second value named 'x'"),
        ("graph @g(%x: f32[2]) { %y = a(%x) {b = 1, a = 1} : f32[2] return }", "attributes are sorted by name"),
        ("graph @g() { %y = c() {v = array f32[3] (1.0)} : f32[3] return }", "an array of shape [3] has 3 elements"),
        ("graph @g() { %y = c() {v = array i8[1] (300)} : f32[3] return }", "300 does not fit i8"),
        ("graph @g() { %y = c() {v = array i8[-1] ()} : f32[3] return }", "an array's extents are not negative"),
        ("graph @g() { %y = c() {v = array i8[1] (0x100)} : f32[3] return }", "0x100 has more bits than i8"),
        ("graph @g() { %y = c() {v = array i8[1] (1.0)} : f32[3] return }", "1.0 is not of type i8"),
        ("graph @g() { %y = c() {v = array i8[1] (true)} : f32[3] return }", "true is not of type i8"),
        ("graph @g() { %y = c() {v = array bool[1] (1)} : f32[3] return }", "1 is not of type bool"),
        ('graph @g() { %y = c() {v = array i8[1] "A"} : f32[3] return }', "malformed base64"),
        ("graph @g() { %y = c() {v = yes} : f32[3] return }", "expected a number, true, false or a string, got 'yes'"),
        ("graph @g() { %y = c() {v = $yes(1)} : f32[3] return }", "no scalar operator is named 'yes'"),
        ('graph @g() { %y = c() {v = array bool[1] "Ag=="} : f32[3] return }', "bool elements are 0 or 1"),
        ('graph @g() { %y = c() {v = array f32[99999999999] ""} : f32[3] return }', "has 99999999999 elements"),
        (
            "graph @g(%x: f32[2]) { %y = matmul(%x) {transposed = true} : f32[2] return }",
            "<text>:1:29: has no attribute 'transposed': expected transpose_a, transpose_b, got transposed",
        ),
        (
            "graph @g(%x: f32[2]) { %y = reshape(%x) : f32[2] return }",
            "<text>:1:29: needs the attribute 'shape': expected shape",
        ),
        (
            "graph @g(%x: f32[2]) { %y = reshape(%x) {shape = [2.0]} : f32[2] return }",
            "attribute 'shape' of Shaped is of the wrong type: expected (int | Expr, ...), got (2.0,)",
        ),
        (
            "graph @g(%x: f32[2]) { %y = matmul(%x) by hand in fp32 : f32[2] return }",
            "<text>:1:43: no such algorithm: expected ",
        ),
        (
            "graph @g(%x: f32[2]) { %y = matmul(%x) by direct {tile = 4} in fp32 : f32[2] return }",
            "<text>:1:43: has no attribute 'tile': expected no attributes, got tile",
        ),
        (
            "graph @g(%x: f32[2]) { %y = matmul(%x) in fp8 : f32[2] return }",
            "no such precision: expected fp32, bf16, fp16, int8, int8w, int4w, got fp8",
        ),
        (
            "graph @g(%x: f32[2]) { %y = softmax(%x) {axis = 1:i32} : f32[2] return }",
            "cannot read this: expected a number, true, false or a string, got '1:i32'",
        ),
        ("graph @g(%x: f32[2]) { return %x", "expected ',' or '}', got the end of the text"),
    ],
)
def test_graph_errors(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        read_graph(text)
    assert message in str(caught.value)


def test_algorithms_are_listed_where_there_is_no_such() -> None:
    """All that there are, those of folders among them, in the order of their names."""
    with pytest.raises(ParseError) as caught:
        read_graph("graph @g(%x: f32[2]) { %y = matmul(%x) by hand in fp32 : f32[2] return }")
    names, got = caught.value.expected.split(", "), caught.value.got
    assert got == "hand" and names == sorted(set(names))
    assert {"attention_tiles", "direct", "packed", "strassen", "taps", "winograd"} <= set(names)


@pytest.mark.parametrize("opening", ["(", "-", "A[", "not ", "f32(", "i + (", "- -", "select(true, 1, "])
def test_deep_nesting_is_refused(opening: str) -> None:
    with pytest.raises(ParseError, match="nested"):
        parse_expr(opening * 20_000, buffers=[A])


def test_deep_statements_are_refused() -> None:
    for opening in ("if true {", "for i in 0..4 {", "block b () {", "if true { } else "):
        with pytest.raises(ParseError):
            parse_stmt(opening * 10_000)


def test_huge_numbers_are_refused() -> None:
    with pytest.raises(ParseError, match="digits"):
        parse_expr("9" * 10_000)
    with pytest.raises(ParseError, match="operators in a row"):
        parse_expr("1 + " * 20_000 + "1")
