"""`Random`: emits random numbers of a graph, all derived from one key that is an input."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Expr
from tilewright.ir.graph import GraphBuilder, Value
from tilewright.ops.random import KEY
from tilewright.ops.registry import emit1
from tilewright.support.classes import dataclass


@dataclass(slots=True)
class Random:
    """The graph's input for the key of random numbers (None before the first draw), and the number of streams drawn
    from it."""

    builder: GraphBuilder
    key: Value | None = None
    streams: int = 0

    def uniform(self, shape: Sequence[Expr]) -> Value:
        """Uniform random numbers in [0, 1), f32 of this shape, from a stream of their own: draws are independent."""
        if self.key is None:
            self.key = self.builder.input("random_key", KEY)
        self.streams += 1
        return emit1(self.builder, "uniform", self.key, shape=tuple(shape), stream=self.streams, name="uniform")
