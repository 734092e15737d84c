"""The operator registry: what an operator is, and how to put one into a graph.

An operator is one place: its type rule, its tensor expression and its NumPy reference stand together in a family's
file, which registers them here. Frontends build graphs with `emit`; the compiler asks `get(name)`.

There are two dialects. What models say are source operators (`ops/*.py`); what lowering makes of them, such as packed
weights and Winograd's products, are lowered ones (`ops/lowered/*.py`), whose names begin with "lowered.". An imported
graph has source operators alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.ir.graph import GraphBuilder, Node, TensorType, Value
from tilewright.ir.loops import PrimFunc
from tilewright.support.errors import UnsupportedError
from tilewright.te import Tensor

OpKind = Literal["pointwise", "injective", "reduction", "contraction", "opaque"]
"""How an output element depends on inputs, which decides fusion:

pointwise    the element at the same (broadcast) place of each input; any input shape that broadcasts to the output's
injective    a fixed number of elements elsewhere (transpose, slice, pad, concat, gather): can be inlined into readers
reduction    many elements of an input, few multiplications (sum, softmax, layer norm, pooling)
contraction  many elements of two inputs (matmul, convolution): the anchors that plans schedule
opaque       stands alone as a kernel of its own
"""

Dialect = Literal["source", "lowered"]
"""Who says an operator: models, or lowering."""

LOWERED = "lowered."
"""How the names of lowered operators begin."""

Types = Sequence[TensorType | None]
Attrs = Mapping[str, Any]
Infer = Callable[[Types, Attrs], tuple[TensorType, ...]]
Compute = Callable[[Sequence[Tensor | None], Attrs, tuple[TensorType, ...]], tuple[Tensor, ...]]
MakeFunc = Callable[[Types, Attrs, tuple[TensorType, ...]], PrimFunc]
Reference = Callable[[Sequence[Any], Attrs], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class OpDef:
    """An operator.

    infer      input types (None: absent) and attributes to output types; raises ShapeError naming what is wrong
    compute    the tensor expression: input tensors, attributes, output types to output tensors
    loops      instead of `compute`, for what tensor expressions cannot say (scans, sorting, recurrences): the loop
               program over (present inputs..., outputs...) in that order
    reference  the meaning in NumPy: arrays (None: absent) and attributes to arrays
    alias      the output is the first input's memory seen with another shape (reshape): no code is made for it
    """

    name: str
    kind: OpKind
    infer: Infer
    reference: Reference
    compute: Compute | None = None
    loops: MakeFunc | None = None
    alias: bool = False

    @property
    def dialect(self) -> Dialect:
        return "lowered" if self.name.startswith(LOWERED) else "source"


_registry: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Add an operator; its name must be new."""
    if op.name in _registry:
        raise ValueError(f"operator {op.name!r} is registered twice")
    _registry[op.name] = op
    return op


def get(name: str) -> OpDef:
    """The operator called `name`; UnsupportedError when there is none."""
    _load_families()
    op = _registry.get(name)
    if op is None:
        raise UnsupportedError(f"no operator named {name!r}")
    return op


def is_alias(node: Node) -> bool:
    """Whether a node needs no kernel: by its operator, or as a view (`transform/graph/views.py`), a concatenation or a
    slice with the attribute `view`."""
    return get(node.op).alias or bool(node.attr("view"))


def names() -> list[str]:
    """All operators."""
    _load_families()
    return sorted(_registry)


def _load_families() -> None:
    import tilewright.ops.families  # noqa: F401  imports every family, which registers its operators


def infer(op: str, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """The output types of a node."""
    return get(op).infer(types, attrs)


def emit(
    builder: GraphBuilder, op: str, *inputs: Value | None, names: Sequence[str] = (), **attrs: Any
) -> tuple[Value, ...]:
    """Append a node, its output types inferred; returns its outputs."""
    types = infer(op, [None if v is None else v.type for v in inputs], attrs)
    return builder.node(op, inputs, types, attrs, tuple(names))


def emit1(builder: GraphBuilder, op: str, *inputs: Value | None, name: str | None = None, **attrs: Any) -> Value:
    """`emit` for an operator with one output."""
    (value,) = emit(builder, op, *inputs, names=() if name is None else (name,), **attrs)
    return value


def check_node(node: Node) -> None:
    """Raise when the node's output types are not what its operator infers."""
    found = infer(node.op, [None if v is None else v.type for v in node.inputs], node.attributes)
    declared = tuple(v.type for v in node.outputs)
    if found != declared:
        from tilewright.support.errors import VerifyError

        raise VerifyError(f"{node.op}: outputs are {declared}, its type rule gives {found}")
