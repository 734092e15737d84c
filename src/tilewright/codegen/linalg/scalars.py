"""Scalar expressions in the dialects `arith`, `math` and `tensor`.

An index other than an axis alone is clamped to the tensor, since the branch of a selection that is not taken may read
out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.codegen.defined import defined
from tilewright.ir.dtype import DType, boolean, i64
from tilewright.ir.expr import Const, Expr, Load, Op, Var, as_expr, as_int
from tilewright.ir.functions import names_in
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError
from tilewright.te import Tensor


def element(t: DType) -> str:
    """The MLIR name of an element type; integers have no sign."""
    return "i1" if t is boolean else f"i{t.bits}" if t.is_int else t.name


def tensor_type(t: DType, shape: Sequence[Expr]) -> str:
    sizes = [as_int(d) for d in shape]
    return f"tensor<{''.join('?x' if s is None else f'{s}x' for s in sizes)}{element(t)}>"


_FLOAT = {
    "add": "addf",
    "sub": "subf",
    "mul": "mulf",
    "div": "divf",
    "fmod": "remf",
    "min": "minimumf",
    "max": "maximumf",
}
_INT = {
    "add": "addi",
    "sub": "subi",
    "mul": "muli",
    "bitand": "andi",
    "bitor": "ori",
    "bitxor": "xori",
    "shl": "shli",
    "and": "andi",
    "or": "ori",
}
_SIGNED = {
    "truncdiv": "divsi",
    "truncmod": "remsi",
    "floordiv": "floordivsi",
    "min": "minsi",
    "max": "maxsi",
    "shr": "shrsi",
}
_UNSIGNED = {
    "truncdiv": "divui",
    "truncmod": "remui",
    "floordiv": "divui",
    "mod": "remui",
    "min": "minui",
    "max": "maxui",
    "shr": "shrui",
}
_MATH = names_in("mlir") | {
    "abs": "absf",
    "arctanh": "atanh",
}
_COMPARE = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}


@dataclass(slots=True)
class Lines:
    """The lines of a function. `symbols` maps symbolic dimensions to the names of their values, of type i64."""

    text: list[str] = field(default_factory=list)
    symbols: dict[Var, str] = field(default_factory=dict)
    count: int = 0
    indent: str = "    "

    def line(self, text: str) -> None:
        self.text.append(self.indent + text)

    def new(self, text: str) -> str:
        """Append a line that defines a value; returns the value's name."""
        self.count += 1
        name = f"%{self.count}"
        self.line(f"{name} = {text}")
        return name


def token(t: Tensor) -> Any:
    """The key of tensor `t` in tables of values: (its stage, its index among the stage's results), or the tensor itself
    if it is an input."""
    return t if t.op is None else (t.op, t.index)


@dataclass(slots=True)
class Body:
    """Emits scalar expressions inside a region. `names` maps tensors to their values."""

    w: Lines
    variables: dict[Var, str]
    names: dict[Any, str]
    done: dict[Expr, str] = field(default_factory=dict)

    def value(self, e: Expr) -> str:
        entry = self.done.get(e)
        if entry is None:
            entry = self.done[e] = self.compute(e)
        return entry

    def compute(self, e: Expr) -> str:
        match e:
            case Var() if e in self.variables:
                return self.variables[e]
            case Var() if e in self.w.symbols:
                return self.w.symbols[e]
            case Const(number):
                return self.number(number, e.dtype)
            case Load(tensor, indices):
                return self.load(tensor, indices)
            case Op(name, args):
                total = defined(e)
                return self.value(total) if total is not e else self.operator(e, name, args)
        raise UnsupportedError("this expression cannot be written as linalg", got=e)

    def number(self, number: Any, t: DType) -> str:
        if t is boolean:
            return self.w.new(f"arith.constant {'true' if number else 'false'}")
        if t.is_float:
            bits = int.from_bytes(np.asarray(number, t.numpy).tobytes(), "little")
            return self.w.new(f"arith.constant 0x{bits:0{t.bits // 4}X} : {t}")
        value = int(number)
        return self.w.new(
            f"arith.constant {value - (1 << t.bits) if value >= 1 << (t.bits - 1) else value} : {element(t)}"
        )

    def load(self, tensor: Any, indices: Sequence[Expr]) -> str:
        at = []
        for i, extent in zip(indices, tensor.shape, strict=True):
            place = self.value(i) if i.dtype.bits == 64 else self.value(Op("cast", (i,), i64))
            if not isinstance(i, Var | Const):
                zero = self.value(as_expr(0))
                last = self.value(as_expr(extent) - 1)
                place = self.w.new(f"arith.maxsi {place}, {zero} : i64")
                place = self.w.new(f"arith.minsi {place}, {last} : i64")
            at.append(self.w.new(f"arith.index_cast {place} : i64 to index"))
        kind = tensor_type(tensor.dtype, tensor.shape)
        return self.w.new(f"tensor.extract {self.names[token(tensor)]}[{', '.join(at)}] : {kind}")

    def operator(self, e: Op, name: str, args: Sequence[Expr]) -> str:
        t = args[-1].dtype
        kind = element(t)
        x = [self.value(a) for a in args]
        new = self.w.new
        if name in _COMPARE:
            f, s, u = _COMPARE[name]
            if t.is_float:
                return new(f"arith.cmpf {f}, {x[0]}, {x[1]} : {kind}")
            return new(f"arith.cmpi {s if t.kind == 'int' else u}, {x[0]}, {x[1]} : {kind}")
        table = _FLOAT if t.is_float else {**_INT, **(_SIGNED if t.kind == "int" else _UNSIGNED)}
        if name in table and len(x) == 2:
            return new(f"arith.{table[name]} {x[0]}, {x[1]} : {kind}")
        if name in _MATH and t.is_float:
            return new(f"math.{_MATH[name]} {x[0]} : {kind}")

        def number(v: float) -> str:
            return self.number(v, t)

        match name:
            case "select":
                return new(f"arith.select {x[0]}, {x[1]}, {x[2]} : {kind}")
            case "cast":
                return self.cast(x[0], args[0].dtype, e.dtype)
            case "bitcast":
                return x[0] if element(e.dtype) == kind else new(f"arith.bitcast {x[0]} : {kind} to {element(e.dtype)}")
            case "neg":
                return (
                    new(f"arith.negf {x[0]} : {kind}")
                    if t.is_float
                    else new(f"arith.subi {number(0)}, {x[0]} : {kind}")
                )
            case "abs":
                return new(f"math.absi {x[0]} : {kind}") if t.kind == "int" else x[0]
            case "not" | "bitnot":
                ones = number(1) if t is boolean else number(-1 if t.kind == "int" else t.max)
                return new(f"arith.xori {x[0]}, {ones} : {kind}")
            case "isnan":
                return new(f"arith.cmpf uno, {x[0]}, {x[0]} : {kind}")
            case "isinf":
                return new(f"arith.cmpf oeq, {new(f'math.absf {x[0]} : {kind}')}, {number(math.inf)} : {kind}")
            case "larger":
                more = new(f"arith.cmpf ogt, {x[1]}, {x[0]} : {kind}")
                return new(f"arith.select {more}, {x[1]}, {x[0]} : {kind}")
            case "fma":
                return new(f"math.fma {x[0]}, {x[1]}, {x[2]} : {kind}")
            case "pow":
                return new(f"math.powf {x[0]}, {x[1]} : {kind}")
            case "atan2":
                return new(f"math.atan2 {x[0]}, {x[1]} : {kind}")
            case "mod":
                return self.floored(x[0], x[1], t)
            case "sigmoid":
                power = new(f"math.exp {new(f'arith.negf {x[0]} : {kind}')} : {kind}")
                return new(f"arith.divf {number(1)}, {new(f'arith.addf {number(1)}, {power} : {kind}')} : {kind}")
            case "gelu" | "gelu_tanh":
                return self.gelu(x[0], t, name == "gelu_tanh")
        raise UnsupportedError(f"the operator {name} cannot be written as linalg", got=t)

    def floored(self, a: str, b: str, t: DType) -> str:
        """Emit the remainder of `a` by `b` that has the divisor's sign, as floor division leaves it; returns its
        name."""
        kind, new = element(t), self.w.new
        rest, zero = new(f"arith.remsi {a}, {b} : {kind}"), self.number(0, t)
        opposite = new(f"arith.cmpi slt, {new(f'arith.xori {rest}, {b} : {kind}')}, {zero} : {kind}")
        inexact = new(f"arith.cmpi ne, {rest}, {zero} : {kind}")
        wrong = new(f"arith.andi {opposite}, {inexact} : i1")
        return new(f"arith.select {wrong}, {new(f'arith.addi {rest}, {b} : {kind}')}, {rest} : {kind}")

    def gelu(self, x: str, t: DType, tanh: bool) -> str:
        kind, new = element(t), self.w.new
        if tanh:
            cube = new(f"arith.mulf {x}, {new(f'arith.mulf {x}, {x} : {kind}')} : {kind}")
            inner = new(f"arith.addf {x}, {new(f'arith.mulf {cube}, {self.number(0.044715, t)} : {kind}')} : {kind}")
            f = new(
                f"math.tanh {new(f'arith.mulf {inner}, {self.number(math.sqrt(2 / math.pi), t)} : {kind}')} : {kind}"
            )
        else:
            f = new(f"math.erf {new(f'arith.mulf {x}, {self.number(math.sqrt(0.5), t)} : {kind}')} : {kind}")
        whole = new(f"arith.addf {f}, {self.number(1, t)} : {kind}")
        return new(f"arith.mulf {new(f'arith.mulf {x}, {self.number(0.5, t)} : {kind}')}, {whole} : {kind}")

    def cast(self, x: str, source: DType, to: DType) -> str:
        a, b = element(source), element(to)
        if a == b and (source.is_float == to.is_float) and (source is boolean) == (to is boolean):
            return x
        new = self.w.new
        if to is boolean:
            zero = self.number(0, source)
            return new(f"arith.cmpf une, {x}, {zero} : {a}" if source.is_float else f"arith.cmpi ne, {x}, {zero} : {a}")
        signed = source.kind == "int"
        if source.is_float and to.is_float:
            return new(f"arith.{'extf' if to.bits > source.bits else 'truncf'} {x} : {a} to {b}")
        if source.is_float:
            return new(f"arith.{'fptosi' if to.kind == 'int' else 'fptoui'} {x} : {a} to {b}")
        if to.is_float:
            return new(f"arith.{'sitofp' if signed else 'uitofp'} {x} : {a} to {b}")
        if source is boolean or to.bits > source.bits:
            return new(f"arith.{'extsi' if signed else 'extui'} {x} : {a} to {b}")
        return new(f"arith.trunci {x} : {a} to {b}")
