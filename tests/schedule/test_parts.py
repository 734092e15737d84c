"""Parts of primitives by themselves: what a tile needs, what a reduction does, what an instruction may be."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tests.schedule.programs import assert_same
from tilewright import te
from tilewright.arith import simplify
from tilewright.ir.dtype import f32, f64, i32
from tilewright.ir.expr import Buffer, Expr, Op, Var, as_int, const
from tilewright.ir.loops import Block, Intrinsic, PrimFunc, Region
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import substitute
from tilewright.schedule import Schedule
from tilewright.schedule.boxes import clip, covered
from tilewright.schedule.combination import combination
from tilewright.schedule.dependence import reduction_update
from tilewright.schedule.expand import _fraction, _term
from tilewright.schedule.find import find_all
from tilewright.schedule.intrinsics import (
    DOT_4X4X4_F32,
    TensorIntrin,
    describe,
    expand,
    is_known,
    matched_dimensions,
)
from tilewright.schedule.layout import _evaluate, _without_loads
from tilewright.schedule.requests import _gather, root_position
from tilewright.schedule.state import (
    blocks_in,
    conjoin,
    conjunction,
    conjuncts,
    depends_on,
    find_block,
    has_division,
    loop_names,
    outline,
    used_names_of,
)
from tilewright.schedule.tensorize import is_dense, operands
from tilewright.support.errors import CompileError, ScheduleError

I, J, N = Var("i"), Var("j"), Var("n", lo=1, hi=100)


@pytest.mark.parametrize("seed", range(40))
def test_a_tile_computes_what_it_reads_and_nothing_else(seed: int) -> None:
    """Windows of any size, stride and offset, over tiles that divide the result and that do not."""
    rng = random.Random(seed)
    tile, stride, window, offset = rng.randint(1, 5), rng.randint(1, 3), rng.randint(1, 4), rng.randrange(3)
    n = tile * rng.randint(2, 4) - rng.randrange(tile)
    size = (n - 1) * stride + window + offset + rng.randrange(2)
    a = te.placeholder((size,), name="A")
    b = te.compute((size,), lambda i: a[i] + 1.0, name="B")
    r = te.reduce_axis(window, "r")
    c = te.compute((n,), lambda i: te.sum(b[i * stride + r + offset], r), name="C")
    func = te.create_prim_func([a, c], "windows")
    s = Schedule(func)
    outer, _ = s.split(s.loops("C")[0], factor=tile)
    s.compute_at("B", outer)
    needed = (tile - 1) * stride + window
    assert s.extent(s.loops("B")[-1]) == min(needed, size)
    assert_same(func, s.func, rng)
    at_point = Schedule(func)
    at_point.compute_at("B", at_point.loops("C")[0])
    assert at_point.extent(at_point.loops("B")[-1]) == min(window, size)


def test_ranges_are_cut_to_whole_dimensions() -> None:
    enclosing: dict[Var, Expr] = {I: const(4)}
    assert clip(None, N, enclosing) == (const(0), N)
    for (low, high), whole, start, extent in (
        ((I * 8, I * 8 + 7), const(32), "i * 8", "8"),
        ((I * 8, I * 8 + 7), const(8), "0", "8"),
        ((I * 8, I * 8 + 7), const(7), "0", "7"),
        ((I * 8, I * 8 + 7), N, "i * 8", "8"),
        ((const(0), N - 1), N, "0", "n"),
        ((const(2), N - 1), N, "2", "n - 2"),
        ((const(0), I), const(9), "0", "4"),  # as many as in any iteration
        ((const(0), I), N, "0", "4"),
        ((const(0), Var("x") * I), N, "0", "n"),
    ):
        result = clip((low, high), whole, enclosing)
        assert (str(result[0]), str(result[1])) == (start, extent), (low, high, whole)
    # Quotients by one divisor: at most one more panel than their difference fills.
    tiles = (I * 6 // 4, (I * 6 + 5) // 4)
    assert str(clip(tiles, N, {I: N})[1]) in ("2", "3")


BODIES = {
    "C[0] = C[0] + A[v]": ("add", "A[v]"),
    "C[0] = A[v] * 2.0 + C[0]": ("add", "A[v] * 2.0"),
    "C[0] = max(C[0], A[v])": ("max", "A[v]"),
    "C[0] = min(A[v], C[0])": ("min", "A[v]"),
    "C[0] = C[0] * A[v]": ("mul", "A[v]"),
    "C[0] = C[0] - A[v]": None,
    "C[0] = C[0] + C[0]": None,
    "C[0] = C[0] + A[v] * C[0]": None,
    "C[0] = C[1] + A[v]": None,
    "C[0] = A[v] + A[v]": None,
    "C[0] = A[v]": None,
    "if A[v] < 1.0 { C[0] = C[0] + A[v] }": ("add", "A[v]"),
    "if C[0] < 1.0 { C[0] = C[0] + A[v] }": None,
    "if C[1] < 1.0 { C[0] = C[0] + A[v] }": None,
    "if A[v] < 1.0 { C[0] = C[0] + A[v] } else { C[1] = 0.0 }": None,
    "C[0] = C[0] + A[v] C[1] = A[v]": None,
}


def block_of(body: str, init: str = "init { C[0] = 0.0 }") -> Block:
    text = f"for k in 0..4 {{ block c (v = reduce(4): k) {{ {init} {body} }} }}"
    return find_block(parse_func(f"func @f(A: f32[4], C: f32[2]) {{ {text} }}"), "c")


@pytest.mark.parametrize("body", BODIES)
def test_which_steps_are_ordinary_reductions(body: str) -> None:
    result, wanted = reduction_update(block_of(body)), BODIES[body]
    assert (result and (result.op, str(result.value))) == wanted
    if result is not None:
        assert str(result.target) == "C[0]" and str(result.condition) == ("A[v] < 1.0" if "if" in body else "true")
        whole = combination(block_of(body))
        assert whole is not None and whole.reducer.name == result.op and whole.values == (result.value,)
        assert combination(block_of(body, init="")) is None


LETS = {
    "let x = A[v] C[0] = C[0] * 0.5 + x": True,
    "if A[v] < 1.0 { let x = A[v] C[0] = C[0] * 0.5 + x }": True,
    "if C[0] < 1.0 { let x = A[v] C[0] = C[0] * 0.5 + x }": False,
    "let x = C[1] C[0] = C[0] * 0.5 + x": False,
    "let x = C[0] C[0] = C[0] * 0.5 + x": False,
    "let x = A[v] C[0] = C[0] * A[v] + x": False,
    "let x = A[v] let y = x * C[0] C[0] = y": False,
}


@pytest.mark.parametrize("body", LETS)
def test_which_steps_are_of_a_users_reducer(body: str) -> None:
    result = combination(block_of(body))
    assert (result is not None) == LETS[body]
    if result is not None:
        assert str(result.values[0]) == "A[v]" and str(result.reducer.result[0]) == "lhs0 * 0.5 + x"


def test_literals_are_the_simple_fractions_they_were_rounded_from() -> None:
    for number in (Fraction(1, 3), Fraction(-2, 7), Fraction(5, 4096), Fraction(3)):
        for dtype in (f32, f64):
            assert _fraction(const(float(number), dtype)) == number
    odd = const(1 / 4099, f64)
    assert _fraction(odd) == Fraction(odd.value) and _fraction(const(-7, i32)) == -7
    x, y = Var("x", f32), Var("y", f32)
    third = const(1 / 3)
    for e, factor, rest in (
        (x * third, Fraction(1, 3), "x"),
        (-(x * third) * const(6.0), Fraction(-2), "x"),
        (x * y * const(2.0), Fraction(2), "x * y"),
        (const(2.0) * const(0.5), Fraction(1), "1.0"),
        (-x, Fraction(-1), "x"),
        (x + y, Fraction(1), "x + y"),
    ):
        result = _term(e)
        assert (result[0], str(result[1])) == (factor, rest)
    for value in ("inf", "-inf", "nan"):
        assert _term(x * const(float(value)))[0] is None


def test_what_padding_would_compute() -> None:
    a = Buffer("A", f32, (const(4),))
    e = a[I] * 2.0 + 1.0
    assert _evaluate(e, 0.0) == 1.0 and _evaluate(e, 3.0) == 7.0 and _evaluate(e + Var("x", f32), 0.0) is None
    assert _evaluate(Op("cast", (e,), f64), 2.0) == 5.0 and _evaluate(Op("bitcast", (e,), i32), 2.0) is None
    assert str(_without_loads(e)) == "0.0 * 2.0 + 1.0" and _without_loads(const(3)) is const(3)


MAPS = {"A": "ik", "B": "kj", "C": "ij"}


def description(body: str, loops: str = "for i in 0..4 {{ {} }}", params: str = "A: f32[4], C: f32[4]") -> PrimFunc:
    return parse_func(f"func @d({params}) {{ {loops.format(body)} }}")


COPY = "block b (v = spatial(4): i) { C[v] = A[v] }"
WRONG_DESCRIPTIONS = [
    (description("block b (v = spatial(4): i) { C[v] = A[v] C[v] = A[v] }"), "must store one element at each point"),
    (description("block b (v = spatial(4): i) if i < 3 { C[v] = A[v] }"), "must store one element at each point"),
    (description("block b (v = spatial(4): i // 1 % 3) { C[v] = A[v] }"), "must drive each iterator by one loop"),
    (description("block b (v = spatial(4): i, w = spatial(4): i) { C[v] = A[w] }"), "must drive each iterator"),
    (description(COPY, "for i in 0..4 {{ for j in 0..4 {{ {} }} }}"), "must drive each iterator by one loop"),
    (description(COPY, params="A: f32[4], C: f32[4], D: f32[1]"), "at least 2"),
    (parse_func(f"func @d(A: f32[4], C: f32[4]) {{ buffer T: f32[4] for i in 0..4 {{ {COPY} }} }}"), "no buffers"),
    (description("C[i] = A[i]"), "must be loops around one block"),
    (description(COPY), None),
]


@pytest.mark.parametrize(("func", "message"), WRONG_DESCRIPTIONS, ids=range(len(WRONG_DESCRIPTIONS)))
def test_descriptions_of_instructions(func: PrimFunc, message: str | None) -> None:
    if message is None:
        intrin = TensorIntrin("copy", func)
        assert [b.name for b in intrin.outputs] == ["C"] and [b.name for b in intrin.inputs] == ["A"]
        assert [x.var.name for x in intrin.loops] == ["i"] and intrin.block.name == "b"
        assert (intrin.symbol, intrin.c_symbol) == ("tw.intrin.copy", "tw_intrin_copy")
        return
    with pytest.raises(ScheduleError, match=message):
        TensorIntrin("wrong", func)


def region(buffer: Buffer, *ranges: tuple[Expr | int, int]) -> Region:
    return Region(buffer, tuple((a if isinstance(a, Expr) else const(a), const(n)) for a, n in ranges))


A, B, C = (
    Buffer("A", f32, (const(8), const(8))),
    Buffer("B", f32, (const(8), const(2), const(4))),
    Buffer("C", f32, (const(4), const(4))),
)


def call(a: Region, b: Region, c: Region, name: str = "dot_4x4x4_f32") -> Intrinsic:
    return Intrinsic(name, (c,), (a, b))


GOOD = region(A, (I, 4), (4, 4)), region(B, (0, 4), (1, 1), (0, 4)), region(C, (0, 4), (0, 4))


def test_calls_of_instructions_are_loops() -> None:
    text = str(expand(call(*GOOD))).replace(".dot_4x4x4_f32", "'")
    assert "C[i', j'] = C[i', j'] + A[i + i', 4 + k'] * B[k', 1, j']" in " ".join(text.split())
    assert [line.split()[1] for line in text.splitlines() if "for" in line] == ["i'", "j'", "k'"]
    assert is_known("dot_4x4x4_f32") and not is_known("dot_9")
    assert matched_dimensions(GOOD[1], (const(4), const(4))) == (0, 2)
    assert (
        matched_dimensions(GOOD[1], (const(4),)) is None and matched_dimensions(GOOD[0], (const(4), const(3))) is None
    )
    for wrong, message in (
        (call(*GOOD, name="dot_9"), "no intrinsic of this name is registered"),
        (Intrinsic("dot_4x4x4_f32", (GOOD[2],), GOOD[:1]), "wrong number of regions"),
        (call(region(A, (0, 4), (0, 8)), *GOOD[1:]), "the region of 'A' does not fit"),
    ):
        with pytest.raises(CompileError, match=message):
            expand(wrong)


def test_operands_of_instructions() -> None:
    result = operands(DOT_4X4X4_F32, call(*GOOD))
    assert result is not None
    assert [(r.buffer.name, [as_int(s) for s in strides]) for r, strides in result] == [
        ("A", [8]),
        ("B", [8]),
        ("C", [4]),
    ]
    column = Buffer("D", f32, (const(4), const(4), const(2)))
    assert operands(DOT_4X4X4_F32, call(region(column, (0, 4), (0, 4), (1, 1)), *GOOD[1:])) is None
    single = Buffer("E", f32, (const(4), const(4), const(1)))
    assert operands(DOT_4X4X4_F32, call(region(single, (0, 4), (0, 4), (0, 1)), *GOOD[1:])) is not None
    assert operands(DOT_4X4X4_F32, call(region(A, (0, 4), (0, 8)), *GOOD[1:])) is None
    dense = TensorIntrin("dense", describe("dense", {"i": 4, "j": 4, "k": 4}, "k", (f32, f32, f32), MAPS), dense=True)
    assert operands(dense, call(*GOOD)) is None
    rows = region(Buffer("F", f32, (const(9), const(4))), (3, 4), (0, 4))
    assert operands(dense, call(rows, rows, GOOD[2])) is not None


def test_regions_that_are_dense() -> None:
    for ranges, dense in (
        (((0, 4), (0, 8)), True),
        (((I, 1), (2, 4)), True),
        (((I, 1), (2, 1)), True),
        (((0, 4), (0, 4)), False),
        (((0, 4), (0, 1)), False),
    ):
        assert is_dense(region(A, *ranges)) == dense, ranges


NESTS = parse_func("""func @f(A: f32[8, 8], C: f32[8, 8]) {
  buffer T: f32[8, 8]
  for i in 0..8 {
    for j in 0..8 parallel {
      block first (vi = spatial(8): i, vj = spatial(8): j) if i < 7 { T[vi, vj] = A[vi, vj] }
    }
    for k in 0..1 {
      for l in 0..8 {
        block second (vi_1 = spatial(8): i, one = spatial(1): 0, vl = reduce(8): l) {
          init { C[vi_1, one] = 0.0 }
          C[vi_1, one] = C[vi_1, one] + T[vi_1, vl]
        }
      }
    }
  }
}""")


def test_parts_of_a_program() -> None:
    assert loop_names(NESTS) == ["i", "j", "k", "l"] and [b.name for b in blocks_in(NESTS.body)] == ["first", "second"]
    assert used_names_of(NESTS) == {"A", "C", "T", "i", "j", "k", "l", "vi", "vj", "vi_1", "one", "vl"}
    assert outline(NESTS) == (
        "for i in 0..8:\n"
        "    for j in 0..8:  # parallel\n"
        "        block first(vi = i, vj = j) where i < 7\n"
        "    for k in 0..1:\n"
        "        for l in 0..8:\n"
        "            block second(vi_1 = i, one = 0, reduce vl = l)"
    )
    for pattern, options, names in (
        ("for _ in 8", {}, ("i", "j", "l")),
        ("for _ in _ parallel", {}, ("j",)),
        ("for _ in 0..1", {}, ("k",)),
        ("for _ in _", {"block": "second"}, ("i", "k", "l")),
        ("for _ in _", {"block": "second", "role": "reduce"}, ("l",)),
        ("for _ in _", {"role": "spatial"}, ("i", "j")),
        ("for  [ij]  in  _", {}, ("i", "j")),
        ("for _ in _ serial", {"block": "first"}, ("i",)),
    ):
        assert find_all(NESTS, pattern, **options) == (names, True)  # type: ignore[arg-type]
    assert find_all(NESTS, "block s*") == (("second",), False)
    places = [root_position(NESTS, b, x) for b, x in (("first", "i"), ("first", "j"), ("second", "l"), ("second", "i"))]
    assert places == [0, 1, 2, 0]
    for missing in (("third", "i"), ("first", "l"), ("first", "nowhere")):
        assert root_position(NESTS, *missing) is None


def test_conditions() -> None:
    a, b, c = I < 3, J < 4, I + J < 5
    assert (
        conjuncts(a & b & c) == (a, b, c)
        and conjuncts(const(True)) == ()
        and conjuncts(const(False)) == (const(False),)
    )
    assert conjoin([a, b]) is a & b and conjoin([]) is const(True)
    assert conjuncts(conjunction(a & b, b & c)) == (a, b, c) and conjuncts(conjunction(const(True), a)) == (a,)
    assert depends_on(I + J, I) and not depends_on(I + 1, J) and not depends_on(const(3), I)
    assert has_division(I // 2 + 1) and has_division(J + I % 3) and not has_division(I * 2 + J)


@pytest.mark.parametrize(
    ("index", "part", "inside"),
    [
        (I, (0, 7), True),
        (I, (0, 6), False),
        (I, (1, 7), False),
        (I + 1, (0, 7), True),  # after the buffer's end is nothing
        (I + 1, (1, 8), True),
        (I + 1, (0, 6), False),
        (I - 1, (0, 7), True),  # nor before its begin
        (I - 1, (1, 7), False),
        (I - 1, (-1, 6), True),
        (I // 2, (0, 3), True),
        (I // 2, (0, 2), False),
        (I + J, (0, 9), True),
        (I + J * 0, (0, 7), True),
    ],
)
def test_what_a_part_of_a_buffer_covers(index: Expr, part: tuple[int, int], inside: bool) -> None:
    """Parts of a buffer of 8, or of 20, where ends of the buffer are no ends of the part."""
    eight, twenty = (Buffer("A", f32, (const(n),)) for n in (8, 20))
    box, domain = ((const(part[0]), const(part[1])),), {I: (const(0), const(7))}
    assert covered([index], box, domain, eight, {J: const(4)}) == inside
    ends = {e: as_int(simplify(substitute(index, {I: const(e), J: const(3)}))) or 0 for e in (0, 7)}
    first = as_int(simplify(substitute(index, {I: const(0), J: const(0)}))) or 0
    within = (part[0] <= first or part[0] <= 0) and ends[7] <= part[1]
    assert covered([index], box, domain, twenty, {J: const(4)}) == within
    assert not covered([index], (None,), domain, eight, {J: const(4)})


def test_which_iterator_a_new_loop_steps_through() -> None:
    """The only one that it drives, alone and by one; a loop that runs once and drives none stands for its own."""
    func = parse_func(
        "func @f(A: f32[64, 8]) { for i in 0..4 { for j in 0..4 { for k in 0..2 { for l in 0..1 {"
        " block b (u = spatial(16): i * 4 + j, v = spatial(9): k + 3, w = spatial(1): 0, x = spatial(9): k * 2,"
        " y = spatial(1): 0) { A[u, v] = 1.0 } } } } }"
        " for p in 0..4 { for q in 0..3 { for r in 0..1 { block c (u = spatial(8): p * 2, v = spatial(4): q + 1,"
        " w = spatial(1): 0) { A[u, v] = 1.0 } } } } }"
    )
    result = {x: root_position(func, "b", x) for x in "ijklm"}
    assert result == {"i": None, "j": None, "k": None, "l": None, "m": None}
    assert {x: root_position(func, "c", x) for x in "pqr"} == {"p": None, "q": 1, "r": 2}
    assert root_position(func, "none", "p") is None and root_position(func, "c", "i") is None


@pytest.mark.parametrize(
    ("parents", "order"),
    [
        (["i", "k"], "ikjl"),
        (["k", "i"], "kijl"),
        (["j", "l"], "ijlk"),
        (["l", "j"], "iljk"),
        (["j", "k"], "ijkl"),
        (["i", "j", "l"], "ijlk"),
        (["j"], "ijkl"),
    ],
)
def test_loops_that_are_fused_are_put_together(parents: list[str], order: str) -> None:
    """At the place of the outermost, in the order that is asked for; what stood between them comes after."""
    func = parse_func(
        "func @f(A: f32[2, 3, 4, 5]) { for i in 0..2 { for j in 0..3 { for k in 0..4 { for l in 0..5 { block b ("
        "u = spatial(2): i, v = spatial(3): j, w = spatial(4): k, x = spatial(5): l) { A[u, v, w, x] = 1.0 } } } } } }"
    )
    assert loop_names(_gather(func, parents)) == list(order)
