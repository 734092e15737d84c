"""`If`, `Loop` and `SequenceMap` nodes that Python controls, with compiled bodies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tilewright.frontend.onnx.section import Section
from tilewright.parts.plan import is_control
from tilewright.support.errors import CallError, ModelError

if TYPE_CHECKING:
    from tilewright.parts.context import Context
    from tilewright.parts.part import Part
    from tilewright.runtime.model import Model

Values = Mapping[str, Any]


class ControlPart:
    """A section that consists of one `If`, `Loop` or `SequenceMap` node.

    Args:
        make: makes the part for a body.
        context: has the limits of loops.
    """

    def __init__(self, section: Section, make: Callable[[Section], Part], context: Context) -> None:
        self.section = section
        self.context = context
        self.node = control_node(section)
        self.inner = _graphs(section)
        self.bodies = {name: make(body) for name, body in bodies(section).items()}

    def models(self) -> Iterator[tuple[Model, Section]]:
        for body in self.bodies.values():
            yield from body.models()

    def run(self, values: Values) -> dict[str, Any]:
        """Run the node; returns its outputs by name."""
        ways = {"If": self._branch, "Loop": self._loop, "SequenceMap": self._map}
        results = ways[self.node.op_type](values)
        named = dict(zip(self.node.output, results, strict=False))
        return {name: named[name] for name in self.section.outputs}

    def _read(self, values: Values, name: str) -> Any:
        if name in values:
            return values[name]
        return self.bodies[next(iter(self.bodies))].initializer(name)

    def _branch(self, values: Values) -> list[Any]:
        selected = _truth(self._read(values, self.node.input[0]), self.section.name)
        body = self.bodies["then_branch" if selected else "else_branch"]
        result = body.run({name: self._read(values, name) for name in body.section.inputs})
        return [result[name] for name in body.section.outputs]

    def _loop(self, values: Values) -> list[Any]:
        body, graph = self.bodies["body"], self.inner["body"]
        names = [i.name for i in graph.input]
        arguments = [self._read(values, n) if n else None for n in self.node.input]
        arguments += [None] * (2 - len(arguments))
        count = None if arguments[0] is None else int(np.asarray(arguments[0]).reshape(-1)[0])
        alive = True if arguments[1] is None else _truth(arguments[1], self.section.name)
        carried = arguments[2:]
        collected = len(graph.output) - 1 - len(carried)
        if len(names) != 2 + len(carried) or collected < 0:
            raise ModelError("the body of Loop does not fit its inputs", where=self.section.name)
        outer = {n: self._read(values, n) for n in body.section.inputs if n not in names}
        rows: list[list[Any]] = [[] for _ in range(collected)]
        step, began = 0, time.monotonic()
        while alive and (count is None or step < count):
            self._check_time_limit(step, time.monotonic() - began)
            start = [np.asarray(step, np.int64), np.asarray(True), *carried]
            result = body.run(outer | dict(zip(names, start, strict=True)))
            results = [result[o.name] for o in graph.output]
            alive = _truth(results[0], self.section.name)
            carried = results[1 : 1 + len(carried)]
            for row, value in zip(rows, results[1 + len(carried) :], strict=True):
                row.append(value)
            step += 1
        return [*carried, *(_stacked(r, graph.output[1 + len(carried) + k]) for k, r in enumerate(rows))]

    def _check_time_limit(self, steps: int, seconds: float) -> None:
        """Raise CallError if a loop that has run `steps` iterations in `seconds` seconds exceeds the limit of
        iterations or of time."""
        most, limit = self.context.max_iterations, self.context.time_limit
        if steps >= most:
            hint = "set max_iterations of the model, if it ends"
            raise CallError(f"the loop would have more than {most} iterations", where=self.section.name, hint=hint)
        if limit is not None and seconds >= limit:
            hint = "set time_limit of the model, if it ends"
            raise CallError(f"the loop took longer than {limit} s", where=self.section.name, hint=hint)

    def _map(self, values: Values) -> list[Any]:
        """Run `SequenceMap`: the body for each element of the first sequence; further sequences have the same length,
        tensors are passed whole."""
        body, graph = self.bodies["body"], self.inner["body"]
        names = [i.name for i in graph.input]
        arguments = [self._read(values, n) for n in self.node.input]
        outer = {n: self._read(values, n) for n in body.section.inputs if n not in names}
        lengths = {len(v) for v in arguments if isinstance(v, list)}
        if len(arguments) != len(names) or len(lengths) != 1:
            raise CallError("the sequences are not of one length", where=self.section.name, got=sorted(lengths))
        rows: list[list[Any]] = [[] for _ in graph.output]
        for k in range(lengths.pop()):
            elements = {n: v[k] if isinstance(v, list) else v for n, v in zip(names, arguments, strict=True)}
            result = body.run(outer | elements)
            for row, info in zip(rows, graph.output, strict=True):
                row.append(result[info.name])
        return list(rows)


def control_node(section: Section) -> onnx.NodeProto:
    """The control node of a section, which has only one."""
    return next(n for n in section.nodes if is_control(n))


def _graphs(section: Section) -> dict[str, onnx.GraphProto]:
    node = control_node(section)
    graphs = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
    wanted = ("then_branch", "else_branch") if node.op_type == "If" else ("body",)
    missing = [name for name in wanted if name not in graphs]
    if missing:
        raise ModelError(f"attribute {missing[0]} must be a graph", where=section.name)
    return {name: graphs[name] for name in wanted}


def bodies(section: Section) -> dict[str, Section]:
    """The bodies of a section's control node as sections, by attribute name."""
    node = control_node(section)
    return {n: section.inner(node, g, f"{section.name}.{n}") for n, g in _graphs(section).items()}


def _truth(value: Any, where: str) -> bool:
    array = np.asarray(value)
    if array.size != 1:
        raise CallError("a condition must be one element", where=where, got=list(array.shape))
    return bool(array.reshape(-1)[0])


def _stacked(rows: list[Any], info: onnx.ValueInfoProto) -> Any:
    """The results `rows` of the iterations, stacked along a new axis; without iterations an empty array of the element
    type that the body states in `info`."""
    if rows:
        return np.stack(rows)
    tensor = info.type.tensor_type
    dims = [d.dim_value for d in tensor.shape.dim]  # 0 where a dimension is not stated: there is nothing along it
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else np.dtype(np.float32)
    return np.empty((0, *dims), kind)


__all__ = ["ControlPart", "bodies"]
