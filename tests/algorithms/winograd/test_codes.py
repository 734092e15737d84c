"""Convolutions of codes of 8 bits by Winograd's transforms: equal to integers in NumPy, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tests.algorithms.winograd.test_operators import LANES
from tests.algorithms.winograd.test_plan import in_blocks
from tests.ops.oracle import by_expression, by_function, check, reference, type_of
from tests.transform.graph.test_integer import model
from tilewright import ops
from tilewright.algorithms.winograd.operators.convolution import ConvWinogradAttrs, tiles_in_blocks
from tilewright.algorithms.winograd.operators.numbers import MAX_CHANNELS, numbers, whole_matrices
from tilewright.algorithms.winograd.selection import Winograd
from tilewright.codegen.llvm.emit import assembly, emit_llvm
from tilewright.compiler import passed
from tilewright.frontend.onnx import import_onnx
from tilewright.ir.dtype import DType, dtype, f32, i8, i16, u8
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.selection import Direct
from tilewright.ops.interpret import run_graph
from tilewright.plans import plan
from tilewright.plans.framework.decisions import deciding
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.targets import x86
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.graph.split import split_prepare
from tilewright.transform.loops import lower_loops
from tilewright.transform.lower import lower_group

HOST = Target.host()
PAIRS = find_dot(i16, i16, HOST) is not None
V3 = Target.parse("x86-64-v3")
AMX = x86.processor("sapphirerapids", (*x86.V4_DOTS, "amx-tile", "amx-int8", "amx-bf16"))
ONE = (1, 1, 1, 1)


def sums(x: np.ndarray, w: np.ndarray, zero: int, pads: tuple[int, ...], dilation: int = 1) -> np.ndarray:
    """The sums of products of codes with weights, the zero point around the map, in 64 bits."""
    top, left, bottom, right = pads
    wide = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=zero).astype(np.int64)
    covered = (2 * dilation + 1,) * 2
    views = np.lib.stride_tricks.sliding_window_view(wide, covered, axis=(2, 3))[..., ::dilation, ::dilation]
    total = np.einsum("nchwrs,kcrs->nkhw", views, w.astype(np.int64))
    assert np.abs(total).max() < 1 << 31
    return total


def codes(kind: DType, shape: tuple[int, ...], extreme: bool) -> np.ndarray:
    rng, ends = np.random.default_rng(sum(shape)), (int(kind.min), int(kind.max))
    values = rng.choice(ends, shape) if extreme else rng.integers(ends[0], ends[1] + 1, shape)
    return values.astype(kind.numpy)


def test_matrices_are_whole_and_what_they_make_of_codes_holds_in_16_bits() -> None:
    (at, g, bt), scale = whole_matrices()
    whole = [np.array([[int(x) for x in row] for row in matrix], np.int64) for matrix in (at, g, bt)]
    assert all(np.array_equal(a, np.array(b, float)) for a, b in zip(whole, (at, g, bt), strict=True))
    a, f, b = whole
    # Every product of an input and a tap counts `scale` times where they meet, and never elsewhere.
    meets = np.einsum("yi,ir,ix->yrx", a, f, b)
    assert np.array_equal(
        meets, scale * np.array([[[x == y + r for x in range(6)] for r in range(3)] for y in range(4)])
    )

    def extremes(matrix: np.ndarray, least: int, most: int) -> tuple[int, int]:
        both = np.einsum("iy,jz->ijyz", matrix, matrix)
        up, down = both.clip(min=0).sum((2, 3)), both.clip(max=0).sum((2, 3))
        return int((up * least + down * most).min()), int((up * most + down * least).max())

    for matrix, kind in ((b, u8), (b, i8), (f, i8)):
        least, most = extremes(matrix, int(kind.min), int(kind.max))
        assert np.iinfo(np.int16).min <= least and most <= np.iinfo(np.int16).max
    number = numbers(u8, 4, 3, 1)
    assert (number.inverse * scale**2 >> number.shift) % (1 << 32 - number.shift) == 1
    assert MAX_CHANNELS * 9 * 255 * 128 < 1 << 31 - number.shift <= (MAX_CHANNELS + 1) * 9 * 255 * 128


CASES = [
    # images, channels, filters, height, width, pads, dilation, rows, columns, panel, panels
    (1, 4, 4, 4, 4, ONE, 1, 2, 2, 4, 2),
    (2, 5, 7, 3, 5, (0, 1, 2, 0), 1, 1, 2, 8, 1),
    (1, 2, 4, 9, 5, ONE, 1, 2, 1, 4, 3),
    (3, 3, 9, 4, 6, (1, 0, 0, 1), 1, 3, 0, 8, 2),
    (1, 4, 5, 1, 1, ONE, 1, 1, 1, 4, 1),
    (1, 6, 4, 9, 11, (2, 1, 2, 2), 2, 2, 2, 4, 1),
]


@pytest.mark.daily(3)
@pytest.mark.costly(4)
@pytest.mark.parametrize("kind", [u8, i8], ids=lambda k: k.name)
@pytest.mark.parametrize("case", CASES)
def test_expression_and_reference_are_exact(case: tuple[Any, ...], kind: DType) -> None:
    images, channels, filters, height, width, pads, dilation, rows, columns, panel, panels = case
    for extreme in (False, True):
        x = codes(kind, (images, channels, height, width), extreme)
        w, zero = codes(i8, (filters, channels, 3, 3), extreme), np.asarray(codes(kind, (1,), extreme)[0])
        (packed,) = check("lowered.pack_winograd", w, tile=4, stride=1, block=LANES, width=panel, panels=panels)
        assert packed.dtype == np.int16 and packed.shape[-3:] == (LANES // 2, panel, 2)
        (blocked,) = reference("lowered.block_channels", [x], {"block": LANES})
        attrs = {"tile": 4, "window": 3, "stride": 1, "dilation": dilation, "pads": pads, "out_block": LANES}
        attrs |= {"channels": filters, "input_channels": channels}
        typed = ops.attributes("lowered.conv_winograd", attrs)
        assert isinstance(typed, ConvWinogradAttrs)
        (y,) = ops.infer("lowered.conv_winograd", [type_of(a) for a in (blocked, packed, zero)], typed)

        def stated(x: Any, u: Any, zero: Any, attrs: Any = typed, shape: Any = y.shape) -> Any:
            return tiles_in_blocks(x, u, attrs, shape, rows, columns, zero)

        operands = [blocked, packed, zero]
        for result in (
            *reference("lowered.conv_winograd", operands, attrs),
            *by_expression("lowered.conv_winograd", operands, attrs),
            by_function(stated, operands),
        ):
            assert result.dtype == np.int32
            (got,) = reference("lowered.unblock_channels", [result], {"channels": filters})
            np.testing.assert_array_equal(got, sums(x, w, int(zero), pads, dilation))


def test_other_tiles_of_codes_are_refused() -> None:
    w = TensorType(i8, tuple(map(const, (8, 4, 3, 3))))
    for tile, stride in ((2, 1), (6, 1), (4, 2)):
        attrs = {"tile": tile, "stride": stride, "block": 4, "width": 4, "panels": 1}
        with pytest.raises(tw.Error, match=r"(?s)no such transform.*F\(4, 3\)"):
            ops.infer("lowered.pack_winograd", [w], ops.attributes("lowered.pack_winograd", attrs))


def layer(
    target: Target, kind: DType, shape: tuple[int, ...], filters: int, pads: Any, panel: tuple[int, int]
) -> Graph:
    """block -> winograd of codes -> unblock, as layout assignment leaves it."""
    b, lanes = GraphBuilder("layer"), target.lanes(4)

    def tensor(kind: DType, *dims: int) -> TensorType:
        return TensorType(kind, tuple(map(const, dims)))

    x, w = b.input("x", tensor(kind, *shape)), b.param("w", tensor(i8, filters, shape[1], 3, 3))
    zero = b.param("zero", tensor(kind))
    layout = {"block": lanes, "width": panel[0] * lanes, "panels": panel[1]}
    packed = ops.emit1(b, "lowered.pack_winograd", w, tile=4, stride=1, **layout)
    blocked = ops.emit1(b, "lowered.block_channels", x, block=lanes)
    attrs = {"tile": 4, "window": 3, "stride": 1, "pads": pads, "dilation": 1, "out_block": lanes}
    attrs |= {"channels": filters, "input_channels": shape[1]}
    y = ops.emit1(b, "lowered.conv_winograd", blocked, packed, zero, **attrs)
    return b.finish((ops.emit1(b, "lowered.unblock_channels", y, channels=filters),))


NATIVE = [
    # images, channels, filters, height, width, pads, (tile rows, tile columns, vectors of a panel, panels)
    (1, 16, 32, 8, 8, ONE, (2, 2, 2, 1)),
    (2, 17, 31, 19, 13, ONE, (5, 2, 2, 2)),
    (1, 31, 100, 5, 6, (0, 0, 0, 0), (2, 1, 1, 3)),
    (1, 2, 20, 3, 4, (1, 0, 2, 1), (1, 1, 2, 1)),
    (3, 128, 64, 7, 9, ONE, (6, 0, 2, 1)),
    (1, 300, 40, 6, 5, ONE, (2, 2, 4, 1)),
    (1, MAX_CHANNELS, 3, 4, 4, ONE, (1, 1, 1, 1)),
]


@pytest.mark.daily(2)
@pytest.mark.skipif(not PAIRS, reason="no instruction multiplies pairs of 16 bits")
@pytest.mark.costly(8)
@pytest.mark.parametrize("kind", [u8, i8], ids=lambda k: k.name)
@pytest.mark.parametrize("case", NATIVE, ids=str)
def test_native_code_is_exact(case: tuple[Any, ...], kind: DType) -> None:
    """Random codes, and only the least and the greatest, with which sums wrap."""
    images, channels, filters, height, width, pads, block = case
    shape = (images, channels, height, width)
    for target in (HOST, V3) if channels < 300 else (HOST,):
        graph = layer(target, kind, shape, filters, pads, block[2:])
        for extreme in (False, True):
            x, w = codes(kind, shape, extreme), codes(i8, (filters, channels, 3, 3), extreme)
            zero = codes(kind, (filters,), extreme)[0]
            w[0] = -128  # with codes of one sign the largest sums that there are
            x[0] = kind.max if kind is u8 else kind.min
            with in_blocks(*block[:2]):
                done = tw.compile((graph, {"w": w, "zero": np.asarray(zero)}), target=target)
            np.testing.assert_array_equal(np.asarray(done(x)), sums(x, w, int(zero), pads))


@pytest.mark.parametrize("name,instruction", [("znver5", "vpdpwssd"), ("x86-64-v3", "vpmaddwd")])
def test_the_hot_loop_is_instructions_on_registers(name: str, instruction: str) -> None:
    target = Target.parse(name)
    run = split_prepare(layer(target, u8, (1, 128, 19, 19), 128, ONE, (2, 2))).run
    group = next(g for g in fuse(run) if any(n.op == "lowered.conv_winograd" for n in g.nodes))
    planned = plan(lower_group(group, "kernel").func, target)
    assert planned.plan == "winograd"
    text = assembly(emit_llvm(lower_loops(planned.func, target), target), target)
    loop = [line for line in text.splitlines() if instruction in line]
    assert len(loop) >= 16 and not any("(%rsp)" in line or "(%rbp)" in line for line in loop)


def integers(shape: tuple[int, ...], filters: int, kind: Any, pads: Any, zero: int, **attrs: Any) -> Any:
    """A model of one ConvInteger, and its weights."""
    rng = np.random.default_rng(7)
    w = rng.integers(-128, 128, (filters, shape[1], 3, 3)).astype(np.int8)
    node = helper.make_node("ConvInteger", ["x", "w", "xz"], ["y"], pads=list(pads), **attrs)
    weights = {"w": w, "xz": np.array(zero, kind)}
    return model([node], np.zeros(shape, kind), weights, TensorProto.INT32), w


@pytest.mark.daily(2)
@pytest.mark.skipif(not PAIRS, reason="no instruction multiplies pairs of 16 bits")
@pytest.mark.costly(6)
@pytest.mark.parametrize("kind,zero", [(np.uint8, 0), (np.uint8, 255), (np.int8, -128), (np.int8, 5)])
@pytest.mark.parametrize("shape,filters,pads", [((1, 32, 13, 9), 48, ONE), ((2, 40, 6, 7), 17, (0, 2, 1, 0))])
def test_both_ways_of_a_model_give_the_same_sums(shape: Any, filters: int, pads: Any, kind: Any, zero: int) -> None:
    """A file's convolution is computed directly and by transforms, on this machine and with vectors of 256 bits, to the
    same integers; the interpreter agrees."""
    proto, w = integers(shape, filters, kind, pads, zero)
    x = codes(dtype(np.dtype(kind)), shape, extreme=False)
    want = sums(x, w, zero, pads) - zero * w.astype(np.int64).sum((1, 2, 3))[:, None, None]
    for target in (HOST, V3):
        with deciding() as record:
            tw.compile(proto, target=target)
        (decision,) = [d for d in record.decisions if d.key.kind == "algorithm"]
        assert {setting.kind for setting in decision.space} == {Direct.name, Winograd.name}
        for way in (Direct.name, Winograd.name):
            setting = next(s for s in decision.space if s.kind == way)
            with deciding({decision.key.name: setting.label}):
                done = tw.compile(proto, target=target)
                after = passed(import_onnx(proto).graph, target)
            assert ("lowered.conv_winograd" in done.show("graph")) == (way == Winograd.name)
            np.testing.assert_array_equal(np.asarray(done(x)), want)
        (got,) = run_graph(after, {"x": x}, {"w": w, "xz": np.array(zero, kind)}).values()
        np.testing.assert_array_equal(got, want)


def chosen(target: Target, channels: int, filters: int, side: int, **attrs: Any) -> str:
    """How a convolution of codes is computed, as layouts have it."""
    proto, _ = integers((1, channels, side, side), filters, np.uint8, ONE, 0, **attrs)
    graph = passed(import_onnx(proto).graph, target)
    return next(n.op for n in graph.nodes if n.op.startswith("lowered.conv_"))


def test_transforms_are_selected_where_they_are_estimated_to_be_faster() -> None:
    zen = Target.parse("znver5")
    for channels, side in ((64, 56), (128, 28), (128, 19)):
        assert chosen(zen, channels, channels, side) == "lowered.conv_winograd"
    assert chosen(zen, 512, 512, 7) == "lowered.conv_dot"  # filters of eight times the size
    assert chosen(zen, MAX_CHANNELS + 1, 16, 5) == "lowered.conv_dot"  # sums that might not be exact
    assert chosen(zen, 128, 128, 19, strides=[2, 2]) == "lowered.conv_dot"
    assert chosen(AMX, 128, 128, 28) == "lowered.conv_tiles"  # registers of matrices are faster


def test_floats_are_what_they_were() -> None:
    number = numbers(f32, 4, 3, 1)
    assert (number.tiles, number.sums, number.group, number.inverse, number.shift) == (f32, f32, 1, 1, 0)
