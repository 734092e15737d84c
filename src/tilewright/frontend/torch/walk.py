"""`Walk`: imports the nodes of an ATen graph one by one through their rules, and collects errors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tilewright.frontend.common.emitter import Emitter
from tilewright.frontend.common.finish import located, reason
from tilewright.frontend.torch import complexes, registry
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.complexes import Complex
from tilewright.frontend.torch.control import control, is_control, number, real, truth
from tilewright.frontend.torch.dtypes import DTYPES, element_type
from tilewright.frontend.torch.export import is_composite
from tilewright.frontend.torch.random import Random
from tilewright.frontend.torch.symbols import Sizes
from tilewright.frontend.torch.tensors import to_array
from tilewright.ir.dtype import f64, i64
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ops.dims import same_shape
from tilewright.ops.registry import emit1
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, Problems, UnsupportedError

_IRRELEVANT = {"device", "layout", "pin_memory", "memory_format", "non_blocking"}
"""Arguments that only concern how and where PyTorch stores a tensor."""


_ITEMS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)


class _Skipped(Exception):
    """Raised for a node that depends on a failed one."""


@dataclass(slots=True)
class Walk:
    """Imports the nodes of an ATen graph into `builder`, one by one. `placeholder` returns the value of a placeholder
    node without one."""

    label: str
    builder: GraphBuilder
    weights: dict[str, Any]
    sizes: Sizes
    placeholder: Callable[[Node], Any]
    problems: Problems = field(default_factory=Problems)
    failed: set[Node] = field(default_factory=set)
    refused: set[Any] = field(default_factory=set)
    """Operators that are used in a way that their rules do not cover, and that PyTorch can decompose."""
    random: Random | None = None
    """The source of random numbers; without it, operators that draw some are refused."""
    arrays: Mapping[str, Any] | None = field(default_factory=dict)
    """Weights whose numbers are the same at every call, by name; None inside of bodies of control flow, which may not
    run."""
    numbers: dict[str, Value] = field(default_factory=dict)
    """Numbers that loops carry or that are elements of tensors, by PyTorch's symbols for them."""
    repeats: bool = False
    """Whether nodes belong to a loop's body, where random numbers are refused, as all iterations would draw the
    same."""

    def nodes(self, graph: GraphModule, values: dict[Node, Any]) -> None:
        """Import those nodes of a graph that its output depends on; errors are collected."""
        needed = _needed(graph.graph)
        for node in graph.graph.nodes:
            if node not in needed or node.op == "output" or (node.op == "placeholder" and node in values):
                continue
            self.attempt(graph, node, values)

    def attempt(self, graph: GraphModule, node: Node, values: dict[Node, Any]) -> None:
        """Import `node` and enter its result in `values`; an error is recorded, and its operator refused."""
        where = place(self.label, node)
        try:
            values[node] = self.node(graph, node, values)
        except _Skipped:
            self.failed.add(node)
        except Error as error:
            self.problems.add(located(error, where))
            self.refuse(node)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            problem = UnsupportedError(
                f"this use of {operator_name(node.target)} is not supported ({reason(error)})", where=where
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
            return self.placeholder(node)
        if node.op == "get_attr":
            return self.attribute(graph, node)
        if any(n in self.failed for n in node.all_input_nodes):
            raise _Skipped
        held = node.meta.get("val")
        if isinstance(held, int | float | bool):
            return held
        if node.target in _ITEMS and not isinstance(held, torch.Tensor):
            self.item(node, held, values)
        if isinstance(held, torch.SymInt):
            return self.size(node, held, values)
        if isinstance(held, torch.SymBool):
            return truth(self, held, node.name)
        if isinstance(held, torch.SymFloat):
            return real(self, held, node.name)
        target: Any = node.target
        if target is operator.getitem:
            return self.resolve(node.args[0], values)[node.args[1]]
        if registry.is_wrapper(target):
            return self.wrapped(graph, node, values)
        if is_control(target):
            return control(self, graph, node, values)
        if registry.is_ordered_check(node):
            return [None]
        draws = self.random is not None and not self.repeats
        is_there = registry.find(target) or (registry.find_sampling(target) if draws else None)
        packet = target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""
        if is_there is None and packet not in complexes.RULES:
            raise _unsupported(node)
        args, kwargs = self.arguments(node, values)
        supplied = tuple(a.meta.get("val") if isinstance(a, Node) else None for a in node.args)
        name = operator_name(target)
        call = Call(
            self.builder,
            self.weights,
            node.name,
            name,
            held,
            self.sizes,
            supplied,
            _read(node),
            self.random,
            self.arrays,
        )
        if complexes.is_complex(held) or complexes.involved(args):
            return _checked(call, complexes.apply(call, packet, is_there, args, kwargs))
        if is_there is None:
            raise _unsupported(node)
        return _checked(call, is_there(call, *args, **kwargs))

    def item(self, node: Node, held: Any, values: dict[Node, Any]) -> None:
        """Record the element of the tensor that `node` reads as the value of the symbol in `held`, PyTorch's number for
        the result of `item()`."""
        x, e = values[node.args[0]], held.node.expr
        (symbol,) = e.free_symbols
        n = Emitter(self.builder, self.weights, node.name)
        self.numbers[str(symbol)] = n.cast(n.reshape(x, ()), f64 if isinstance(held, torch.SymFloat) else i64)

    def size(self, node: Node, held: torch.SymInt, values: dict[Node, Any]) -> Any:
        """PyTorch's symbolic number `held`, the result of `node`, as an expression of sizes, or as a scalar if a loop
        carries it."""
        source = values.get(node.args[0]) if node.target is operator.getitem else None
        if isinstance(source, list) and isinstance(source[node.args[1]], Value):
            self.numbers[str(held.node.expr)] = source[node.args[1]]
        return number(self, held, node.name)

    def arguments(self, node: Node, values: dict[Node, Any]) -> tuple[list[Any], dict[str, Any]]:
        """(positional arguments in the schema's order, defaults included; keyword-only arguments) of an operator, with
        nodes replaced by their values."""
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
        if isinstance(argument, torch.dtype) and not argument.is_complex:
            return element_type(argument)
        if isinstance(argument, list | tuple):
            return [self.resolve(a, values) for a in argument]
        return argument

    def wrapped(self, graph: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
        """Import the graph that `node`, a wrapper such as a checkpoint, calls; returns that graph's results."""
        position = registry.WRAPPERS[node.target.name()]
        inner = getattr(graph, node.args[position].target)
        return self.called(inner, [self.resolve(a, values) for a in node.args[position + 1 :]])

    def called(self, inner: GraphModule, arguments: Sequence[Any]) -> list[Any]:
        """The results of a nested graph, imported with these arguments. Raises _Skipped if a result's node failed."""
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        local = dict(zip(placeholders, arguments, strict=True))
        for placeholder, value in local.items():
            held = placeholder.meta.get("val")
            if isinstance(held, torch.SymInt) and isinstance(value, Value):
                self.numbers[str(held.node.expr)] = value
        self.nodes(inner, local)
        results: Any = next(n for n in inner.graph.nodes if n.op == "output").args[0]
        results = results if isinstance(results, list | tuple) else (results,)
        if any(isinstance(r, Node) and r in self.failed for r in results):
            raise _Skipped
        return [self.resolve(r, local) for r in results]

    @contextmanager
    def branching(self) -> Iterator[None]:
        """Within the context, nodes belong to the body of a branch or loop, which a call may skip: none is evaluated
        while importing."""
        before, self.arrays = self.arrays, None
        try:
            yield
        finally:
            self.arrays = before

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Within the context, nodes belong to the body of a loop."""
        before, self.repeats = self.repeats, True
        try:
            with self.branching():
                yield
        finally:
            self.repeats = before

    def attribute(self, graph: GraphModule, node: Node) -> Any:
        result: Any = graph
        for part in str(node.target).split("."):
            result = getattr(result, part)
        return self.constant(result, node.name) if isinstance(result, torch.Tensor) else None

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


def _read(node: Node) -> frozenset[int]:
    """The positions of those of a node's several results that other nodes read."""
    return frozenset(user.args[1] for user in node.users if user.target is operator.getitem)


def _checked(call: Call, results: Any) -> Any:
    """A rule's `results`, if they have the types that PyTorch states. Raises UnsupportedError otherwise."""
    pairs = zip(results, call.results, strict=False) if isinstance(results, list | tuple) else [(results, call.results)]
    for value, stated in pairs:
        if isinstance(value, Complex) and isinstance(stated, torch.Tensor) and stated.is_complex():
            shape = tuple(call.sizes.expr(d) for d in stated.shape)
            if not all(same_shape(shape, p.shape) and p.dtype is value.re.dtype for p in value.parts):
                raise UnsupportedError(f"this use of {call.name} is not supported", got=value.re.type)
        if not isinstance(value, Value) or not isinstance(stated, torch.Tensor):
            continue
        expected = TensorType(DTYPES[stated.dtype], tuple(call.sizes.expr(d) for d in stated.shape))
        if value.dtype is not expected.dtype or not same_shape(value.shape, expected.shape):
            raise UnsupportedError(f"this use of {call.name} is not supported", expected=expected, got=value.type)
    return results


def _unsupported(node: Node) -> UnsupportedError:
    name = operator_name(node.target)
    packet = name.removeprefix("aten.").split(".")[0]
    hint = None
    if packet in registry.RANDOM:
        hint = "sample outside of the model, or pass the random numbers in"
    error = UnsupportedError(f"the operator {name} is not supported", hint=hint)
    error.any_size = True
    return error


def operator_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        packet = target._schema.name.replace("::", ".")
        return packet if target._overloadname == "default" else f"{packet}.{target._overloadname}"
    return str(getattr(target, "__name__", target))


def source_line(node: Node) -> str:
    """The line of the user's code that made a node: "file.py:12: y = f(x)", or nothing."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").strip().splitlines()]
    places = [k for k, line in enumerate(lines) if line.startswith("File ")]
    if not places:
        return ""
    at, code = lines[places[-1]], lines[places[-1] + 1 :]
    parts = at.removeprefix("File ").split(", ")
    where = f"{parts[0].strip(chr(34)).rsplit('/', 1)[-1]}:{parts[1].removeprefix('line ')}" if len(parts) > 1 else at
    return where + (f": {code[0]}" if code else "")


def place(label: str, node: Node) -> str:
    """The name of `node` in the program `label`, with its line of source code, for error messages."""
    line = source_line(node)
    return f"{label}: node {node.name}" + (f" ({line})" if line else "")
