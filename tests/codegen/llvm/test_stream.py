"""Streaming stores are written for whole pieces of 16 bytes at multiples of 16 bytes, and for nothing else."""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import pytest

from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Buffer, Var, const
from tilewright.ir.loops import For, PrimFunc, Store
from tilewright.ir.notes import Streaming
from tilewright.targets.target import Target


@pytest.mark.parametrize(
    ("lanes", "row", "start", "streams"),
    [
        (8, 8, 0, True),
        (4, 12, 4, True),
        (8, 10, 0, False),  # the second row starts at 40 bytes
        (8, 8, 2, False),
        (6, 8, 0, False),  # a part of 8 bytes
        (6, 6, 0, False),
    ],
)
def test_pieces_that_stream(lanes: int, row: int, start: int, streams: bool) -> None:
    i, v = Var("i"), Var("v")
    x, y = Buffer("x", f32, (const(lanes),)), Buffer("y", f32, (const(16 * row + start),))
    body = For(v, const(lanes), Store(y, (i * row + v + start,), x[v]), "vectorized", notes=(Streaming(),))
    func = PrimFunc("f", (x, y), For(i, const(16), body))
    assert ("!nontemporal" in emit_llvm(func, Target.parse("x86-64-v3"))) == streams


@pytest.mark.parametrize(
    ("lanes", "row", "pieces"), [(12, 16, {4}), (12, 12, {4}), (16, 16, {4, 16}), (28, 32, {4, 16}), (24, 24, {4, 8})]
)
def test_pieces_are_powers_of_two(lanes: int, row: int, pieces: set[int]) -> None:
    """The rest that whole vectors leave of a row may be twelve elements, which no store is aligned to."""
    i, v = Var("i"), Var("v")
    x, y = Buffer("x", f32, (const(lanes),)), Buffer("y", f32, (const(16 * row),))
    body = For(v, const(lanes), Store(y, (i * row + v,), x[v]), "vectorized", notes=(Streaming(),))
    text = emit_llvm(PrimFunc("f", (x, y), For(i, const(16), body)), Target.parse("x86-64-v4"))
    llvm.parse_assembly(text).verify()
    stores = re.findall(r"store <(\d+) x float> .*, align (\d+), !nontemporal", text)
    assert {int(is_short) for is_short, _ in stores} == pieces
    assert all(int(align) == 4 * int(is_short) for is_short, align in stores)
