"""The machine's simulator, as native code that a compiled model calls. A driver would write the words to a device
here."""

from __future__ import annotations

from typing import Any

import numpy as np

from outer8.machine import CLEAR, FIELDS, LOAD, OUTER, STORE, TILE
from tilewright.native.assembler import I32, I64, PTR, VOID, Function, Module, Value


def text(symbol: str, words: np.ndarray[Any, Any]) -> str:
    """LLVM text of `void symbol(ptr a, ptr b, ptr y, ptr scratch)`, which runs a program."""
    m = Module()
    data = "".join(f"\\{byte:02X}" for byte in words.astype("<i4").tobytes())
    m.raw("words", f'@words = internal constant [{words.size * 4} x i8] c"{data}", align 16')
    params = [(name, PTR) for name in ("a", "b", "y", "scratch")]
    with m.function(symbol, VOID, params) as (f, (a, b, y, scratch)):
        arrays = f.space(24)
        for k, array in enumerate((a, b, y)):
            f.store(array, arrays, 8 * k)
        with f.each(len(words)) as n:
            word = f.symbol("words") + n * (4 * FIELDS)
            fields = [f.load(I32, word, 4 * k).signed(I64) for k in range(FIELDS)]
            opcode = fields[0]
            with f.when(opcode.eq(LOAD)):
                _copy(f, arrays, scratch, fields, loads=True)
            with f.when(opcode.eq(STORE)):
                _copy(f, arrays, scratch, fields, loads=False)
            with f.when(opcode.eq(CLEAR)), f.each(TILE) as i, f.each(TILE) as j:
                f.put(0, I32, scratch, (fields[1] + i * fields[2] + j) * 4)
            with f.when(opcode.eq(OUTER)), f.each(TILE) as i, f.each(TILE) as j:
                sums = scratch + (fields[1] + i * fields[2] + j) * 4
                x = _float(f, scratch + (fields[3] + i * fields[4]) * 4)
                w = _float(f, scratch + (fields[5] + j) * 4)
                product = f.let("float", f"fmul float {x.text}, {w.text}")
                total = f.let("float", f"fadd float {_float(f, sums).text}, {product.text}")
                f.emit(f"store float {total.text}, ptr {sums.text}, align 4")
        f.emit("ret void")
        f.start(f.label())
    return m.text()


def _float(f: Function, at: Value) -> Value:
    return f.let("float", f"load float, ptr {at.text}, align 4")


def _copy(f: Function, arrays: Value, scratch: Value, fields: list[Value], *, loads: bool) -> None:
    array = f.load(PTR, arrays + fields[1] * 8)
    with f.each(TILE) as i, f.each(TILE) as j:
        outside = array + (fields[2] + i * fields[3] + j) * 4
        inside = scratch + (fields[4] + i * fields[5] + j) * 4
        source, target = (outside, inside) if loads else (inside, outside)
        f.store(f.load(I32, source), target)
