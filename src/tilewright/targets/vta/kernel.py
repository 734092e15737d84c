"""A program as a function of LLVM text that runs it on the simulator: what a compiled model calls.

    void symbol(ptr operands..., ptr result, ptr memory)

`memory` has the bytes of the accelerator's buffers; there is no other state between calls, so that any number of
threads may call it, each with its own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.native.assembler import I64, PTR, VOID, Function, Module, Value
from tilewright.targets.vta.config import Config, Memory
from tilewright.targets.vta.native import COUNTERS, MACHINE

Array = np.ndarray[Any, Any]

_BUFFERS = (("uop", Memory.UOP), ("wgt", Memory.WGT), ("inp", Memory.INP), ("acc", Memory.ACC))


def memory_bytes(config: Config) -> int:
    """Bytes of all buffers."""
    return sum(config.rows(m) * config.dram_bytes(m) for _, m in _BUFFERS)


def kernel_text(
    symbol: str, words: Array, uops: Array, addresses: Sequence[int], sizes: Sequence[int], config: Config
) -> str:
    """The LLVM text, which calls the simulator's (`native.py: simulator_text`).

    Args:
        symbol: the function's name.
        words, uops: the instructions and micro-operations.
        addresses: of the operands, the result and the micro-operations.
        sizes: bytes of the operands and the result.
        config: the machine's sizes.
    """
    m = Module()
    for name, content in (("words", words), ("uops", uops)):
        m.constant(name, content.astype(np.uint8).tobytes())
    params = [(f"p{k}", PTR) for k in range(len(sizes))]
    with m.function(symbol, VOID, [*params, ("memory", PTR)]) as (f, (*operands, memory)):
        segments = f.space(24 * len(addresses))
        nbytes = [*sizes, uops.size]
        for k, (address, size) in enumerate(zip(addresses, nbytes, strict=True)):
            where = operands[k] if k < len(operands) else f.symbol("uops")
            segments[24 * k] = address
            segments[24 * k + 8] = size
            segments[24 * k + 16] = where
        table = _machine(f, memory, segments, len(addresses), config)
        f.call(I64, "tw_vta_run", f.symbol("words"), (I64, len(words)), table, (I64, 0))
        f.emit("ret void")
        f.start(f.label())
    return m.text()


def _machine(f: Function, memory: Value, segments: Value, count: int, config: Config) -> Value:
    """Emit the simulator's table of addresses: of its buffers in `memory`, of the `count` memory `segments`, and of
    counters and tokens, which begin at 0 (`native.py`); returns the table's address."""
    table = f.space(8 * len(MACHINE))
    counts = f.space(8 * (len(COUNTERS) + 4))
    for k in range(len(COUNTERS) + 4):
        counts[8 * k] = 0
    at = 0
    for name, kind in _BUFFERS:
        table[MACHINE[name]] = memory + at
        at += config.rows(kind) * config.dram_bytes(kind)
    table[MACHINE["segments"]] = segments
    table[MACHINE["count"]] = count
    table[MACHINE["counters"]] = counts
    table[MACHINE["tokens"]] = counts + 8 * len(COUNTERS)
    return table
