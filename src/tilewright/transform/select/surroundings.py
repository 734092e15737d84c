"""The graph around a node, for selection: which values are weights, and which arrive in channel blocks."""

from __future__ import annotations

from dataclasses import field

from tilewright import ops
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.graph.fixed import depends_on_weights
from tilewright.transform.graph.options import ERRORS, Options
from tilewright.transform.problems import is_pointwise
from tilewright.transform.select.nchw import row_major_uses

WINDOWS = range(2, 18)
"""The window sizes, in taps per side, for which there are transforms."""

FEWEST = 4
"""The least number of channels for which a transform is considered: with fewer, a block would be mostly zeros."""


LIMITS = {"x3": "f4", "x6": "exact", "f32": "exact"}
"""For each exactness that a convolution may require, the setting of `fast` with the largest allowed errors: three terms
are within "f4", six within "exact"."""


@dataclass(frozen=True, slots=True)
class InBlocks:
    """The operators on channel blocks for which layout assignment has rules (`layout/assign.py`): operators that are
    faster with blocked inputs, and operators that work on blocked inputs."""

    wanting: frozenset[str]
    following: frozenset[str]


@dataclass(slots=True)
class Surroundings:
    """The facts about a graph that selection uses: values in `fixed` depend on weights alone, values in `blocked` will
    probably lie in channel blocks, and values in `row_major_use` are used as NCHW. `weight_bytes`, of all weights of
    the model, determine the level of memory that weights come from; `other_bytes` of them belong to nodes whose choice
    does not change their size."""

    graph: Graph
    target: Target
    options: Options
    in_blocks: InBlocks
    fixed: set[Value] = field(default_factory=set)
    producers: dict[Value, Node] = field(default_factory=dict)
    blocked: set[Value] = field(default_factory=set)
    row_major_use: dict[Value, bool] = field(default_factory=dict)
    weight_bytes: int = 0
    other_bytes: int = 0

    def __post_init__(self) -> None:
        self.fixed.update(self.graph.params)
        self.weight_bytes = sum(v.known_bytes for v in self.graph.params)
        windowed = [n for n in self.graph.nodes if n.op == "conv" and has_transforms(n)]
        growing = sum(
            w.known_bytes // (w.dtype.itemsize if w.dtype.is_int else 1)  # codes are widened for the product alone
            for w in {n.inputs[1] for n in windowed}
            if w is not None
        )
        self.other_bytes = max(0, self.weight_bytes - growing)
        self.producers.update(self.graph.producers())
        self.row_major_use = row_major_uses(self.graph, self.in_blocks.wanting)

    @property
    def block(self) -> int:
        """The number of channels of a block."""
        return self.target.lanes(4)

    def fast(self, conv: Node) -> str:
        """The setting of `fast` for a convolution: the user's, or one with a smaller error that the node requires."""
        limit = LIMITS.get(conv.of(ConvAttrs).exactness, self.options.fast)
        return min(self.options.fast, limit, key=ERRORS.__getitem__)

    def visit(self, node: Node) -> None:
        """Note whether the node depends on weights alone."""
        if depends_on_weights(node.inputs, self.fixed):
            self.fixed.update(node.outputs)

    def leave(self, node: Node) -> None:
        """Note whether the node's results lie in channel blocks."""
        if node.op in ("conv", "conv_transpose") and node.algorithm is not None:
            blocks = node.algorithm.in_blocks
        elif node.op == "conv":
            grouped = node.of(ConvAttrs).groups != 1
            blocks = node.output.type.rank == 5 or (grouped and not is_pointwise(node))
        elif node.op == "conv_transpose":
            blocks = True
        else:
            follows = node.op in self.in_blocks.following or ops.get(node.op).kind == "pointwise"
            blocks = follows and any(v in self.blocked for v in node.inputs)
        if blocks:
            self.blocked.update(node.outputs)


def has_transforms(conv: Node) -> bool:
    """Whether Winograd or Fourier transforms apply to a convolution: one group, square windows larger than the stride,
    and enough channels."""
    w, attrs = conv.inputs[1], conv.of(ConvAttrs)
    if w is None or w.type.rank != 4 or attrs.groups != 1:
        return False
    _, channels, window, other = (as_int(d) or 0 for d in w.shape)
    (stride, *strides), (separate, *dilations) = attrs.strides, attrs.dilations
    even = window == other and all(s == stride for s in strides) and all(d == separate for d in dilations)
    return even and window in WINDOWS and channels >= FEWEST and stride < window
