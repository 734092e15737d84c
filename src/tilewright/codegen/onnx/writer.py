"""`Writer`: ONNX nodes in order, names for values, and sizes as tensors of one element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.ir.dtype import DType, i64
from tilewright.ir.expr import Const, Expr, Op, Var, as_expr, as_int
from tilewright.ir.graph import TensorType, Value
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

OPSET = 21
"""The ONNX operator set of emitted models: ONNX Runtime has kernels for it since 2024, while it lacks the new versions
of some operators in later sets."""
IR_VERSION = 10
LATER = ("f4e2m1", "f8e8m0", "i2", "u2")
"""Element types that ONNX has only since later operator sets."""


def code(t: DType) -> int:
    """ONNX's number of the element type `t`."""
    if t.name in LATER:
        raise UnsupportedError(f"ONNX has {t} only after operator set {OPSET}", got=t)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(t.numpy)))


def info(name: str, t: TensorType) -> onnx.ValueInfoProto:
    """The ONNX declaration of a value's name and type; dimensions that are computed stay open."""
    dims = [as_int(d) if as_int(d) is not None else str(d) if isinstance(d, Var) else None for d in t.shape]
    return helper.make_tensor_value_info(name, code(t.dtype), dims)


@dataclass(slots=True)
class Shared:
    """The state that the writer of a graph and those of its bodies share: used names, constants, initializers."""

    used_names: set[str] = field(default_factory=set)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    constant_nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)

    def fresh(self, hint: str) -> str:
        name, k = hint, 0
        while name in self.used_names or not name:
            k += 1
            name = f"{hint}_{k}"
        self.used_names.add(name)
        return name


@dataclass(slots=True)
class Writer:
    """Collects the nodes of one graph. `names` maps values to their names, `symbols` the symbols of dimensions to the
    names of their sizes, each a list of one number. `outputs` are the graph's outputs, whose own names are reserved for
    them."""

    shared: Shared = field(default_factory=Shared)
    names: dict[Value, str] = field(default_factory=dict)
    symbols: dict[Var, str] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    outputs: frozenset[Value] = frozenset()

    def inner(self) -> Writer:
        """A writer for a body inside this graph, which sees all values written so far."""
        return Writer(self.shared, dict(self.names), dict(self.symbols))

    def name(self, value: Value) -> str:
        """Give a value a fresh name, which the nodes that follow use."""
        self.names[value] = self.shared.fresh(value.name)
        return self.names[value]

    def renamed(self, name: str, value: Value) -> str:
        """Rename the output of the last node, if that computes `value`, to the value's own name."""
        last = list(self.nodes[-1].output) if self.nodes else []
        if name not in last:
            return name
        own = value.name if value in self.outputs else self.shared.fresh(value.name)
        self.nodes[-1].output[last.index(name)] = own
        return own

    def op(self, kind: str, inputs: Sequence[str | None], /, **attributes: Any) -> str:
        """Add a node of ONNX's operator `kind` with one output; returns that output's fresh name."""
        return self.several(kind, inputs, [self.shared.fresh(kind.lower())], **attributes)[0]

    def several(
        self, kind: str, inputs: Sequence[str | None], outputs: Sequence[str], /, **attributes: Any
    ) -> list[str]:
        """Add a node of ONNX's operator `kind` whose outputs have the names `outputs`; returns these. Attributes that
        are None are left out, and so are absent inputs at the end."""
        arguments = [name or "" for name in inputs]
        while arguments and not arguments[-1]:
            arguments.pop()
        retained = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(kind, arguments, list(outputs), **retained))
        return list(outputs)

    # --- numbers and sizes --------------------------------------------------------------------------------------------

    def constant(self, array: Any, t: DType, hint: str = "constant") -> str:
        """The name of a constant with the elements of `array` in type `t`. Unless an equal constant exists, a node
        `Constant` before all other nodes is added for it, whose name begins with `hint`; initializers are only for
        weights."""
        array = np.ascontiguousarray(np.asarray(array).astype(t.numpy)).reshape(np.shape(array))
        key = (str(t), array.shape, array.tobytes())
        if key not in self.shared.constants:
            name = self.shared.fresh(hint)
            value = numpy_helper.from_array(array, name)
            self.shared.constant_nodes.append(helper.make_node("Constant", [], [name], value=value))
            self.shared.constants[key] = name
        return self.shared.constants[key]

    def initializer(self, array: Any, hint: str) -> str:
        """Add an initializer with the elements of `array`, which is shared with no other; returns its name, which
        begins with `hint`."""
        name = self.shared.fresh(hint)
        self.shared.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, values: Sequence[int]) -> str:
        return self.constant(np.asarray(values, np.int64), i64)

    def scalar(self, number: Any, t: DType) -> str:
        return self.constant(np.asarray(number), t)

    def size(self, e: Any) -> str:
        """Emit the size `e` as a list of one number; returns its name."""
        match as_expr(e):
            case Const(value):
                return self.ints([int(value)])
            case Var() as v if v in self.symbols:
                return self.symbols[v]
            case Op(name, args) if name in _SIZES:
                a, b = (self.size(x) for x in args)
                return self.op(_SIZES[name], [a, b])
        raise UnsupportedError("this size cannot be said in ONNX", got=e)

    def sizes(self, shape: Sequence[Any]) -> str:
        """Emit the sizes `shape` as a list; returns its name."""
        known = [as_int(as_expr(d)) for d in shape]
        if None not in known:
            return self.ints([d or 0 for d in known])
        return self.op("Concat", [self.size(d) for d in shape], axis=0)

    # --- what several rules need --------------------------------------------------------------------------------------

    def cast(self, x: str, old: DType, new: DType) -> str:
        return x if old is new else self.op("Cast", [x], to=code(new))

    def reshape(self, x: str, shape: Sequence[Expr]) -> str:
        """Emit a reshape of `x`; returns its name. A single unknown size is left to be inferred."""
        known = [as_int(d) for d in shape]
        if known.count(None) == 1 and 0 not in known:
            return self.op("Reshape", [x, self.ints([-1 if d is None else d for d in known])])
        return self.op("Reshape", [x, self.sizes(shape)], allowzero=1 if 0 in known else None)

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        return x if list(perm) == list(range(len(perm))) else self.op("Transpose", [x], perm=list(perm))


_SIZES = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "floordiv": "Div",
    "truncdiv": "Div",
    "mod": "Mod",
    "max": "Max",
    "min": "Min",
}
"""For each arithmetic operator on sizes, which are not negative, its ONNX operator."""
