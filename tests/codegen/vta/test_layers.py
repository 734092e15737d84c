"""Layers compiled for VTA: bit-exact to NumPy's integers, free of races, and as fast as they are estimated to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.vta.layers import as_before, check, compiled, operands, resnet, run, transposed, wanted
from tilewright import te
from tilewright.codegen.vta.emit import emit_vta
from tilewright.codegen.vta.machine import ACC, INP
from tilewright.plans.framework.decisions import forcing
from tilewright.plans.framework.space import Setting
from tilewright.plans.vta.layers import (
    Addition,
    Convolution,
    MaxPool,
    Product,
    Requantised,
    convolution,
    most_bias,
    with_offset,
)
from tilewright.plans.vta.schedules import choose, decision_key
from tilewright.plans.vta.tiles import Tile, cycles, fits, shape_of, tiles
from tilewright.support.errors import CompileError, ScheduleError
from tilewright.targets.vta.check import faults
from tilewright.targets.vta.config import Memory
from tilewright.targets.vta.isa import Gemm
from tilewright.targets.vta.simulator import Machine
from tilewright.targets.vta.timing import timeline
from tilewright.transform.loops.placed import placed_loops

SMALL = Requantised(9)


@pytest.mark.daily(4)
@pytest.mark.costly(2)
@pytest.mark.parametrize(
    "layer",
    [
        Convolution(1, 8, 8, 1, (3, 3), 1, (1, 1, 1, 1), requantised=SMALL),
        Convolution(2, 9, 7, 3, (3, 3), 2, (1, 1, 1, 1), requantised=Requantised(8, 0, 127)),
        Convolution(1, 12, 9, 2, (5, 5), 1, (2, 2, 2, 2), requantised=SMALL),
        Convolution(1, 15, 15, 4, (7, 7), 2, (3, 3, 3, 3), requantised=SMALL),
        Convolution(3, 7, 7, 2, (1, 1), 2, requantised=SMALL),
        Convolution(2, 6, 10, 2, (3, 1), 1, (1, 0, 1, 0), requantised=SMALL),
        Convolution(3, 8, 8, 3, (3, 3), 1, (1, 1, 1, 1), separate=True, requantised=Requantised(5)),
        Convolution(2, 9, 9, 2, (3, 3), 2, (1, 1, 1, 1), separate=True, requantised=Requantised(5)),
        Product(16, 2, 2, SMALL),
        Product(33, 4, 4, Requantised(9, 0, 127)),
        Product(1, 8, 10, SMALL),
        Addition(100, (1, 1), 1, Requantised(1, 0, 127)),
        Addition(1000, (3, -2), 0, Requantised(2)),
        Convolution(2, 8, 8, 2, (3, 3), 1, (1, 1, 1, 1), requantised=Requantised(3, even=True)),
        Product(33, 2, 4, Requantised(4, 0, 127, even=True)),
        Product(7, 1, 1, Requantised(0, even=True)),
        Addition(700, (1, 1), 1, Requantised(1, even=True)),
        Addition(300, (3, -2), 2, Requantised(2, even=True)),
        MaxPool(2, 8, 8, (2, 2), 2),
        MaxPool(1, 9, 9, (3, 3), 2),
        MaxPool(4, 15, 15, (3, 3), 2, (1, 1, 1, 1)),
    ],
    ids=str,
)
def test_small_layers(layer: Convolution | Product | Addition | MaxPool) -> None:
    program = check(layer)
    arrays = operands(layer)
    memory = dict(zip(program.addresses, [*arrays, np.ascontiguousarray(wanted(layer, arrays))], strict=True))
    assert faults(program.instructions, {**memory, program.uop_address: program.uops}) == ()


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", ["C5", "C8", "C11"])
def test_layers_of_resnet(name: str) -> None:
    check(resnet(name))


LAYER = Convolution(4, 14, 14, 4, (3, 3), 1, (1, 1, 1, 1), requantised=SMALL)


@pytest.mark.daily(3)
@pytest.mark.costly(2)
@pytest.mark.parametrize("tile", [
    Tile(4, 7, 4, 1, False, "all"), Tile(1, 4, 2, 2, False, "chunk"), Tile(2, 5, 1, 2, True, "chunk"),
    Tile(2, 14, 2, 1, True, "tile"), Tile(2, 3, 4, 2, False, "tile"), Tile(3, 6, 2, 2, True, "all"),
], ids=str)  # fmt: skip
def test_any_tile_computes_the_layer(tile: Tile) -> None:
    assert fits(tile, shape_of(LAYER))
    program = check(LAYER, tile)
    arrays = operands(LAYER)
    memory = dict(zip(program.addresses, [*arrays, np.ascontiguousarray(wanted(LAYER, arrays))], strict=True))
    assert faults(program.instructions, {**memory, program.uop_address: program.uops}) == ()
    actual, estimate = timeline(program.instructions).cycles, cycles(tile, shape_of(LAYER))
    assert actual < 1.05 * estimate
    if 14 % (tile.lines * tile.threads) == 0 and 4 % tile.outputs == 0:  # else a part of the last tile is estimated too
        assert actual > 0.95 * estimate


def test_biases_are_the_first_values_of_sums() -> None:
    """With the offset nothing but each place's first tile is cleared; biases as large as they come leave what they
    left, and so do accumulators that another program has left full."""
    layer = replace(LAYER, requantised=Requantised(10, 0, 127))
    better = with_offset(layer)
    tile = Tile(2, 3, 4, 2, False, "tile")
    before, program = compiled(layer, tile), check(better, tile)
    resets = [sum(isinstance(i, Gemm) and i.reset for i in p.instructions) for p in (before, program)]
    assert resets[0] > resets[1] == 2
    assert timeline(program.instructions).cycles < timeline(before.instructions).cycles
    x, w, _ = operands(layer)
    most = most_bias(layer)
    bias = np.random.default_rng(1).choice([-(1 << 29), -most, -1, 0, most, 1 << 29], (4, 16))
    first = np.clip(bias, -most, most) + better.requantised.offset
    expected = wanted(layer, [x, w, bias.astype(np.int32)])
    arrays = [x, w, first.astype(np.int32)]
    memory = dict(zip(program.addresses, [*arrays, np.zeros_like(expected)], strict=True))
    machine = Machine()
    machine.buffers[Memory.ACC][...] = np.iinfo(np.int32).max
    machine.run(program.words, {**memory, program.uop_address: program.uops})
    assert np.array_equal(memory[program.addresses[3]], expected)
    assert faults(program.instructions, {**memory, program.uop_address: program.uops}) == ()


def test_no_offset_where_none_fits() -> None:
    """Bounds of a clip have 16 bits; without a shift a result's byte has all of the sum."""
    for q, layer in ((Requantised(0), LAYER), (Requantised(5), LAYER), (Requantised(30), LAYER)):
        assert with_offset(replace(layer, requantised=q)).requantised.offset == 0
    assert with_offset(Product(4, 1, 1, Requantised(12))).requantised.offset == 2 << 20


def test_a_transposed_convolution() -> None:
    """DCGAN's layer: kernel 4, stride 2, pad 1; by its definition, not by phases."""
    rng = np.random.default_rng(3)
    x = rng.integers(-128, 128, (32, 5, 6), np.int8)
    w = rng.integers(-128, 128, (32, 16, 4, 4), np.int8)
    phases, (before, after) = transposed(w, 1)
    layer = Convolution(
        2, 5, 6, 1, (2, 2), 1, (before, before, after, after), phases=2, shifted=(1, 1), requantised=SMALL
    )
    assert layer.rows == (5, 6)
    whole = np.zeros((16, 2 * 4 + 4, 2 * 5 + 4), np.int64)
    for y in range(5):
        for q in range(6):
            whole[:, 2 * y : 2 * y + 4, 2 * q : 2 * q + 4] += np.einsum(
                "c,cokl->okl", x[:, y, q].astype(np.int64), w.astype(np.int64)
            )
    expected = np.clip(whole[:, 1:-1, 1:-1] >> 9, -128, 127).astype(np.int8)
    blocks = x.reshape(2, 16, 5, 6).transpose(0, 2, 3, 1).copy()
    packed = phases.reshape(1, 16, 2, 16, 2, 2, 2, 2).transpose(0, 2, 4, 5, 6, 7, 1, 3).copy()
    arrays = [blocks, packed, np.zeros((1, 16), np.int32)]
    result = run(compiled(layer), arrays, np.zeros((1, 5, 2, 6, 2, 16), np.int8))
    assert np.array_equal(result.reshape(10, 12, 16).transpose(2, 0, 1), expected)
    assert np.array_equal(wanted(layer, arrays), result)


def test_overlap_pays() -> None:
    """Virtual threads and loads ahead against the best tile without them, and the same tile without them."""
    layer = resnet("C11")
    before, after = (timeline(compiled(layer, choose(layer, overlap)).instructions) for overlap in (False, True))
    assert before.cycles / after.cycles > 1.4
    tile = choose(resnet("C9"))
    assert tile.threads == 2 or tile.doubled
    shape = shape_of(resnet("C9"))
    assert cycles(as_before(tile), shape) / cycles(tile, shape) > 1.15


def test_a_decision_can_be_forced() -> None:
    best, name = choose(LAYER), decision_key(convolution(LAYER)).name
    shape = shape_of(LAYER)
    other = sorted(tiles(shape), key=lambda t: cycles(t, shape))[1]
    with forcing({name: Setting("vta", other.knobs).label}):
        assert choose(LAYER) == other != best


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ScheduleError, match="no tile of the layer fits"):
        choose(Convolution(1, 3, 4000, 1, (3, 3), 1, (1, 1, 1, 1)))
    x = te.placeholder((4, 16), "int8", name="x")
    wide = te.compute((4, 16), lambda i, j: te.cast(x[i, j], "int32"), name="wide")
    y = te.compute((4, 16), lambda i, j: te.cast(wide[i, j] // 3, "int8"), name="y")
    s = te.create_schedule(y)
    s[wide].set_scope(ACC)
    with pytest.raises(CompileError, match="the ALU has no such operation"):
        emit_vta(placed_loops(te.lower(s, [x, y], "f")))
    s = te.create_schedule(y)
    s[wide].set_scope(INP)
    with pytest.raises(CompileError):
        emit_vta(placed_loops(te.lower(s, [x, y], "f")))
