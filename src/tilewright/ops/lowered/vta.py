"""A layer that the accelerator VTA computes: its program, as words, and its operands.

    %y, %memory = lowered.vta(%x, %w, %bias) {words = array u8[4096], uops = array u8[1024], addresses = [4096, ...],
    ...}

Operands have the layouts that the program expects (`plans/vta/layers.py`). The kernel is the simulator with the program
in it, so that a compiled model runs anywhere; `memory` is the accelerator's own, whose content is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import te
from tilewright.ir.attributes import Attrs, ConstantArray, Ints
from tilewright.ir.dtype import i8
from tilewright.ir.expr import as_int, const
from tilewright.ir.graph import TensorType
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import present
from tilewright.ops.registry import OpDef, Types, register
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.targets.vta.config import DEFAULT, Memory
from tilewright.targets.vta.kernel import kernel_text, memory_bytes
from tilewright.targets.vta.native import simulator_text
from tilewright.targets.vta.simulator import Machine
from tilewright.te import Tensor

SYMBOL = "tw_vta_layer_"


@dataclass(frozen=True, slots=True)
class VtaAttrs(Attrs):
    """Attributes of `lowered.vta`: the instructions (`words`) and micro-operations of a layer; the addresses of its
    operands, its result and its micro-operations; the result's shape; and a description of the layer for readers."""

    words: ConstantArray
    uops: ConstantArray
    addresses: Ints
    shape: Ints
    layer: str = ""


def _infer(types: Types, attrs: VtaAttrs) -> tuple[TensorType, ...]:
    """The type rule of `lowered.vta`: bytes of the shape that the attributes state, and the accelerator's memory."""
    for t in types:
        present(t)
    shapes = (attrs.shape, (memory_bytes(DEFAULT),))
    return tuple(TensorType(i8, tuple(const(n) for n in shape)) for shape in shapes)


def _reference(arrays: Sequence[Any], attrs: VtaAttrs) -> tuple[Any, ...]:
    result = np.zeros(attrs.shape, np.int8)
    operands = [np.ascontiguousarray(a).copy() for a in arrays]
    memory = dict(zip(attrs.addresses, [*operands, result, attrs.uops.array.copy()], strict=True))
    machine = Machine()
    machine.run(attrs.words.array, memory)
    buffers = (machine.buffers[m].view(np.int8).ravel() for m in (Memory.UOP, Memory.WGT, Memory.INP, Memory.ACC))
    return result, np.concatenate(list(buffers))


def _loops(types: Types, attrs: VtaAttrs, out: tuple[TensorType, ...]) -> PrimFunc:
    """A loop program with one call of the program's function (`targets/vta/kernel.py`), whose name is a digest of the
    program."""
    source = [t for t in types if t is not None]
    operands = [te.placeholder(t.shape, t.dtype, f"x{k}") for k, t in enumerate(source)]
    sizes = [_nbytes(t) for t in operands] + [int(np.prod(attrs.shape))]
    content = blake2b(digest_size=12)
    for part in (attrs.words.array, attrs.uops.array, np.array([*attrs.addresses, *sizes])):
        content.update(part.tobytes())
    symbol = SYMBOL + content.hexdigest()
    text = kernel_text(symbol, attrs.words.array, attrs.uops.array, attrs.addresses, sizes, DEFAULT)
    results = te.extern(
        [t.shape for t in out],
        operands,
        symbol,
        dtype=["int8", "int8"],
        llvm=text,
        shared=simulator_text(DEFAULT),
        name="vta",
    )
    return te.create_prim_func([*operands, *results], "vta")


def _nbytes(t: Tensor) -> int:
    return int(np.prod([as_int(n) or 0 for n in t.shape], dtype=np.int64)) * t.dtype.itemsize


register(OpDef("lowered.vta", "opaque", VtaAttrs, _infer, _reference, loops=_loops))
