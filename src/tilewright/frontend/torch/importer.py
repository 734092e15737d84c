"""An exported program to Graph: one walk over the nodes that the outputs need.

    torch.nn.Module --export--> ExportedProgram --simplified--> nodes with rules --this walk--> Graph

Problems are noted node by node and raised together at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import GraphModule, Node

from tilewright.frontend.common.emitter import check_size
from tilewright.frontend.common.finish import Imported, Interface, finished, located, reason
from tilewright.frontend.torch import registry
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.dtypes import DTYPES, element_type
from tilewright.frontend.torch.example import Dims, read_example
from tilewright.frontend.torch.export import export_module, is_composite, refuse_example, serves_one, simplified
from tilewright.frontend.torch.outputs import output_names
from tilewright.frontend.torch.symbols import Sizes
from tilewright.frontend.torch.weights import Weights, read_weights, tensor_type, to_array
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ops.dims import same_shape
from tilewright.ops.registry import emit1
from tilewright.support.errors import Error, ModelError, Problems, UnsupportedError

_IRRELEVANT = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
"""Arguments that say where and how PyTorch keeps a tensor."""


def import_torch(
    model: torch.nn.Module | ExportedProgram,
    example: Any = None,
    dims: Mapping[str, int] | None = None,
    dynamic: str | Mapping[str, Mapping[int, str]] | None = "auto",
) -> Imported:
    """Read a module or an exported program; see `tilewright.compile`.

    Raises ModelError (UnsupportedError for what Tilewright lacks), which lists everything that is wrong.
    """
    if isinstance(model, ExportedProgram):
        return _imported(model, None, None, dict(dims or {}), "exported program")
    if example is None:
        raise ModelError("a PyTorch module needs an example of its inputs", expected="tw.compile(module, example)")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs = read_example(model, example, device)
    program, axes = export_module(model, inputs, dynamic)
    names = [leaf.name for leaf in inputs.leaves]
    label = type(model).__name__
    least = 1 if not any(axes) or serves_one(program, model, inputs, axes) else 2
    declared = list(zip(names, axes, strict=True))
    refused = partial(refuse_example, model, inputs)
    return _imported(program, model, declared, dict(dims or {}), label, least, refused=refused)


def _imported(program: ExportedProgram, *rest: Any, refused: Callable[[], None] = lambda: None) -> Imported:
    """The program as a graph. Operators that rules refuse are taken apart by PyTorch where it can, and what that gives
    is tried again; before that, `refused` may raise what is to blame in their place."""
    apart: set[Any] = set()
    first: Error | None = None
    while True:
        importer = _Importer(simplified(program, apart), *rest)
        try:
            return importer.run()
        except Error as error:
            if first is None:
                refused()
            first = first or error  # which names the user's operators
            more = importer.refused - apart
            if not more:
                raise first from None
            apart |= more


class _Skipped(Exception):
    """A node depends on one that failed."""


@dataclass(slots=True)
class _Importer:
    program: ExportedProgram
    module: torch.nn.Module | None
    declared: list[tuple[str, Dims]] | None
    """Names and symbolic dimensions of the tensors among the inputs, where they are known."""
    fixed: dict[str, int]
    label: str
    least: int = 1
    """The smallest size of symbolic dimensions."""
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    weights: dict[str, Any] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    values: dict[Node, Any] = field(default_factory=dict)
    failed: set[Node] = field(default_factory=set)
    refused: set[Any] = field(default_factory=set)
    """Operators whose rules do not cover how they are used here, and which PyTorch can take apart."""
    sizes: Sizes = field(init=False)
    source: Weights = field(init=False)

    def run(self) -> Imported:
        self.sizes = Sizes(self.program.range_constraints, self.fixed, self.least)
        self.source = read_weights(self.program, self.module)
        self.builder.name = self.label if self.label.isidentifier() else "main"
        self.builder.taken.update(self.source.all)
        inputs = self.inputs()
        outputs, names = self.outputs()
        self.nodes(self.program.graph_module, self.values)
        self.problems.raise_if_any(
            f"{len(self.problems)} problems in the model", where=self.label, kind=_kind(self.problems)
        )
        given = [(name, self.values[node]) for name, node in zip(names, outputs, strict=True)]
        imported = finished(self.builder, _distinct(given, self.builder), self.weights)
        read = {p.name for p in imported.graph.params}
        ignored = tuple(name for name in self.source.all if name not in read)
        tied = tuple((name, first) for name, first in self.source.tied if first in read)
        return Imported(imported.graph, imported.weights, Interface(tuple(inputs), tuple(names), ignored, tied))

    # --- what stands around the nodes ---------------------------------------------------------------------------------

    def inputs(self) -> list[str]:
        """Declare the inputs, in order; gives their names."""
        placeholders = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        specs = [s for s in self.program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
        found: list[tuple[Node, str, Dims | None]] = []
        known = iter(self.declared or ())
        for spec in specs:
            if isinstance(spec.arg, ConstantArgument):
                self.values[placeholders[spec.arg.name]] = spec.arg.value
                continue
            node = placeholders[spec.arg.name]
            name, axes = next(known) if self.declared is not None else (node.name, None)
            found.append((node, name, axes))
        for k, (node, name, axes) in enumerate(found):
            self.name_symbols(node, name, axes, first=k == 0)
        unknown = [name for name in self.fixed if name not in self.sizes.named]
        if unknown:
            raise ModelError(
                "no dimension of the inputs has this name",
                where=self.label,
                expected=", ".join(self.sizes.named) or "none",
                got=", ".join(unknown),
            )
        for node, name, _ in found:
            fake = node.meta["val"]
            try:
                type = TensorType(element_type(fake.dtype), tuple(self.sizes.expr(d) for d in fake.shape))
                check_size(type)
                self.values[node] = self.builder.input(name, type)
            except Error as error:
                self.problems.add(located(error, f"{self.label}: input {name!r}"))
        self.problems.raise_if_any("the inputs cannot be read", where=self.label, kind=ModelError)
        return [name for _, name, _ in found]

    def name_symbols(self, node: Node, name: str, axes: Dims | None, first: bool) -> None:
        """Name the symbols of one input: as asked for, or "batch" for the first axis of all and else by the input."""
        for axis, size in enumerate(node.meta["val"].shape):
            if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol:
                continue
            chosen = (axes or {}).get(axis)
            if chosen is None:
                chosen = "batch" if first and axis == 0 else f"{name}_dim{axis}"
            self.sizes.declare(size.node.expr, chosen)

    def outputs(self) -> tuple[list[Any], list[str]]:
        """The nodes of the outputs and their names."""
        specs = self.program.graph_signature.output_specs
        results: Sequence[Any] = next(n for n in self.program.graph.nodes if n.op == "output").args[0]
        user = [k for k, s in enumerate(specs) if s.kind is OutputKind.USER_OUTPUT]
        changed = [s.target for s in specs if s.kind is OutputKind.BUFFER_MUTATION]
        if changed:
            raise UnsupportedError(
                f"forward changes buffers of the module: {', '.join(map(str, changed))}",
                where=self.label,
                hint="pass state in and out as arguments and results",
            )
        names = output_names(self.program, len(user))
        kept = [(results[k], name) for k, name in zip(user, names, strict=True) if isinstance(results[k], Node)]
        if not kept:
            raise ModelError("the module returns no tensors", where=self.label)
        return [node for node, _ in kept], [name for _, name in kept]

    # --- nodes --------------------------------------------------------------------------------------------------------

    def nodes(self, graph: GraphModule, values: dict[Node, Any]) -> None:
        """Walk the nodes of a graph that something needs; problems are noted."""
        needed = _needed(graph.graph)
        for node in graph.graph.nodes:
            if node not in needed or node.op == "output" or (node.op == "placeholder" and node in values):
                continue
            where = f"{self.label}: node {node.name}" + _source_line(node)
            try:
                values[node] = self.node(graph, node, values)
            except _Skipped:
                self.failed.add(node)
            except Error as error:
                self.problems.add(located(error, where))
                self.refuse(node)
            except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
                problem = UnsupportedError(
                    f"this use of {_name(node.target)} is not supported ({reason(error)})", where=where
                )
                problem.__cause__ = error
                self.problems.add(problem)
                self.refuse(node)

    def refuse(self, node: Node) -> None:
        self.failed.add(node)
        if is_composite(node.target):
            self.refused.add(node.target)

    def node(self, graph: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
        if node.op == "placeholder":
            return self.weight(node)
        if node.op == "get_attr":
            return self.attribute(graph, node)
        if any(n in self.failed for n in node.all_input_nodes):
            raise _Skipped
        held = node.meta.get("val")
        if isinstance(held, int | float | bool | torch.SymInt):
            return self.sizes.expr(held) if isinstance(held, torch.SymInt) else held
        target: Any = node.target
        if target is operator.getitem:
            return self.resolve(node.args[0], values)[node.args[1]]
        if registry.is_wrapper(target):
            return self.wrapped(graph, node, values)
        found = registry.find(target)
        if found is None:
            raise _unsupported(node)
        args, kwargs = self.arguments(node, values)
        call = Call(self.builder, self.weights, node.name, _name(target), held, self.sizes)
        return _checked(call, found(call, *args, **kwargs))

    def arguments(self, node: Node, values: dict[Node, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The operator's arguments in the order of its schema with defaults, and those that are only keywords."""
        target: Any = node.target
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for k, argument in enumerate(target._schema.arguments):
            if argument.name in _IRRELEVANT:
                continue
            if k < len(node.args):
                value = self.resolve(node.args[k], values)
            elif argument.name in node.kwargs:
                value = self.resolve(node.kwargs[argument.name], values)
            else:
                value = argument.default_value if argument.has_default_value() else None
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return args, kwargs

    def resolve(self, argument: Any, values: dict[Node, Any]) -> Any:
        if isinstance(argument, Node):
            return values[argument]
        if isinstance(argument, torch.dtype):
            return element_type(argument)
        if isinstance(argument, list | tuple):
            return [self.resolve(a, values) for a in argument]
        return argument

    def wrapped(self, graph: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
        """Walk the graph that a wrapper calls, in place of the wrapper."""
        position = registry.WRAPPERS[node.target.name()]
        inner = getattr(graph, node.args[position].target)
        given = [self.resolve(a, values) for a in node.args[position + 1 :]]
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        local = dict(zip(placeholders, given, strict=True))
        self.nodes(inner, local)
        results = next(n for n in inner.graph.nodes if n.op == "output").args[0]
        if any(isinstance(r, Node) and r in self.failed for r in results):
            raise _Skipped
        return [self.resolve(r, local) for r in results]

    def weight(self, node: Node) -> Value:
        """A parameter or a buffer; a constant where `state_dict()` does not have it."""
        name = self.source.names.get(node.name)
        if name is None:
            return self.constant(self.source.constants[node.name], node.name)
        held = next((p for p in self.builder.params if p.name == name), None)
        if held is not None:
            return held
        tensor = self.source.tensors[name]
        type, array = tensor_type(tensor), to_array(tensor, f"{self.label}: weight {name!r}")
        self.builder.taken.discard(name)
        value = self.builder.param(name, type)
        self.weights[name] = array
        return value

    def attribute(self, graph: GraphModule, node: Node) -> Any:
        found: Any = graph
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return self.constant(found, node.name) if isinstance(found, torch.Tensor) else None

    def constant(self, tensor: torch.Tensor, name: str) -> Value:
        return emit1(self.builder, "constant", name=name, value=to_array(tensor, f"{self.label}: constant {name!r}"))


def _needed(graph: torch.fx.Graph) -> set[Node]:
    """The nodes that the output depends on."""
    needed: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed:
            needed.update(node.all_input_nodes)
            needed.add(node)
    return needed


def _checked(call: Call, results: Any) -> Any:
    """A rule's results, which must be of the types that PyTorch states."""
    pairs = zip(results, call.results, strict=False) if isinstance(results, list | tuple) else [(results, call.results)]
    for value, stated in pairs:
        if not isinstance(value, Value) or not isinstance(stated, torch.Tensor):
            continue
        expected = TensorType(DTYPES[stated.dtype], tuple(call.sizes.expr(d) for d in stated.shape))
        if value.dtype is not expected.dtype or not same_shape(value.shape, expected.shape):
            raise UnsupportedError(f"this use of {call.name} is not supported", expected=expected, got=value.type)
    return results


def _unsupported(node: Node) -> UnsupportedError:
    name = _name(node.target)
    packet = name.removeprefix("aten.").split(".")[0]
    hint = None
    if packet in registry.RANDOM:
        hint = "sample outside of the model, or pass the random numbers in"
    return UnsupportedError(f"the operator {name} is not supported", hint=hint)


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        packet = target._schema.name.replace("::", ".")
        return packet if target._overloadname == "default" else f"{packet}.{target._overloadname}"
    return str(getattr(target, "__name__", target))


def _source_line(node: Node) -> str:
    """The line of the user's code that made a node."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").strip().splitlines()]
    places = [k for k, line in enumerate(lines) if line.startswith("File ")]
    if not places:
        return ""
    place, code = lines[places[-1]], lines[places[-1] + 1 :]
    parts = place.removeprefix("File ").split(", ")
    where = (
        f"{parts[0].strip(chr(34)).rsplit('/', 1)[-1]}:{parts[1].removeprefix('line ')}" if len(parts) > 1 else place
    )
    return f" ({where}{': ' + code[0] if code else ''})"


def _distinct(outputs: list[tuple[str, Value]], builder: GraphBuilder) -> list[tuple[str, Value]]:
    """Outputs under names that no input and no parameter has: the graph names each value once."""
    taken = {v.name for v in (*builder.inputs, *builder.params)}
    found: list[tuple[str, Value]] = []
    for name, value in outputs:
        while name in taken:
            name = f"{name}_out"
        taken.add(name)
        found.append((name, value))
    return found


def _kind(problems: Problems) -> type[Error]:
    return UnsupportedError if all(isinstance(p, UnsupportedError) for p in problems) else ModelError
