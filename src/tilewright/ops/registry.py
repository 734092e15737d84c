"""The operator registry: the definition of operators, and how to emit them into a graph.

An operator's type rule, tensor expression and NumPy reference stand together in the file of its family, which registers
them here. Frontends build graphs with `emit`; the compiler calls `get(name)`.

There are two dialects. Models consist of source operators (`ops/*.py`); lowering replaces them by lowered ones
(`ops/lowered/*.py`), such as products with packed weights or Winograd's, whose names begin with "lowered.". An imported
graph has source operators alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, Literal, TypeVar

from tilewright.ir.attributes import Attrs, AttrValue
from tilewright.ir.expr import Expr
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ir.loops import PrimFunc
from tilewright.support import plugins
from tilewright.support.classes import dataclass
from tilewright.support.discover import modules
from tilewright.support.errors import PluginError, UnsupportedError, VerifyError
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
"""The origin of an operator: a model, or lowering."""

LOWERED = "lowered."
"""The prefix of lowered operators' names."""

A = TypeVar("A", bound=Attrs)

Types = Sequence[TensorType | None]
Infer = Callable[[Types, A], tuple[TensorType, ...]]
Compute = Callable[[Sequence[Tensor | None], A, tuple[TensorType, ...]], tuple[Tensor, ...]]
MakeFunc = Callable[[Types, A, tuple[TensorType, ...]], PrimFunc]
Reference = Callable[[Sequence[Any], A], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Version:
    """A node that may replace another for sizes that satisfy `condition` (None: for all sizes that satisfy no other
    version's condition)."""

    condition: Expr | None
    node: Node


@dataclass(frozen=True, slots=True)
class OpDef(Generic[A]):
    """An operator.

    attrs      the dataclass of its attributes; `Attrs` itself if it has none
    infer      input types (None: absent) and attributes to output types; raises ShapeError naming what is wrong
    compute    the tensor expression: input tensors, attributes, output types to output tensors
    loops      instead of `compute`, where tensor expressions do not suffice (scans, sorting, recurrences): the loop
               program over (present inputs..., outputs...) in that order. If both exist, models use the loops, and
               `compute` serves users who write schedules
    reference  the meaning in NumPy: arrays (None: absent) and attributes to arrays
    alias      the output is the first input's memory seen with another shape (reshape): no code is generated
    versions   for a node the nodes that can replace it, each with a condition on sizes. The last one has none and
               serves all other sizes; `compute` states its computation
    prologue   whether its kernel takes pointwise work on its first input: it reads each element once, or once for a
               tile that a convolution pads
    widens     whether its kernel widens 16-bit floats of its first input as it copies them, at no cost in time
    channels   what divides the channels of its weights `w[filters, channels, ...]`, if one function may serve filters
               of all sizes (`transform/passed_sizes.py`)
    view       whether attributes say that a node needs no code, because its inputs are parts of its output's memory or
               its output is a part of its input's (`transform/graph/views.py`)
    """

    name: str
    kind: OpKind
    attrs: type[A]
    infer: Infer[A]
    reference: Reference[A]
    compute: Compute[A] | None = None
    loops: MakeFunc[A] | None = None
    alias: bool = False
    versions: Callable[[Node], tuple[Version, ...]] | None = None
    view: Callable[[A], bool] | None = None
    prologue: bool = False
    widens: bool = False
    channels: Callable[[A], int] | None = None

    @property
    def dialect(self) -> Dialect:
        return "lowered" if self.name.startswith(LOWERED) else "source"


_registry: dict[str, OpDef[Any]] = {}


def register(op: OpDef[A]) -> OpDef[A]:
    """Add the operator `op` to the registry, and return it. Raises ValueError if an operator has its name."""
    if op.name in _registry:
        raise ValueError(f"operator {op.name!r} is registered twice")
    plugins.count(op.infer, op.compute, op.loops, op.reference)
    _registry[op.name] = op
    return op


def unregister(name: str) -> None:
    """Remove the operator `name`, which code outside of Tilewright has registered, from the registry. Raises KeyError
    if there is none."""
    op = _registry.pop(name)
    plugins.discount(op.infer, op.compute, op.loops, op.reference)


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a plug-in of the group "operators".

    defs     operators
    onnx     rules that import ONNX operators, by domain and name: "com.example.SoftClip" (`frontend/onnx/registry.py`)
    layouts  rules that rewrite the operators when layouts are assigned (`transform/layout/assign.py`)
    """

    defs: tuple[OpDef[Any], ...]
    onnx: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    layouts: Mapping[str, Any] = field(default_factory=dict)


_of_plugins: dict[plugins.Plugin, Operators] = {}


def plugin_operators() -> dict[plugins.Plugin, Operators]:
    """Plug-in -> the operators, ONNX rules and layout rules that it adds; loads the plug-ins first."""
    plugins.load_group("operators", _register)
    return _of_plugins


def _register(plugin: plugins.Plugin, value: object) -> tuple[str, ...]:
    (operators,) = plugins.several(value, Operators)
    _load_families()
    names = [op.name for op in operators.defs]
    rules = list(operators.onnx)
    plugins.check_new("operator", names, list(_registry))
    plugins.check_new("ONNX rule", rules, [name for other in _of_plugins.values() for name in other.onnx])
    foreign = sorted(operators.layouts.keys() - set(names))
    if foreign:
        raise PluginError("layout rules are for a plug-in's own operators", got=", ".join(foreign))
    for op in operators.defs:
        register(op)
    _of_plugins[plugin] = operators
    return tuple(f"operator {name}" for name in names) + tuple(f"ONNX rule {name}" for name in rules)


def unload(plugin: plugins.Plugin, error: Exception) -> None:
    """Remove the operators of `plugin` from the registry, and record that it is not used, because of `error`: for
    another registry that cannot accept its part."""
    for op in _of_plugins.pop(plugin).defs:
        del _registry[op.name]
    plugins.leave_out(plugin, error)


def get(name: str) -> OpDef[Any]:
    """The operator called `name`, after loading all families and plug-ins if it is not known yet. Raises
    UnsupportedError if there is none."""
    op = _registry.get(name)
    if op is None:  # of a family that was not imported, which most models do without
        _load_families()
        plugin_operators()
        op = _registry.get(name)
    if op is None:
        raise UnsupportedError(f"no operator named {name!r}")
    return op


def is_alias(node: Node) -> bool:
    """Whether a node needs no kernel, by its operator or because it is a view."""
    return get(node.op).alias or is_view(node)


def is_view(node: Node) -> bool:
    """Whether a node, a concatenation or a slice, was turned into a view that shares memory."""
    view = get(node.op).view
    return view is not None and view(node.attrs)


def is_pointwise(node: Node) -> bool:
    """Whether a node is elementwise: each element of its single result depends on one element of each operand."""
    return get(node.op).kind == "pointwise" and len(node.outputs) == 1


def names() -> list[str]:
    """The names of all operators, sorted, with those of plug-ins, which are loaded."""
    _load_families()
    plugin_operators()
    return sorted(_registry)


def _load_families() -> None:
    import tilewright.ops.families  # noqa: F401  imports every family, which registers its operators

    modules("tilewright.algorithms", "operators")


def attributes(op: str, values: Mapping[str, AttrValue]) -> Attrs:
    """The attributes of operator `op` from values by name. Raises VerifyError, which lists those it has."""
    kind: type[Attrs] = get(op).attrs
    return kind.of(values, op)


def infer(op: str, types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """The output types of operator `op` for input types and attributes."""
    return get(op).infer(types, attrs)


def emit(
    builder: GraphBuilder,
    op: str,
    *inputs: Value | None,
    names: Sequence[str] = (),
    attrs: Attrs | None = None,
    **values: AttrValue,
) -> tuple[Value, ...]:
    """Append a node of the operator `op`, its output types inferred, and return its outputs, called `names`. Its
    attributes are `attrs` or made of `values`."""
    created = attributes(op, values) if attrs is None else attrs
    types = infer(op, [None if v is None else v.type for v in inputs], created)
    return builder.node(op, inputs, types, created, tuple(names))


def emit1(
    builder: GraphBuilder,
    op: str,
    *inputs: Value | None,
    name: str | None = None,
    attrs: Attrs | None = None,
    **values: AttrValue,
) -> Value:
    """Append a node of operator `op` with one output, whose type is inferred; returns the output. Its attributes are
    `attrs` or made of `values`."""
    (value,) = emit(builder, op, *inputs, names=() if name is None else (name,), attrs=attrs, **values)
    return value


def parse_graph(text: str, *, source: str = "<text>") -> Graph:
    """The graph that `text` prints, with operators of the registry. Raises ParseError."""
    from tilewright.ir import parser  # which compiles of models do without

    return parser.parse_graph(text, lambda op: get(op).attrs, source=source)


def parse_func(text: str, *, source: str = "<text>") -> PrimFunc:
    """The loop program that `text` prints, in which blocks may state operators of the registry as their origins. Raises
    ParseError."""
    from tilewright.ir import parser  # which compiles of models do without

    return parser.parse_func(text, lambda op: get(op).attrs, source=source)


def check_node(node: Node) -> None:
    """Raise VerifyError if the node's attributes are of another class than its operator's, or if its output types are
    not those that the operator infers from its inputs; errors of the type rule are raised, too."""
    kind = get(node.op).attrs
    if type(node.attrs) is not kind:
        raise VerifyError("has attributes of another kind", where=node.op, expected=kind.__name__, got=node.attrs)
    result = infer(node.op, [None if v is None else v.type for v in node.inputs], node.attrs)
    declared = tuple(v.type for v in node.outputs)
    if result != declared:
        raise VerifyError(f"{node.op}: outputs are {declared}, its type rule gives {result}")
