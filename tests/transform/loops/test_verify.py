"""The rules of lowered loops: what is refused, and what is believed because it may be right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.ir.expr import const
from tilewright.ir.loops import For, PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.support.errors import VerifyError
from tilewright.transform.loops.verify import Known, verify_flat, verify_loops


def loops(body: str, shape: str = "8") -> PrimFunc:
    return parse_func(f"func @f(A: f32[{shape}], B: f32[8], I: i64[8]) {{ {body} }}")


OUTSIDE = {
    "one past the end": "for i in 0..8 { A[i + 1] = 0.0 }",
    "before the beginning": "for i in 0..8 { A[i - 1] = 0.0 }",
    "downwards": "for i in 0..8 { A[8 - i] = 0.0 }",
    "a load": "for i in 0..8 { B[i] = A[i + 1] }",
    "a load in an index": "for i in 0..8 { B[I[i + 1]] = 0.0 }",
    "always": "for i in 0..4 { for j in 0..4 { A[i * j + 8] = 0.0 } }",
    "two loops": "for i in 0..3 { for j in 0..3 { A[i * 4 + j] = 0.0 } }",
    "another loop's condition": "for k in 0..4 { for i in 0..9 { if k < 2 { A[i] = 0.0 } } }",
    "a choice on something else": "for k in 0..4 { for i in 0..8 { B[i] = select(k < 2, A[i + 1], 0.0) } }",
    "behind a choice": "for i in 0..8 { B[i] = select(i < 7, A[i + 1], 0.0) + A[i + 1] }",
}

INSIDE = {
    "exact": "for i in 0..4 { for j in 0..2 { A[i * 2 + j] = 0.0 } }",
    "a condition": "for i in 0..16 { if i < 8 { A[i] = 0.0 } }",
    "an else": "for i in 0..16 { if i >= 8 { B[0] = 0.0 } else { A[i] = 0.0 } }",
    "a choice": "for i in 0..8 { B[i] = select(i < 7, A[i + 1], 0.0) }",
    "and": "for i in 0..8 { if i < 7 and A[i + 1] > 0.0 { B[i] = 0.0 } }",
    "or": "for i in 0..8 { if i >= 7 or A[i + 1] > 0.0 { B[i] = 0.0 } }",
    "no iteration": "for i in 0..0 { A[i + 9] = 0.0 }",
    "never": "for k in 0..4 { for i in 0..9 { if k > 5 { A[i] = 0.0 } } }",
    "never both": "for t in 0..4 { if (t // 3 + 2) % 3 < 1 { if t < 3 { for i in 0..9 { A[i] = 0.0 } } } }",
    "never both, in the other order": "for t in 0..4 { if t < 3 { if t // 3 == 1 { for i in 0..9 { A[i] = 0.0 } } } }",
    "data": "for i in 0..8 { A[I[i]] = 0.0 }",
    "a condition's data": "for i in 0..8 { for j in 0..9 { if I[i] < 0 { A[j] = 0.0 } } }",
    "a triangle": "for i in 0..8 { for j in 0..8 - i { A[i + j] = 0.0 } }",
    "a triangle's corner": "for i in 0..4 { for j in 0..2 - i { B[i * 4 + j] = 0.0 } }",
    "turns of another loop": "for i in 0..4 { for j in 0..i { A[i * 2 + j - 1] = 0.0 } }",
    "a remainder": "for i in 0..9 { A[i % 8] = 0.0 }",
    "a triangle's first turns": "for i in 0..16 { for j in 0..i + 1 { if i < 8 { A[j] = 0.0 } } }",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(name: str) -> None:
    with pytest.raises(VerifyError, match=r"an index of '[AI]' is out of bounds: expected 0..8 in dimension 0"):
        verify_loops(loops(OUTSIDE[name]))


@pytest.mark.parametrize("name", INSIDE)
def test_inside_or_not_known(name: str) -> None:
    verify_loops(loops(INSIDE[name]))


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("for i in 0..n { A[i] = 0.0 }", False),
        ("for i in 0..n { A[i + 1] = 0.0 }", True),
        ("for i in 0..n { for j in 0..8 { A[i * 8 + j] = 0.0 } }", True),
        ("for i in 0..n // 8 { for j in 0..8 { A[i * 8 + j] = 0.0 } }", False),
        (
            "for i in 0..n // 8 { for j in 0..8 { A[i * 8 + j + n] = 0.0 } }",
            False,
        ),  # where n is 7 there is no iteration
        ("for i in 0..n // 8 { for j in 0..8 { A[i * 8 + j + n + 1] = 0.0 } }", True),
        ("for i in 0..n { if n > 3 { A[i + 1] = 0.0 } }", False),  # about n: believed
        ("for i in 0..n % 8 { A[n // 8 * 8 + i] = 0.0 }", False),
    ],
)
def test_symbols(body: str, wrong: bool) -> None:
    func = parse_func(f"func @f(A: f32[n]) where n in 1.. {{ {body} }}")
    if not wrong:
        verify_loops(func)
        return
    with pytest.raises(VerifyError, match="out of bounds"):
        verify_loops(func)


def test_regions_of_intrinsics() -> None:
    verify_loops(parse_func("func @f(A: f32[8], B: f32[8]) { call dot(A[0 +: 8]; B[4 +: 4]) }"))
    with pytest.raises(VerifyError, match="'B' is out of bounds"):
        verify_loops(parse_func("func @f(A: f32[8], B: f32[8]) { call dot(A[0 +: 8]; B[4 +: 5]) }"))


FLAT = {
    "func @f(A: f32[8]) { for i in 0..8 { block a (v = spatial(8): i) { A[v] = 0.0 } } }": "block 'a': is not lowered",
    "func @f(A: f32[8]) { buffer B: f32[8] for i in 0..8 { B[i] = A[i] } }": "buffer 'B': has no place",
    "func @f(A: f32[n]) { for i in 0..n vectorized { A[i] = 0.0 } }": "is vectorized, and its extent is no number: n",
    "func @f(A: f32[n]) { for i in 0..n unrolled { A[i] = 0.0 } }": "is unrolled, and its extent is no number",
    "func @f(A: f32[8, 8]) { for i in 0..8 parallel { for j in 0..8 parallel { A[i, j] = 0.0 } } }": (
        "loop 'j': is parallel inside of a parallel loop"
    ),
    "func @f(A: f32[n]) { for i in 0..n { alloc B: f32[n] B[i] = 0.0 } }": "its size is no number",
    "func @f(A: f32[8]) { for i in 0..8 { alloc B: f32[65537] B[i] = 0.0 } }": "is on the stack, and has 262148 bytes",
    "func @f(A: f32[8]) { alloc B: f32[8] for i in 0..8 parallel { A[i] = B[i] } }": "several threads use it",
}


@pytest.mark.parametrize("text", FLAT)
def test_what_code_generation_cannot_take(text: str) -> None:
    func = parse_func(text)
    verify_loops(func)
    with pytest.raises(VerifyError) as error:
        verify_flat(func)
    assert FLAT[text] in str(error.value)


@pytest.mark.parametrize("shape", ["65536", "256, 256", "0, 1048576", "1048576, 0"])
def test_what_fits_a_stack(shape: str) -> None:
    at = ", ".join("0" for _ in shape.split(","))
    used = "" if "0, " in shape or ", 0" in shape else f"B[{at}] = 0.0"
    verify_flat(parse_func(f"func @f(A: f32[8]) {{ for i in 0..8 {{ alloc B: f32[{shape}] {used} A[i] = 0.0 }} }}"))


def test_notes_are_passed_once() -> None:
    func = parse_func("func @f(A: f32[8]) { for i in 0..8 @unroll(times=2) { A[i] = 0.0 } }")
    verify_flat(func)
    loop = func.body
    assert isinstance(loop, For)
    with pytest.raises(VerifyError, match="notes are not sorted by name, each there once"):
        verify_flat(func.with_body(replace(loop, notes=loop.notes * 2)))


def test_all_that_is_wrong_is_listed() -> None:
    with pytest.raises(VerifyError) as error:
        verify_loops(loops("for i in 0..9 { A[i] = B[i] }"))
    assert {p.what for p in error.value.each()} == {f"an index of {name!r} is out of bounds" for name in "AB"}


def changed(func: PrimFunc, inner: str) -> PrimFunc:
    """The function in whose outermost loop another statement stands."""
    assert isinstance(func.body, For)
    return func.with_body(replace(func.body, body=loops(inner).body))


def test_what_was_inside_is_looked_at_once_in_the_same_loops_only() -> None:
    """A pass makes the loop around longer, or leaves it and changes what is in it."""
    func = loops("for i in 0..4 { for j in 0..2 { A[i * 2 + j] = 0.0 } }")
    known = Known()
    verify_loops(func, known)
    assert len(known.inside) == 2
    verify_loops(func, known)
    assert len(known.inside) == 2
    assert isinstance(func.body, For)
    longer = func.with_body(replace(func.body, extent=const(5)))
    assert longer.body.children == func.body.children
    for wrong in (longer, changed(func, "for j in 0..3 { A[8 + j] = 0.0 }")):
        with pytest.raises(VerifyError, match="an index of 'A' is out of bounds"):
            verify_loops(wrong, known)
        with pytest.raises(VerifyError, match="an index of 'A' is out of bounds"):
            verify_flat(wrong, known)


def test_what_only_a_condition_keeps_inside_is_looked_at_once_more() -> None:
    func = loops("for k in 0..4 { for i in 0..9 { if i < 8 { A[i] = 0.0 } } }")
    known = Known()
    verify_loops(func, known)
    assert not known.inside
    loop = func.body.children[0]
    assert isinstance(loop, For)
    bare = replace(loop, body=loop.body.children[0])
    with pytest.raises(VerifyError, match="an index of 'A' is out of bounds"):
        verify_loops(func.with_body(replace(func.body, body=bare)), known)


def test_what_may_be_outside_is_looked_at_once_more_in_other_loops() -> None:
    """A loop of any size may fit; one that is longer by the size of the array does not."""
    func = parse_func("func @f(A: f32[8], B: f32[n]) where n in 1.. { for i in 0..n { A[i] = B[i] } }")
    known = Known()
    verify_loops(func, known)
    assert known.believed
    assert isinstance(func.body, For)
    longer = func.with_body(replace(func.body, extent=func.body.extent + 8))
    with pytest.raises(VerifyError, match="an index of 'A' is out of bounds"):
        verify_loops(longer, known)
    verify_loops(func, known)
