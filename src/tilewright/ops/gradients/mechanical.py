"""Gradients of operators without a rule, from their tensor expressions: every stage is differentiated (`te/adjoint.py`)
which gives a comprehension, or an adding scatter where an index is read from memory.

Intermediate stages are recomputed where their values are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tilewright import te
from tilewright.formulas.stages import divided
from tilewright.ir.graph import Value
from tilewright.ops.comprehension import emit_stage
from tilewright.ops.gradients.registry import Backward
from tilewright.ops.registry import get
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError
from tilewright.te import Tensor
from tilewright.te.adjoint import Flow, adjoint


def has_stages(node_op: str) -> bool:
    """Whether an operator is a tensor expression of the source dialect."""
    op = get(node_op)
    return op.dialect == "source" and op.compute is not None


def mechanical(b: Backward) -> Sequence[Value | None]:
    """The gradients of an operator without a rule of its own, from its tensor expression."""
    return _Stages.of(b).gradients()


@dataclass(slots=True)
class _Stages:
    """The stages of an operator's tensor expression, the graph's values for its tensors, and the sum of gradients that
    has reached each tensor so far."""

    b: Backward
    inputs: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]
    values: dict[Tensor, Value] = field(default_factory=dict)
    flows: dict[Tensor, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, b: Backward) -> _Stages:
        node = b.node
        inputs = tuple(
            None if v is None else te.placeholder(v.shape, v.dtype, f"x{k}") for k, v in enumerate(node.inputs)
        )
        compute = get(node.op).compute
        assert compute is not None
        results = compute(inputs, node.attrs, tuple(v.type for v in node.outputs))
        created = cls(b, inputs, tuple(results))
        created.values = {t: v for t, v in zip(inputs, node.inputs, strict=True) if t is not None and v is not None}
        created.values |= dict(zip(results, node.outputs, strict=True))
        return created

    def gradients(self) -> Sequence[Value | None]:
        arguments = [(t, g) for t, g in zip(self.results, self.b.output_gradients, strict=True) if g is not None]
        for tensor, g in arguments:
            self.add(tensor, g)
        stages = te.stages_of(t for t, _ in arguments)
        reached = self.reached(stages)
        for stage in reversed(stages):
            self.back(stage, reached)
        return [None if t is None else self.flows.get(t) for t in self.inputs]

    def reached(self, stages: Sequence[te.ComputeOp | te.ScanOp | te.ExternOp]) -> set[Tensor]:
        """The floating-point inputs, and the tensors computed by `stages` that depend on them."""
        members = {t for t in self.inputs if t is not None and t.dtype.is_float}
        for stage in stages:
            if any(t in members for t in stage.inputs):
                members.update(t for s in stages for t in s.inputs if t.op is stage and t.dtype.is_float)
        return members

    def back(self, stage: te.ComputeOp | te.ScanOp | te.ExternOp, wanted: set[Tensor]) -> None:
        """Propagate gradients from a stage's result to those tensors that it reads and that are in `wanted`."""
        for tensor, g in [(t, g) for t, g in self.flows.items() if t.op is stage]:
            seed = te.placeholder(tensor.shape, tensor.dtype, f"d_{tensor.name}")
            self.values[seed] = g
            for flow in adjoint(tensor, seed, [t for t in stage.inputs if t in wanted]):
                self.add(flow.tensor, self.value_of(flow))

    def add(self, tensor: Tensor, g: Value) -> None:
        before = self.flows.get(tensor)
        self.flows[tensor] = g if before is None else self.b.add(before, g)

    def value_of(self, flow: Flow) -> Value:
        """The gradient `flow` as a value of the graph, with the tensor's shape and type."""
        b, tensor = self.b, flow.tensor
        value = self.value(flow.values)
        if flow.places is not None:
            places = self.value(flow.places)
            updates = b.emit("cast", value, dtype=tensor.dtype) if value.dtype is not tensor.dtype else value
            return b.emit("scatter_nd", b.zeros(tensor.shape, updates), places, updates, reduction="add")
        return value if value.dtype is tensor.dtype else b.emit("cast", value, dtype=tensor.dtype)

    def value(self, tensor: Tensor) -> Value:
        """A tensor's value in the graph; emits the nodes that compute it if there is none yet."""
        entry = self.values.get(tensor)
        if entry is None:
            if tensor.op is None:
                raise UnsupportedError("a tensor without a value", where=tensor.name)
            stage = divided(tensor)
            assert stage.op is not None
            for read in stage.op.inputs:
                self.value(read)
            entry = self.values[tensor] = emit_stage(self.b.builder, stage, self.values, f"d.{self.b.y.name}")
        return entry
