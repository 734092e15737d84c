"""Weights of products and convolutions as several smaller ones, and the graph that applies these one after another.

matrices      the truncated singular value decomposition, which has the least squared error (Eckart and Young, 1936)
convolutions  Tucker's decomposition over channels, by the higher-order SVD (Kim et al., 2016, arXiv 1511.06530), or the
              canonical one (CP) by alternating least squares (Lebedev et al., 2015, arXiv 1412.6553)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any, Literal

import numpy as np

from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.matmul import MatmulAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.regions.captures import names_of

Array = np.ndarray[Any, Any]
Method = Literal["tucker", "cp", "none"]

WORTH = 0.7
"""The largest number of elements of factors, relative to that of their weight, with which they replace it."""
SWEEPS = 40
"""The largest number of sweeps of alternating least squares."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One of the weights that stand for another, in the order in which they are applied to an input.

    suffix   of its name
    array    f32; of a convolution [filters, channels / groups, ...]
    spatial  the spatial dimensions of a convolution along which it slides: its strides, pads and dilations are the
             convolution's there
    groups   of a convolution
    """

    suffix: str
    array: Array
    spatial: tuple[int, ...] = ()
    groups: int = 1


Factors = tuple[Factor, ...]


def low_rank(weight: Array, energy: float) -> tuple[Array, Array] | None:
    """Factors u[m, r], v[r, n] of the matrix `weight` [m, n] that keep the share `energy` of its squared singular
    values; None if they are not small enough, or if the matrix holds numbers that are not finite."""
    m, n = weight.shape
    if not np.isfinite(weight).all():
        return None
    left, sizes, right = np.linalg.svd(weight.astype(np.float64), full_matrices=False)
    rank = _rank(sizes, energy)
    if rank * (m + n) >= WORTH * m * n:
        return None
    root = np.sqrt(sizes[:rank])
    return (left[:, :rank] * root).astype(weight.dtype), (root[:, None] * right[:rank]).astype(weight.dtype)


def tucker(weight: Array, energy: float) -> Factors | None:
    """The weight [f, c, ...] of a convolution as three convolutions: 1x1 to fewer channels, the whole window, and 1x1
    to all filters. Each of the two unfoldings keeps the share `energy` of its squared singular values. None if they are
    not small enough."""
    f, c, *window = weight.shape
    if not np.isfinite(weight).all() or weight.size == 0:
        return None
    ones = (1,) * len(window)
    if prod(window) == 1:
        pair = low_rank(weight.reshape(f, c), energy)
        return pair and (
            Factor("v", pair[1].reshape(-1, c, *ones), tuple(range(len(window)))),
            Factor("u", pair[0].reshape(f, -1, *ones)),
        )
    whole = weight.astype(np.float64)
    outer, inner = (_basis(whole, axis, energy) for axis in (0, 1))
    core = np.einsum("fcs,fr,cq->rqs", whole.reshape(f, c, -1), outer, inner, optimize=True)
    arrays = inner.T.reshape(-1, c, *ones), core.reshape(*core.shape[:2], *window), outer.reshape(f, -1, *ones)
    if sum(a.size for a in arrays) >= WORTH * weight.size:
        return None
    first, middle, last = (a.astype(weight.dtype) for a in arrays)
    return Factor("in", first), Factor("core", middle, tuple(range(len(window)))), Factor("out", last)


def cp(weight: Array, energy: float) -> Factors | None:
    """The weight [f, c, ...] of a convolution as one of 1x1 to r channels, one along each spatial dimension for each
    channel by itself, and one of 1x1 to all filters, with the least r of a few that keeps the share `energy` of the sum
    of squares. None if they are not small enough."""
    f, c, *window = weight.shape
    if not np.isfinite(weight).all() or prod(window) == 1 or not weight.any():
        return tucker(weight, energy)
    most = int(WORTH * weight.size / sum(weight.shape) - 1e-9)
    low, high = 0, 1
    best: list[Array] | None = None
    while high <= most and best is None:
        best = _alternating(weight, high, energy)
        low, high = (low, high) if best is not None else (high, 2 * high)
    high = high if best is not None else most + 1
    while high - low > max(1, high // 8):  # ranks within an eighth are alike
        middle = (low + high) // 2
        better = _alternating(weight, middle, energy)
        low, high, best = (low, middle, better) if better is not None else (middle, high, best)
    if best is None:
        return None
    outer, inner, *lines = (a.astype(weight.dtype) for a in best)
    rank, ones = outer.shape[1], (1,) * len(window)
    factors = [Factor("in", np.ascontiguousarray(inner.T).reshape(rank, c, *ones))]
    for k, line in enumerate(lines):
        shape = tuple(n if j == k else 1 for j, n in enumerate(window))
        factors.append(Factor(f"line{k}", np.ascontiguousarray(line.T).reshape(rank, 1, *shape), (k,), rank))
    return (*factors, Factor("out", outer.reshape(f, rank, *ones)))


METHODS: dict[str, Callable[[Array, float], Factors | None]] = {"tucker": tucker, "cp": cp}


def _rank(sizes: Array, energy: float) -> int:
    """The least number of the singular values `sizes` whose squares are the share `energy` of the sum of all
    squares."""
    total = np.cumsum(sizes**2)
    rank = int(np.searchsorted(total, energy * total[-1])) + 1 if total[-1] > 0 else 1
    return min(rank, len(sizes))


def _basis(whole: Array, axis: int, energy: float) -> Array:
    """The singular vectors of the unfolding of `whole` along `axis` that keep the share `energy` of its squares,
    [extent, rank]."""
    left, sizes, _ = np.linalg.svd(np.moveaxis(whole, axis, 0).reshape(whole.shape[axis], -1), full_matrices=False)
    basis: Array = left[:, : _rank(sizes, energy)]
    return basis


def _alternating(weight: Array, rank: int, energy: float) -> list[Array] | None:
    """Factors [extent, rank] of each dimension whose products' sum keeps the share `energy` of the weight's sum of
    squares; None if the sweeps do not get there. They begin with singular vectors, and with fixed random numbers beyond
    those."""
    whole = weight.astype(np.float64)
    total = float(np.sum(whole**2))
    rng = np.random.default_rng(rank)
    factors = []
    for axis, extent in enumerate(whole.shape):
        basis = _basis(whole, axis, 1.0)[:, :rank]
        factors.append(np.concatenate([basis, rng.standard_normal((extent, rank - basis.shape[1]))], 1))
    unfolded = [np.moveaxis(whole, axis, 0).reshape(extent, -1) for axis, extent in enumerate(whole.shape)]
    before = 0.0
    for _ in range(SWEEPS):
        for axis in range(whole.ndim):
            others = [a for k, a in enumerate(factors) if k != axis]
            gram = reduce(np.multiply, (a.T @ a for a in others))
            products = unfolded[axis] @ reduce(_rows, others)
            factors[axis] = np.linalg.lstsq(gram + 1e-9 * np.trace(gram) / rank * np.eye(rank), products.T, None)[0].T
        share = 1 - float(np.sum((unfolded[-1] - factors[-1] @ reduce(_rows, factors[:-1]).T) ** 2)) / total
        if share >= energy:
            return _balanced(factors)
        if share - before < 1e-3 * (1 - energy):
            return None
        before = share
    return None


def _rows(a: Array, b: Array) -> Array:
    """The products of each row of `a` with each row of `b`, [rows of a * rows of b, rank] (Khatri and Rao)."""
    products: Array = (a[:, None] * b[None]).reshape(-1, a.shape[1])
    return products


def _balanced(factors: list[Array]) -> list[Array]:
    """The factors rescaled so that corresponding columns have equal norms; their products are unchanged."""
    lengths = [np.maximum(np.linalg.norm(a, axis=0), 1e-30) for a in factors]
    mean = prod(lengths) ** (1 / len(factors))
    return [a / n * mean for a, n in zip(factors, lengths, strict=True)]


def factors_of(graph: Graph, weights: Mapping[str, Any], energy: float, method: Method) -> dict[str, Factors]:
    """The factors of each f32 weight that only products, or only convolutions without groups, read, by the weight's
    name; they keep the share `energy` of its squared singular values. Weights for which factors are not worth it are
    left out."""
    readers = graph.consumers()
    result: dict[str, Factors] = {}
    for p in graph.params:
        only = readers.get(p, [])
        if not only or p.dtype is not f32 or p in graph.outputs:
            continue
        factors: Factors | None = None
        if all(n.op == "matmul" and n.inputs[1] == p and n.inputs[0] != p for n in only) and p.type.rank == 2:
            pair = low_rank(np.asarray(weights[p.name]), energy)
            factors = pair and (Factor("u", pair[0]), Factor("v", pair[1]))
        elif method != "none" and all(_is_dense(n, p) for n in only):
            factors = METHODS[method](np.asarray(weights[p.name]), energy)
        if factors is not None:
            result[p.name] = factors
    return result


def _is_dense(node: Node, weight: Value) -> bool:
    """Whether a node is a convolution with this weight and without groups."""
    return (
        node.op == "conv" and node.inputs[1] == weight and node.inputs[0] != weight and node.of(ConvAttrs).groups == 1
    )


def factored(graph: Graph, weights: Mapping[str, Any], factors: Mapping[str, Factors]) -> tuple[Graph, dict[str, Any]]:
    """The graph that applies factors in place of some weights, and the weights with these factors."""
    if not factors:
        return graph, dict(weights)
    builder = GraphBuilder(graph.name, list(graph.inputs), reserved=names_of(graph))
    parts: dict[Value, list[Value]] = {}
    new = {name: array for name, array in weights.items() if name not in factors}
    for p in graph.params:
        if p.name not in factors:
            builder.params.append(p)
            continue
        parts[p] = []
        for factor in factors[p.name]:
            kind = TensorType(f32, tuple(const(n) for n in factor.array.shape))
            parts[p].append(builder.param(f"{p.name}.{factor.suffix}", kind))
            new.setdefault(parts[p][-1].name, factor.array)
    for node in graph.nodes:
        w = node.inputs[1] if len(node.inputs) == 2 else None
        if w is None or w not in parts:
            builder.nodes.append(node)
            continue
        if node.op == "matmul":
            _multiply(builder, node, parts[w])
        else:
            _convolve(builder, node, parts[w], factors[w.name])
        builder.nodes.append(replace(builder.nodes.pop(), outputs=node.outputs))
    return replace(graph, nodes=tuple(builder.nodes), params=tuple(builder.params)), new


def _multiply(builder: GraphBuilder, node: Node, pair: list[Value]) -> None:
    """Emit the product `node` as two products, by the factors `pair`."""
    attrs, (u, v) = node.of(MatmulAttrs), pair
    first, second = (v, u) if attrs.transpose_b else (u, v)
    x = ops.emit1(builder, "matmul", node.inputs[0], first, name=f"{node.output.name}_low", attrs=attrs)
    ops.emit1(builder, "matmul", x, second, attrs=replace(attrs, transpose_a=False))


def _convolve(builder: GraphBuilder, node: Node, parts: list[Value], factors: Factors) -> None:
    """Emit the convolution `node` as one convolution for each factor, one after another, whose filters are the values
    `parts`."""
    attrs, x = node.of(ConvAttrs), node.inputs[0]
    rank = len(attrs.strides)

    def along(numbers: tuple[int, ...], spatial: tuple[int, ...], other: int) -> tuple[int, ...]:
        return tuple(n if k % rank in spatial else other for k, n in enumerate(numbers))

    for value, factor in zip(parts, factors, strict=True):
        each = ConvAttrs(
            along(attrs.strides, factor.spatial, 1),
            along(attrs.dilations, factor.spatial, 1),
            along(attrs.pads, factor.spatial, 0),
            factor.groups,
        )
        x = ops.emit1(builder, "conv", x, value, name=f"{node.output.name}_low", attrs=each)
