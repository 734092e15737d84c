"""Refusals that programs of tensor expressions seldom meet, on programs given as text; and those of the language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.schedule.test_legality import chain, product
from tilewright import te
from tilewright.ir.parser import parse_func
from tilewright.schedule import Schedule
from tilewright.schedule.dot_intrinsics import named_dot
from tilewright.schedule.in_place import in_place
from tilewright.schedule.intrinsics import DOT_4X4X4_F32
from tilewright.schedule.recording import Instruction, Ref, literal
from tilewright.schedule.routines import Routine, register
from tilewright.support.errors import CallError, ExpressionError, ScheduleError

Apply = Callable[[Schedule], Any]


def text(body: str, params: str = "A: f32[8], C: f32[8]", buffers: str = "") -> Callable[[], Schedule]:
    inside = "\n".join(f"  {line}" for line in (*buffers.splitlines(), *body.strip().splitlines()))
    return lambda: Schedule(parse_func(f"func @f({params}) {{\n{inside}\n}}\n"))


B = "buffer B: f32[8]"
TWICE = text(
    """
for i in 0..8 {
  block B (vi = spatial(8): i) {
    let x = A[vi] * 2.0
    B[vi] = x * x
  }
}
for j in 0..8 {
  block C (vj = spatial(8): j) {
    C[vj] = B[vj]
  }
}
""",
    buffers=B,
)
WRITTEN_LATER = text(
    """
for i in 0..8 {
  block B (vi = spatial(8): i) {
    B[vi] = A[vi]
  }
}
for k in 0..8 {
  block D (vk = spatial(8): k) {
    A[vk] = 0.0
  }
}
for j in 0..8 {
  block C (vj = spatial(8): j) {
    C[vj] = B[vj]
  }
}
""",
    buffers=B,
)
READ_FIRST = text(
    """
for t in 0..4 {
  for j in 0..8 {
    block C (vj = spatial(8): j) {
      C[vj] = B[vj]
    }
  }
  for i in 0..8 {
    block B (vi = spatial(8): i) {
      B[vi] = A[vi]
    }
  }
}
""",
    buffers=B,
)
USED_BEFORE = text(
    """
for i in 0..8 {
  block B (vi = spatial(8): i) {
    B[vi] = A[vi]
  }
}
for k in 0..8 {
  block D (vk = spatial(8): k) {
    D[vk] = C[vk]
  }
}
for j in 0..8 {
  block C (vj = spatial(8): j) {
    C[vj] = B[vj]
  }
}
""",
    params="A: f32[8], C: f32[8], D: f32[8]",
    buffers=B,
)
SHARED_LOOP = text(
    """
for x in 0..4 {
  for y in 0..2 {
    block C (vi = spatial(2): y, vk = reduce(8): x * 2 + y) {
      init { C[vi] = 0.0 }
      C[vi] = C[vi] + A[vk]
    }
  }
}
""",
    params="A: f32[8], C: f32[2]",
)
FUSED = text(
    """
for f in 0..16 {
  block C (vi = spatial(2): f // 8, vj = spatial(8): f % 8) {
    C[vi, vj] = A[vj]
  }
}
""",
    params="A: f32[8], C: f32[2, 8]",
)
LETS = text(
    """
for i in 0..6 {
  block C (vi = spatial(6): i) {
    let x = A[vi]
    C[vi] = x
  }
}
""",
    params="A: f32[6], C: f32[6]",
)
SHARED_REDUCTION = text(
    """
for x in 0..4 {
  block D (vi = spatial(4): x) {
    D[vi] = A[vi]
  }
  for y in 0..2 {
    block C (vo = spatial(1): 0, vk = reduce(8): x * 2 + y) {
      init { C[vo] = 0.0 }
      C[vo] = C[vo] + A[vk]
    }
  }
}
""",
    params="A: f32[8], C: f32[1], D: f32[4]",
)
TWICE_THE_SAME = text(
    """
for o in 0..2 {
  for i in 0..4 {
    block B (vi = spatial(4): i) {
      B[vi] = A[vi]
    }
  }
}
for r in 0..4 {
  block C (vo = spatial(1): 0, vr = reduce(4): r) {
    init { C[vo] = 0.0 }
    C[vo] = C[vo] + B[vr]
  }
}
""",
    params="A: f32[4], C: f32[1]",
    buffers="buffer B: f32[4]",
)
EDGE = text(
    """
for i in 0..8 {
  block B (vi = spatial(8): i) {
    B[vi] = A[vi]
  }
}
for j in 0..8 {
  block C (vj = spatial(8): j) {
    C[vj] = select(vj >= 1, B[vj - 1], 0.0)
  }
}
""",
    buffers=B,
)
COPIED = text(
    """
for i in 0..8 {
  block B (vi = spatial(8): i) {
    B[vi] = A[vi] * 2.0
  }
}
for j in 0..2 {
  block C (vj = spatial(2): j) {
    call test_refusals_next(C[vj * 4 +: 4]; B[vj * 4 +: 4])
  }
}
""",
    buffers=B,
)
SCALED = text(
    """
for i in 0..5 {
  for r in 0..3 {
    block C (vi = spatial(5): i, vr = reduce(3): r) {
      init { C[vi] = 0.0 }
      C[vi] = C[vi] + A[vi, vr] * S[vi]
    }
  }
}
""",
    params="A: f32[5, 3], S: f32[5], C: f32[5]",
)
RUNNING = text(
    """
for t in 0..4 {
  for i in 0..8 {
    block B (vi = spatial(8): i, vt = reduce(4): t) {
      init { B[vi] = 0.0 }
      B[vi] = B[vi] + A[vi]
    }
  }
  for j in 0..8 {
    block C (vt = spatial(4): t, vj = spatial(8): j) {
      C[vt, vj] = B[vj]
    }
  }
}
""",
    params="A: f32[8], C: f32[4, 8]",
    buffers=B,
)
IN_TWO_NESTS = text(
    """
for i in 0..8 {
  block B (vi = spatial(8): i) {
    C[vi] = 0.0
  }
}
for j in 0..8 {
  block C (vj = spatial(8): j) {
    C[vj] = C[vj] + A[vj]
  }
}
"""
)
HALVED = text(
    """
for i in 0..8 {
  block B (vi = spatial(8): i) {
    B[vi // 2] = A[vi]
  }
}
for j in 0..4 {
  block C (vj = spatial(4): j) {
    C[vj] = B[vj]
  }
}
""",
    params="A: f32[8], C: f32[4]",
    buffers="buffer B: f32[4]",
)
DECAYED = text(
    """
for r in 0..8 {
  block C (vo = spatial(1): 0, vr = reduce(8): r) {
    init { C[vo] = 0.0 }
    C[vo] = C[vo] * 0.5 + A[vr]
  }
}
""",
    params="A: f32[8], C: f32[1]",
)
TRIANGLE = text(
    """
for i in 0..8 {
  for j in 0..i + 1 {
    block C (vi = spatial(8): i, vj = spatial(8): j) {
      C[vi, vj] = A[vj]
    }
  }
}
""",
    params="A: f32[8], C: f32[8, 8]",
)
IN_PAIRS = text(
    """
for i in 0..4 {
  block B (vi = spatial(4): i) {
    B[vi * 2] = A[vi * 2]
    B[vi * 2 + 1] = A[vi * 2 + 1]
  }
}
for j in 0..8 {
  block C (vj = spatial(8): j) {
    C[vj] = B[vj]
  }
}
""",
    buffers=B,
)
SHIFTED = text(
    """
for i in 0..5 {
  block C (vi = spatial(5): i) {
    C[vi] = C[vi + 1] + A[vi]
  }
}
"""
)
UNDRIVEN = text(
    """
for i in 0..6 {
  block C (vi = spatial(6): i, vo = spatial(1): 0) {
    C[vi, vo] = A[vi]
  }
}
""",
    params="A: f32[6], C: f32[6, 1]",
)
REPEATED = text(
    """
for i in 0..6 {
  for j in 0..3 {
    block C (vi = spatial(6): i, vj = spatial(3): j) {
      C[vi] = A[vi]
    }
  }
}
""",
    params="A: f32[6], C: f32[6]",
)
OVERLAPPING = text(
    """
for x in 0..2 {
  for y in 0..4 {
    for r in 0..8 {
      block C (vi = spatial(6): x * 2 + y, vr = reduce(8): r) {
        init { C[vi] = 0.0 }
        C[vi] = C[vi] + A[vi, vr]
      }
    }
  }
}
""",
    params="A: f32[6, 8], C: f32[6]",
)
COUNTED = text(
    """
for i in 0..8 {
  block B (vi = spatial(8): i) {
    B[vi] = B[vi] + A[vi]
  }
}
for j in 0..8 {
  block C (vj = spatial(8): j) {
    C[vj] = B[vj]
  }
}
""",
    buffers=B,
)
NEIGHBOURS = text(
    """
for i in 0..5 {
  for r in 0..3 {
    block C (vi = spatial(5): i, vr = reduce(3): r) {
      init { C[vi] = 0.0 }
      C[vi] = C[vi] + A[vi, vr] * A[vr, vi]
    }
  }
}
""",
    params="A: f32[5, 5], C: f32[5]",
)


def _of(func: Callable[[], Any]) -> Callable[[], Schedule]:
    return lambda: Schedule(func())


def _done(primitive: str, *inputs: Any, outputs: tuple[Ref, ...] = ()) -> Apply:
    return lambda s: s.execute(Instruction(primitive, tuple(inputs), (), outputs))


ROUTINE = register(Routine("a_routine_for_tests", ("rows",), lambda func, sizes: func))
CASES: dict[str, tuple[Callable[[], Schedule], Apply, str]] = {
    "inline of a let": (TWICE, lambda s: s.compute_inline("B"), "its body is more than one store to each buffer"),
    "inline of what changes": (
        WRITTEN_LATER,
        lambda s: s.compute_inline("B"),
        "block 'D' writes its input 'A' later",
    ),
    "double buffer": (READ_FIRST, lambda s: s.double_buffer("B"), "block 'C' reads it before block 'B'"),
    "reverse of nothing": (
        WRITTEN_LATER,
        lambda s: s.reverse_compute_at("B", "j"),
        "no block under this loop computes what it reads",
    ),
    "reverse before": (USED_BEFORE, lambda s: s.reverse_compute_at("D", "j"), "it stands before this loop"),
    "reverse past a reader": (
        USED_BEFORE,
        lambda s: s.reverse_compute_at("C", "i"),
        "block 'D' uses 'C' before it",
    ),
    "rfactor of a shared loop": (SHARED_LOOP, lambda s: s.rfactor("C", "x"), "loop 'y' drives spatial iterators too"),
    "pad of a fused loop": (FUSED, lambda s: s.pad("C", (4, 4)), "loop 'f' does not drive one iterator"),
    "pad of a let": (LETS, lambda s: s.pad("C", (4,)), "its body is more than a store"),
    "pad of two places": (NEIGHBOURS, lambda s: s.pad("C", (4, 1)), "it reads 'A' at several indices"),
    "layout": (
        _of(chain),
        lambda s: s.transform_layout("B", lambda i, j: (i, "x"), "B"),
        "cannot transform the layout of 'B': not an element",
    ),
    "layout of an intrinsic": (
        lambda: _tensorized(),
        lambda s: s.transform_layout("C", lambda i, j: (j, i), "C"),
        "block 'C' is an intrinsic",
    ),
    "tensorize of several stores": (
        LETS,
        lambda s: s.tensorize("i", DOT_4X4X4_F32.name),
        "does more than store one element",
    ),
    "pad of a factor": (
        SCALED,
        lambda s: s.pad("C", (1, 4)),
        "an input of its reduction does not depend on the enlarged iterators",
    ),
    "double buffer of a running sum": (
        RUNNING,
        lambda s: s.double_buffer("B"),
        "loop 't' drives the reduction of block 'B'",
    ),
    "in place of what is added": (
        IN_TWO_NESTS,
        lambda s: in_place(s.func, "C", "A"),
        "several nests write 'C', and later ones read 'A'",
    ),
    "a start of two kinds": (
        SHARED_LOOP,
        lambda s: s.decompose_reduction("C", "x"),
        "'y' drives spatial and reduction iterators",
    ),
    "routine": (
        _of(chain),
        lambda s: s.implement("atention"),
        "no routine is called 'atention': expected .*a_routine_for_tests",
    ),
    "sizes of a routine": (
        _of(chain),
        lambda s: s.implement(ROUTINE.name, rows=0),
        "the sizes of 'a_routine_for_tests': expected rows, each at least 1",
    ),
    "inline of what it reads itself": (COUNTED, lambda s: s.compute_inline("B"), "it reads 'B', which it writes"),
    "inline of several elements at a place": (
        HALVED,
        lambda s: s.compute_inline("B"),
        "its element is not known from the indices stored to",
    ),
    "vectors of two kinds": (
        SHARED_LOOP,
        lambda s: s.vectorize("y"),
        "it drives spatial and reduction iterators of block 'C' at once",
    ),
    "vectors of a sum that decays": (DECAYED, lambda s: s.vectorize("r"), "that is not a sum, product"),
    "fuse of a triangle": (TRIANGLE, lambda s: s.fuse("i", "j"), r"the extent i \+ 1 of loop 'j' depends on loop i"),
    "reverse behind pairs": (
        IN_PAIRS,
        lambda s: s.reverse_compute_at("C", "i"),
        "block 'B' stores several elements of 'B' at once",
    ),
    "pad of a shift": (
        SHIFTED,
        lambda s: s.pad("C", (4,)),
        "it does not write one element of one buffer at each point",
    ),
    "expand of a symbolic sum": (
        lambda: _measured_in_rounds(),
        lambda s: s.expand("C"),
        "the extent n of 'vk' is not constant",
    ),
    "pad of an iterator without a loop": (
        UNDRIVEN,
        lambda s: s.pad("C", (4, 1)),
        "its iterators are not driven by one loop each",
    ),
    "pad of one of two": (IN_TWO_NESTS, lambda s: s.pad("C", (16,)), "other blocks write its output too"),
    "pad of what is written again": (
        REPEATED,
        lambda s: s.pad("C", (1, 4)),
        "an enlarged iterator does not index what it writes",
    ),
    "reorder of overlapping tiles": (
        OVERLAPPING,
        lambda s: s.reorder("r", "x", "y"),
        "iterations of 'x' compute the same points of block 'C'",
    ),
    "rfactor below a shared loop": (
        SHARED_REDUCTION,
        lambda s: s.rfactor("C", "y"),
        "loop 'x', shared with other blocks, drives the reduction",
    ),
    "reverse into steps that are done twice": (
        TWICE_THE_SAME,
        lambda s: s.reverse_compute_at("C", "i"),
        "iterations of 'o' would add the same steps to its reduction",
    ),
    "reverse of an edge": (EDGE, lambda s: s.reverse_compute_at("C", "i"), "some of its points lie outside of 'B'"),
    "reverse of an intrinsic": (COPIED, lambda s: s.reverse_compute_at("C", "i"), "it is an intrinsic"),
    "tensorize of a fused loop": (
        FUSED,
        lambda s: s.tensorize("f", DOT_4X4X4_F32.name),
        r"iterator vi = f // 8 is not whole tiles of one loop",
    ),
    "note of a block": (_of(chain), lambda s: s.annotate(s.block("B"), "unrol"), "cannot annotate: .*'unrol'"),
    "no part": (_of(chain), lambda s: s.unroll(3), "not a part of the program: expected a block or loop"),  # type: ignore[arg-type]
    "factor": (
        _of(chain),
        lambda s: s.split("i", factor=2.0),
        "expected a factor that is a number, or a dimension of the arguments, got 2.0",
    ),  # type: ignore[arg-type]
    "primitive": (_of(chain), _done("unrol", Ref("l", 0)), "no primitive is called 'unrol'"),
    "reference": (_of(chain), _done("unroll", Ref("l", 7)), "l7 is used before an instruction gives it"),
    "results": (
        _of(chain),
        _done("loops", "B", outputs=(Ref("l", 0),)),
        "gives 2 results here",
    ),
    "arguments": (_of(chain), _done("split", "i", 1, 2, 3, 4, 5), "the arguments do not fit"),
}


def _measured_in_rounds() -> Schedule:
    n = te.var("n")
    x, table = te.placeholder((n,), name="X"), te.const_matrix([[1.0, 2.0], [3.0, 4.0]])
    k = te.reduce_axis(n, "k")
    c = te.compute((2,), lambda i: te.sum(table[i, k % 2] * x[k], k), name="C")
    return Schedule(te.create_prim_func([x, c]))


def _tensorized() -> Schedule:
    s = Schedule(product())
    i, j, k = s.loops("C")
    outer = []
    inner = []
    for loop in (i, j, k):
        a, b = s.split(loop, factor=4)
        outer.append(a)
        inner.append(b)
    s.reorder(*outer, *inner)
    s.decompose_reduction("C", outer[2])
    s.tensorize(inner[0], DOT_4X4X4_F32.name)
    return s


@pytest.mark.parametrize("what", CASES)
def test_refused(what: str) -> None:
    make, apply, message = CASES[what]
    s = make()
    before = str(s.func)
    with pytest.raises(ScheduleError, match=message):
        apply(s)
    assert str(s.func) == before


def test_names_that_no_one_knows() -> None:
    with pytest.raises(ScheduleError, match="no dot instruction is called 'dot_9': expected one of"):
        named_dot("dot_9")
    known = Routine("twice_for_a_test", (), lambda func, sizes: func)
    register(known)
    with pytest.raises(ValueError, match="'twice_for_a_test' is registered twice"):
        register(known)


N = te.var("n")
X = te.placeholder((N, 2), name="x")


def _scan(first: Any = None, state: Any = None, step: Any = None) -> tuple[Any, Any]:
    state = state or te.placeholder((N, 2), name="state")
    rows = te.compute((1, 2), first or (lambda t, i: X[t, i]), name="first")
    after = te.compute((N, 2), step or (lambda t, i: state[t - 1, i] + X[t, i]), name="after")
    return state, te.scan(rows, after, state, name="S")


def _computed_whole() -> Any:
    state = te.placeholder((N, 2), name="state")
    whole = te.extern((N, 2), [state], lambda a, b: None, name="whole")
    return _scan(state=state, step=lambda t, i: whole[t, i])


def _part() -> Any:
    state, result = _scan()
    return te.create_prim_func([X, state, result])


def _loops(pattern: str, **which: Any) -> Any:
    y = te.compute((4, 4), lambda i, j: 0.0, name="y")
    return te.create_schedule(y).find(pattern, **which)


def _called() -> Any:
    k = te.var("k")
    a = te.placeholder((4,), name="A", strides=(1,), offset=k + 1)
    b = te.compute((4,), lambda i: a[i], name="B")
    return tw.build(te.create_schedule(b), [a, b])(np.zeros(9, np.float32)[1:5], np.zeros(4, np.float32))


PAIR = te.comm_reducer(lambda a, b: (a[0],), lambda *t: (te.const(0.0),), "pair")


def _driven_by_two() -> Any:
    y = te.compute((8,), lambda i: 0.0, name="y")
    s = te.create_schedule(y)
    s.schedule.split(s.schedule.loops("y")[0], factor=2)
    s[y].vectorize(y.axis[0])


LANGUAGE: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "shape": (lambda: te.placeholder("ab"), ExpressionError, "expected a sequence of extents, got str"),  # type: ignore[arg-type]
    "constants": (lambda: te.const_matrix([]), ExpressionError, "a constant array needs elements"),
    "types of a scan": (
        lambda: _scan(state=te.placeholder((N, 2), "float64", name="state"), step=lambda t, i: X[t, i]),
        ExpressionError,
        "init, update and state of one type, with a dimension: got f32, f32 and f64",
    ),
    "whole in a scan": (_computed_whole, ExpressionError, "'whole' is computed whole, not in steps"),
    "part of a scan": (_part, ExpressionError, "'state' is a part of recurrence 'S'"),
    "values of a reducer": (
        lambda: te.compute((2,), lambda i: PAIR((X[0, i], X[0, i]), te.reduce_axis(2))),
        ExpressionError,
        "reducer 'pair' gives another number of values: expected 2",
    ),
    "argument": (
        lambda: tw.build(te.create_schedule(y := te.compute((4,), lambda i: 0.0)), [y, "z"]),  # type: ignore[list-item]
        ExpressionError,
        "argument 1: expected a tensor or a te.var, got str",
    ),
    "dimension": (
        lambda: te.create_prim_func([N, X, te.compute((N,), lambda i: X[i, 0])]),
        ExpressionError,
        "'n' is a dimension, which is read off the arrays",
    ),
    "axis": (
        lambda: te.create_schedule(y := te.compute((4,), lambda i: 0.0))[y].unroll(3),  # type: ignore[arg-type]
        ScheduleError,
        "not an axis: expected an axis of a tensor, or a loop, got 3",
    ),
    "axis of two loops": (_driven_by_two, ScheduleError, "loops i_0, i_1 drive axis 'i' of 'y'"),
    "literal": (lambda: literal(object()), ExpressionError, "a trace cannot hold a object"),
    "which": (lambda: _loops("for _ in _", nth=7), ScheduleError, "says 2 of them: got nth=7"),
    "which of two": (lambda: _loops("for _ in _"), ScheduleError, "expected one loop or stage"),
    "offset": (_called, CallError, "nothing says what 'k' is"),
    "keyword": (
        lambda: te.create_schedule(y := te.compute((4,), lambda i: 0.0))[y].split(y.axis[0], parts=2),
        ScheduleError,
        "split: the arguments do not fit",
    ),
}


@pytest.mark.parametrize("what", LANGUAGE)
def test_refused_by_the_language(what: str) -> None:
    call, kind, message = LANGUAGE[what]
    with pytest.raises(kind, match=message):
        call()
