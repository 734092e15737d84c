"""Training of a compressed model to follow the original (distillation: Hinton et al., 2015, arXiv 1503.02531)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.compression import steps
from tilewright.compression.recipe import Recipe
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, GraphBuilder, Value
from tilewright.ops.norm import SoftmaxAttrs
from tilewright.quantization.samples import Feed
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError
from tilewright.support.progress import expect, tell
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import Adam, Vectors
from tilewright.train.step import Step
from tilewright.transform.regions.captures import names_of

SMALLEST = 1e-12
"""A small number added to the divisor of an output's relative error."""

Batch = tuple[Feed, Mapping[str, Any], Any]
"""Inputs by name, the original's outputs by name, and the labels of the first output's rows; None: there are none."""


@dataclass(frozen=True, slots=True)
class Sum:
    """An optimiser that subtracts gradients from the parameters. It has the state of Adam, which it never changes,
    because all parameter groups of a step have the same state."""

    lr: float = 1.0

    @property
    def state(self) -> tuple[str, ...]:
        return Adam().state

    def scalars(self, count: int, lr: float) -> tuple[float, ...]:
        return ()

    def update(
        self, v: Vectors, p: Value, g: Value, state: Sequence[Value], scalars: Sequence[Value]
    ) -> tuple[Value, ...]:
        return v.emit("sub", p, g), *state


@dataclass(slots=True)
class Follower:
    """Training of one model so that its outputs come closer to the outputs of the original.

    The loss is the mean square of the outputs' difference, relative to the mean square of each output; with a
    temperature, it is the cross entropy for outputs that are logits; with labels, the labels' cross entropy has a share
    of it.

    Attributes:
        graph: the model, with static shapes, which are the shapes of the batches.
        weights: the weights by name, as they are now; pruned elements keep their numbers until `pruned` is asked.
        names: the names of the graph's inputs, in order.
        masked: the names of the weights that are pruned.
        masks: for each such weight 1 or 0 for each element, by which the step multiplies the weight.
    """

    graph: Graph
    weights: dict[str, Any]
    batches: Sequence[Batch]
    names: Sequence[str]
    recipe: Recipe
    masked: Sequence[str]
    threads: int
    masks: dict[str, Any] = field(default_factory=dict)
    taught: list[Value] = field(init=False)
    step: Step = field(init=False)

    def __post_init__(self) -> None:
        self.taught = [v for v in self.graph.outputs if v.dtype is f32]
        if not self.taught:
            raise CallError("a model without outputs of f32 has nothing to follow", where=self.graph.name)
        self.masks = {name: np.ones(np.shape(self.weights[name]), np.float32) for name in self.masked}
        objective = _Objective(self).graph()
        trained = [p.name for p in self.graph.params if p.dtype is f32 and p.type.rank > 1]
        scores = {f"{name}.score": np.zeros(mask.shape, np.float32) for name, mask in self.masks.items()}
        whole = {**self.weights, **(scores if self.recipe.moves else {})}
        self.step = compile_step(
            (objective, {p.name: whole[p.name] for p in objective.params}),
            None,
            Adam(self.recipe.rate),
            tuple(self.batch(self.batches[0], scores)),
            trained=[*trained, *(scores if self.recipe.moves else ())],
            groups={"*.score": Sum()} if self.recipe.moves else None,
            threads=self.threads,
        )

    def batch(self, batch: Batch, parameters: Mapping[str, Any]) -> Iterator[Any]:
        """The arrays of one step: inputs, masks, the present scores in `parameters`, the original's outputs and the
        labels of `batch`."""
        feed, outputs, labels = batch
        keys = list(outputs)
        yield from (feed[name] for name in self.names)
        for name, mask in self.masks.items():
            yield mask
            if self.recipe.moves:
                yield parameters[f"{name}.score"]
        yield from (outputs[keys[self.graph.outputs.index(v)]] for v in self.taught)
        if self.recipe.labels:
            yield _one_hot(labels, tuple(np.shape(outputs[keys[self.graph.outputs.index(self.taught[0])]])))

    def train(self, share: float, *, by_movement: bool = False) -> None:
        """Train for the recipe's epochs while this share of the masked weights' elements is 0.

        by_movement  those are chosen after each batch by their scores, which have grown while weights moved away from 0
                     and fallen while they moved towards it; else once, by magnitude
        """
        if not by_movement:
            now = self.pruned()
            self.masks = {name: steps.pruning_mask(now[name], share, self.recipe.block) for name in self.masks}
        expect(self.recipe.epochs)
        for epoch in range(self.recipe.epochs):
            for batch in self.batches:
                if by_movement:
                    self.choose(share)
                loss = self.step(*self.batch(batch, self.step.parameters))["loss"]
            tell(f"epoch {epoch + 1}: loss {loss:.3g}")
        if by_movement:
            self.choose(share)

    def choose(self, share: float) -> None:
        """Choose the masks by scores: a score is the sum of -(gradient of the masked weight) * weight over the batches
        (Sanh et al., 2020, section 3), of which a step of `Sum` adds one term."""
        now = self.step.parameters
        self.masks = {name: steps.mask_of(now[f"{name}.score"], share, self.recipe.block) for name in self.masks}

    def pruned(self) -> dict[str, Any]:
        """The weights as they are now, with zeros where their masks are zero."""
        now = self.step.parameters
        new = {name: np.array(now[name]) for name in self.weights if name in now}
        return {**self.weights, **{name: v * self.masks[name] if name in self.masks else v for name, v in new.items()}}


def _one_hot(labels: Any, shape: tuple[int, ...]) -> Any:
    """The classes `labels` as rows with a 1 at the class and 0 elsewhere, f32 of `shape`, the shape of an output.
    Raises CallError if one is none of its classes."""
    array = np.asarray(labels)
    expected = f"whole numbers from 0 to {shape[-1] - 1}, shaped {list(shape[:-1])}"
    if array.shape != shape[:-1] or array.dtype.kind not in "iu":
        raise CallError("are no classes of the first output", where="labels", expected=expected, got=array.shape)
    if array.size and not (array.min() >= 0 and array.max() < shape[-1]):
        got = f"from {array.min()} to {array.max()}"
        raise CallError("are no classes of the first output", where="labels", expected=expected, got=got)
    return np.eye(shape[-1], dtype=np.float32)[array]


class _Objective:
    """Builds the graph from the inputs of the model to the loss of its training."""

    def __init__(self, of: Follower) -> None:
        graph = of.graph
        self.of, self.recipe = of, of.recipe
        self.builder = GraphBuilder(graph.name, list(graph.inputs), list(graph.params), reserved=names_of(graph))

    def emit(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return ops.emit1(self.builder, op, *inputs, **attrs)

    def number(self, value: float) -> Value:
        return self.emit("constant", value=ConstantArray(np.float32(value)))

    def graph(self) -> Graph:
        graph = self.of.graph
        named = {p.name: p for p in graph.params}
        masked = {named[name]: self.masked(named[name]) for name in self.of.masks}
        for node in graph.nodes:
            inputs = tuple(None if v is None else masked.get(v, v) for v in node.inputs)
            self.builder.nodes.append(replace(node, inputs=inputs))
        losses = [self.loss(v, self.builder.input(f"{v.name}.target", v.type)) for v in self.of.taught]
        if self.recipe.labels:
            first = self.of.taught[0]
            labels = self.builder.input("labels", first.type)
            known = self.emit("mul", self.entropy(first, labels, 1.0), self.number(self.recipe.labels))
            losses = [self.emit("mul", loss, self.number(1 - self.recipe.labels)) for loss in losses] + [known]
        total = losses[0]
        for loss in losses[1:]:
            total = self.emit("add", total, loss)
        return replace(self.builder.finish((total,)), assumptions=graph.assumptions)

    def masked(self, weight: Value) -> Value:
        """Emit `weight` times its mask; returns the product. Where scores are trained, `(score - now) * weight` is
        added, in which an input `now` has the score's own value: it adds 0, and its gradient by the score is what the
        score is updated by."""
        result = self.emit("mul", weight, self.builder.input(f"{weight.name}.mask", weight.type))
        if not self.recipe.moves:
            return result
        score = self.builder.param(f"{weight.name}.score", weight.type)
        zero = self.emit("sub", score, self.builder.input(f"{weight.name}.score_now", weight.type))
        return self.emit("add", result, self.emit("mul", zero, weight))

    def loss(self, value: Value, target: Value) -> Value:
        """Emit the loss of a model's output `value`, where `target` is the output of the original model."""
        if self.recipe.temperature is not None:
            soft = self.emit("mul", target, self.number(1 / self.recipe.temperature))
            return self.entropy(value, self.softmax(soft), self.recipe.temperature)
        difference = self.emit("sub", value, target)
        error, size = (self.mean(self.emit("mul", v, v)) for v in (difference, target))
        return self.emit("div", error, self.emit("add", size, self.number(SMALLEST)))

    def entropy(self, logits: Value, target: Value, temperature: float) -> Value:
        """The cross entropy of softmax(logits / temperature) with the probabilities `target`, times the square of
        `temperature`, so that gradients by the logits have the same magnitude for all temperatures."""
        scaled = self.emit("mul", logits, self.number(1 / temperature))
        logs = self.emit("log_softmax", scaled, attrs=SoftmaxAttrs(logits.type.rank - 1))
        classes = as_int(logits.shape[-1]) or 1
        return self.emit("mul", self.mean(self.emit("mul", target, logs)), self.number(-classes * temperature**2))

    def softmax(self, logits: Value) -> Value:
        return self.emit("softmax", logits, attrs=SoftmaxAttrs(logits.type.rank - 1))

    def mean(self, value: Value) -> Value:
        return self.emit("reduce_mean", value, axes=tuple(range(value.type.rank)), keepdims=False)
