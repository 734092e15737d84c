"""`Random`: where the random numbers of a graph come from."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Expr
from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ops.random import KEY
from tilewright.ops.registry import emit1
from tilewright.support.classes import dataclass


@dataclass(slots=True)
class Random:
    """An input of the graph, the key, and how many streams of numbers it has given."""

    builder: GraphBuilder
    key: Value | None = None
    streams: int = 0

    def uniform(self, shape: Sequence[Expr]) -> Value:
        """Numbers in [0, 1) of f32 that no other draw has."""
        if self.key is None:
            self.key = self.builder.input("random_key", KEY)
        self.streams += 1
        return emit1(self.builder, "uniform", self.key, shape=tuple(shape), stream=self.streams, name="uniform")
