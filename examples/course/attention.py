"""Attention, from whole matrices of scores to tiles of rows that never leave the caches: `make example-attention`.

The last step is raced against the schedule that the compiler itself would take. `docs/course/attention.md` says what
each step does and why.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import tilewright as tw
from examples.course.lesson import Lesson, Peer, Step, options, take
from tilewright import ops, te
from tilewright.ir.dtype import f32
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.schedule.stages import Stage, StageSchedule

ROWS, LANES, CHAINS = 8, 32, 128
"""Queries that go through all stages together, columns of a product that stay in registers beside each other, and
chains in which a row is reduced."""


def attention(heads: int, n: int, depth: int) -> tuple[te.Tensor, ...]:
    """softmax(q k^T / sqrt(depth)) v for each head: the inputs, the stages, and the result, all [heads, n, ...]."""
    q, k, v = (te.placeholder((heads, n, depth), name=name) for name in "qkv")
    d, j, m, t = (te.reduce_axis((0, size), name=name) for name, size in (("d", depth), ("j", n), ("m", n), ("t", n)))
    scores = te.compute((heads, n, n), lambda h, i, j: te.sum(q[h, i, d] * k[h, j, d], axis=d), name="scores")
    peak = te.compute((heads, n), lambda h, i: te.max(scores[h, i, m], axis=m), name="peak")
    scale = depth**-0.5 / np.log(2)  # powers of two take a step less than those of e
    weights = te.compute((heads, n, n), lambda h, i, j: te.exp2((scores[h, i, j] - peak[h, i]) * scale), name="weights")
    total = te.compute((heads, n), lambda h, i: te.sum(weights[h, i, t], axis=t), name="total")
    mixed = te.compute((heads, n, depth), lambda h, i, d: te.sum(weights[h, i, j] * v[h, j, d], axis=j), name="mixed")
    out = te.compute((heads, n, depth), lambda h, i, d: mixed[h, i, d] / total[h, i], name="out")
    return q, k, v, scores, peak, weights, total, mixed, out


def steps(tensors: tuple[te.Tensor, ...], s: StageSchedule) -> Iterator[Step]:
    """Apply one step after the other to `s`; give the name and the reason of each."""
    scores, peak, weights, total, mixed, out = (s[t] for t in tensors[3:])
    yield "naive", "as the expressions say: whole matrices of scores and weights go through memory"

    head, i, _ = out.loops
    rows, _ = out.split(i, factor=ROWS)
    sums, mix = scores.cache_write("local"), mixed.cache_write("local")
    for stage in (mix, mixed, total, weights, peak, sums, scores):
        stage.compute_at(out, rows)
    yield "by rows", f"{ROWS} queries go through all stages before the next ones: their scores stay in the first cache"

    packed = scores.cache_read(tensors[1], "global")
    packed.transform_layout(lambda h, j, d: (h, j // LANES, d, j % LANES))
    packed.compute_at(out, head)
    _in_registers(scores, sums)
    _in_registers(mixed, mix)
    yield "products in registers", "both products are summed up in registers; k is packed into panels first"

    for stage in (peak, total):
        _in_lanes(stage)
    for stage in (weights, out, packed):
        stage.vectorize(stage.loops[-1])
    yield "rows in vectors", "the largest score and the sum of weights run in lanes, and so do the exponentials"

    out.parallel(head)
    yield "parallel", "threads share the heads"


def _in_registers(product: Stage, copy: Stage) -> None:
    """Sum up ROWS x LANES numbers of a product in registers."""
    *_, row, column = copy.loops
    panel, lane = copy.split(column, factor=LANES)
    copy.reorder(panel, row, lane)
    product.compute_at(copy, panel)
    *_, row, lane, depth = product.loops
    product.reorder(depth, row, lane)
    start = product.decompose_reduction(depth)
    for stage in (start, product, copy):
        stage.unroll(stage.loops[-2])
        stage.vectorize(stage.loops[-1])


def _in_lanes(stage: Stage) -> None:
    """Reduce each row in chains side by side."""
    _, lane = stage.split(stage.loops[-1], factor=CHAINS)
    partial = stage.rfactor(lane, factor_axis=2)
    partial.set_scope("local")
    *_, row, _ = stage.loops
    partial.compute_at(stage, row)
    *_, lane, step, head, row = partial.loops
    partial.reorder(step, head, row, lane)
    start, _ = partial.decompose_reduction(step), stage.decompose_reduction(stage.loops[-1])
    for part in (start, partial, stage):
        part.vectorize(part.loops[-1])


SMALL = ("--size", "64", "--heads", "2")
"""Arguments that make it quick."""


def main(arguments: list[str] | None = None) -> int:
    parsed = options(__doc__, {"size": 512, "heads": 12, "depth": 64}, arguments)
    heads, n, depth = parsed.heads, parsed.size, parsed.depth
    q, k, v = np.random.default_rng(0).standard_normal((3, heads, n, depth), np.float32)
    out = np.empty((heads, n, depth), np.float32)
    scores = np.einsum("hid,hjd->hij", q.astype(np.float64), k) * depth**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = np.einsum("hij,hjd->hid", weights / weights.sum(-1, keepdims=True), v)
    tensors = attention(heads, n, depth)
    arguments_of, schedule = (*tensors[:3], tensors[-1]), te.create_schedule(tensors[-1])
    compiled = planned(heads, n, depth)
    lesson = Lesson(
        arguments_of, schedule, steps(tensors, schedule), (q, k, v, out), (wanted,), 1e-5, 4 * heads * n * n * depth,
        peers={"our own plan": Peer(lambda: compiled(q, k, v), 0.9)},
    )  # fmt: skip
    return take(lesson, parsed.rounds)


def planned(heads: int, n: int, depth: int) -> tw.Model:
    """Attention as a model, which the compiler recognises and plans."""
    builder = GraphBuilder("attention")
    q, k, v = (builder.input(name, TensorType(f32, tuple(map(const, (heads, n, depth))))) for name in "qkv")
    scale = builder.param("scale", TensorType(f32, ()))
    (transposed,) = ops.emit(builder, "transpose", k, perm=(0, 2, 1))
    (scores,) = ops.emit(builder, "matmul", q, transposed)
    (scaled,) = ops.emit(builder, "mul", scores, scale)
    (weights,) = ops.emit(builder, "softmax", scaled, axis=-1)
    graph = builder.finish(ops.emit(builder, "matmul", weights, v))
    return tw.compile((graph, {"scale": np.array(depth**-0.5, np.float32)}), threads=1)


if __name__ == "__main__":
    raise SystemExit(main())
