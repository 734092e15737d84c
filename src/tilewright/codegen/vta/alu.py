"""Arithmetic on accumulators: translates expressions to operations of the ALU, which overwrite their first operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.codegen.vta.nests import nests
from tilewright.codegen.vta.work import Item, Work
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op
from tilewright.ir.loops import Store
from tilewright.support.errors import CompileError
from tilewright.targets.vta.isa import AluOp

Array = np.ndarray[Any, Any]
Rows = Callable[[Load], Array]

_OPS = {"min": AluOp.MIN, "max": AluOp.MAX, "add": AluOp.ADD, "mul": AluOp.MUL, "shr": AluOp.SHR, "shl": AluOp.SHR}
_LARGEST, _SMALLEST = 32767, -32768
_MAX_ADDED = 4 * _LARGEST


class Alus:
    """Writes ALU operations to a program. `last` maps each buffer to the last statement that reads it, which may
    overwrite it."""

    def __init__(self, program: list[Item], last: Mapping[Buffer, Store]) -> None:
        self.program, self.last = program, last

    def fill(self, rows: Array, number: int) -> None:
        """Write the operations that set accumulator rows to `number`: from zeros, its upper half is added and shifted,
        then its lower half is added."""
        self._clear(rows)
        upper, lower = number, 0
        if not _SMALLEST <= number <= _LARGEST:
            lower = (number & 0xFFFF) - ((number & 0x8000) << 1)
            upper = (number - lower) >> 16
        if upper:
            self._immediate(AluOp.ADD, rows, upper)
        if upper != number:
            self._immediate(AluOp.SHR, rows, -16)
            self.add(rows, lower)

    def add(self, rows: Array, number: int) -> None:
        """Write the operations that add `number` to accumulator rows, several if it is too large for one."""
        if abs(number) > _MAX_ADDED:
            raise CompileError("a number does not fit into an instruction", expected=_MAX_ADDED, got=number)
        while number:
            part = min(max(number, _SMALLEST), _LARGEST)
            self._immediate(AluOp.ADD, rows, part)
            number -= part

    def update(self, s: Store, target: Array, rows: Rows) -> None:
        """Write the operations of the store `s` to the rows `target`, where the value may begin with the target itself.
        `rows` returns the rows of a load."""
        results = self._value(s.value, rows, s)
        if isinstance(results, int):
            raise CompileError("a constant is no update", where=f"buffer {s.buffer.name!r}")
        if results.shape != target.shape or not np.array_equal(results, target):
            self._copy(target, results)

    def in_place(self, s: Store, rows: Rows) -> Array:
        """Write the operations that compute the value of the store `s` in the rows of one of its operands, which are
        overwritten; returns these rows. `rows` returns the rows of a load. A cast around the value adds no operation,
        as the instruction that stores the rows writes their low bytes alone. Raises CompileError for constants."""
        e = s.value
        while isinstance(e, Op) and e.name == "cast":
            e = e.args[0]
        results = self._value(e, rows, s)
        if isinstance(results, int):
            raise CompileError("VTA stores sums, no constants", got=results)
        return results

    def _value(self, e: Expr, rows: Rows, target: Store) -> Array | int:
        """Write the operations that compute `e`; returns the rows that hold it, or a number if it is constant."""
        match e:
            case Const():
                return int(e.value)
            case Load():
                return rows(e)
            case Op(name="neg", args=(a,)):
                return self._applied("mul", self._mine(a, rows, target), -1)
            case Op(name="cast", args=(a,)) if e.dtype.bits >= a.dtype.bits:
                return self._value(a, rows, target)
            case Op(name="sub", args=(a, b)):
                first, second = self._mine(a, rows, target), self._value(b, rows, target)
                if not isinstance(second, int):
                    second = self._applied("mul", self._mine(b, rows, target), -1)
                    return self._applied("add", first, second)
                return self._applied("add", first, -second)
            case Op() if e.name in _OPS and len(e.args) == 2:
                a, b = e.args
                if isinstance(a, Const) and e.name not in ("shr", "shl"):
                    a, b = b, a
                return self._applied(e.name, self._mine(a, rows, target), self._value(b, rows, target))
        raise CompileError("the ALU has no such operation", where=str(e), expected=", ".join(_OPS))

    def _mine(self, e: Expr, rows: Rows, target: Store) -> Array:
        """Write the operations that compute `e` in rows that may be overwritten, and return these. Raises CompileError
        if another statement reads them later."""
        results = self._value(e, rows, target)
        if isinstance(results, int):
            raise CompileError("an operation has constants alone", where=str(e))
        if isinstance(e, Load) and e.buffer != target.buffer and self.last.get(e.buffer, target) is not target:
            hint = "only the last stage that reads a sum computes in its place"
            raise CompileError("what is read again would be written over", where=f"buffer {e.buffer.name!r}", hint=hint)
        return results

    def _applied(self, name: str, first: Array, second: Array | int) -> Array:
        if isinstance(second, int):
            number = -second if name == "shl" else second
            if name == "add":
                self.add(first, number)
            else:
                self._immediate(_OPS[name], first, number)
            return first
        if name == "shl":
            raise CompileError("the ALU shifts left by numbers alone")
        self._emit(_OPS[name], [first, np.broadcast_to(second, first.shape)])
        return first

    def _immediate(self, op: AluOp, rows: Array, number: int) -> None:
        if not _SMALLEST <= number <= _LARGEST:
            raise CompileError("a number does not fit into an instruction", expected="16 bits", got=number)
        self._emit(op, [rows], number)

    def _copy(self, target: Array, source: Array) -> None:
        """Write the operations that copy the rows `source` to `target`: these are cleared, and the source is added."""
        self._clear(target)
        self._emit(AluOp.ADD, [target, source])

    def _clear(self, rows: Array) -> None:
        for nest in nests([rows], depth=0):
            self.program.append(Work(nest, reset=True))

    def _emit(self, op: AluOp, rows: list[Array], number: int | None = None) -> None:
        for nest in nests(rows, depth=0):
            self.program.append(Work(nest, op, number))
