"""A graph with its parts put in: the function that AOTAutograd calls."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from tilewright.dynamo.part import Part
from tilewright.dynamo.partition import Cut, Schedule
from tilewright.frontend.torch.aten import Port, dense_order, expression


class _Boxed(CodeGen):  # type: ignore[misc]
    """Python code of a function that takes all its arguments in one list, and empties that."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        names = [name.split(":")[0].split("=")[0].strip() for name in free_vars if name != "self"]
        selected = f"\n    {', '.join(names)}, = args" if names else ""
        return f"def forward(self, args):{selected}\n    args.clear()"


def rebuilt(gm: GraphModule, schedule: Schedule, parts: Mapping[Cut, Part]) -> Callable[[list[Any]], Any]:
    """The graph `gm` with the steps of `schedule`, in which each part is a call of its program `parts[step]`. Returns a
    boxed function: it takes its arguments in a list, which it empties."""
    graph = torch.fx.Graph()
    graph.set_codegen(_Boxed())
    producers: dict[Node, Node] = {}
    sizes: dict[sympy.Symbol, Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            producers[node] = graph.node_copy(node, producers.__getitem__)
            if isinstance(node.meta.get("val"), torch.SymInt):
                sizes[expression(node.meta["val"])] = node
    for step in schedule.steps:
        if isinstance(step, Node):
            producers[step] = graph.node_copy(step, producers.__getitem__)
            continue
        inputs = [_in_order(graph, producers[p.node], p) for p in step.inputs]
        result = graph.call_function(parts[step], (*inputs, *(producers[p.node] for p in step.weights)))
        for k, port in enumerate(step.outputs):
            single = len(step.outputs) == 1
            value = result if single else graph.call_function(operator.getitem, (result, k))
            restrided = _restrided(port, sizes)
            if restrided is not None:
                finish, arguments = restrided
                value = graph.call_function(finish, (value, *(producers[n] for n in arguments)))
            producers[port.node] = value
            producers[port.node].meta = dict(port.node.meta)
    output = next(n for n in gm.graph.nodes if n.op == "output")
    graph.output(torch.fx.map_arg(output.args[0], producers.__getitem__))
    graph.eliminate_dead_code()
    module = GraphModule(gm, graph)
    function = module.forward.__func__
    for part in parts.values():
        part.known_in(function.__globals__)
    boxed = functools.partial(function, module)
    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _in_order(graph: torch.fx.Graph, value: Node, port: Port) -> Node:
    """`value` with its dimensions permuted to their order in memory, as `port` states it for a part."""
    return value if port.in_order else graph.call_function(torch.permute, (value, port.order))


def _restrided(port: Port, sizes: Mapping[sympy.Symbol, Node]) -> tuple[Callable[..., Any], list[Node]] | None:
    """(function, size operands) that gives a part's result the traced strides; None if it has them. `sizes`: symbol ->
    the graph's node for it."""
    fake = port.node.meta["val"]
    shape, strides = tuple(fake.shape), tuple(fake.stride())
    if not all(isinstance(d, int) for d in (*shape, *strides)):
        return _restrided_at_run_time(port, sizes)
    if torch.empty(shape, device="meta").stride() == strides:
        return None
    if dense_order(fake) is not None:
        return lambda result: result.as_strided(shape, strides), []
    return lambda result: torch.empty_strided(shape, strides, dtype=result.dtype).copy_(result), []


def _restrided_at_run_time(
    port: Port, sizes: Mapping[sympy.Symbol, Node]
) -> tuple[Callable[..., Any], list[Node]] | None:
    """(function, size operands), or None, as `_restrided`, for symbolic sizes: a program's result is dense, but the
    stride of a dimension of extent 1 is arbitrary, so that it is computed in each call."""
    fake = port.node.meta["val"]
    inverse = tuple(sorted(range(len(port.order)), key=port.order.__getitem__))
    others: dict[int, Any] = {}
    extent: Any = 1
    for d in reversed(port.order):
        if fake.shape[d] == 1 and sympy.simplify(expression(fake.stride(d)) - extent) != 0:
            others[d] = sympy.sympify(expression(fake.stride(d)))
        extent = extent * expression(fake.shape[d])
    symbols = sorted({s for stride in others.values() for s in stride.free_symbols}, key=str)
    if not others or any(s not in sizes for s in symbols):
        return None if port.in_order else (lambda result: result.permute(inverse), [])

    @functools.lru_cache
    def numbers(*arguments: int) -> dict[int, int]:
        values = dict(zip(symbols, map(sympy.Integer, arguments), strict=True))
        return {d: int(stride.xreplace(values)) for d, stride in others.items()}

    def finish(result: Any, *arguments: int) -> Any:
        transposed, match = result.permute(inverse), numbers(*arguments)
        return transposed.as_strided(transposed.shape, [match.get(d, s) for d, s in enumerate(transposed.stride())])

    return finish, [sizes[s] for s in symbols]


__all__ = ["rebuilt"]
