"""Random schedules of threads, barriers and shared memory, each with what NumPy says it computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import te
from tilewright.ir.loops import PrimFunc
from tilewright.schedule.stages import Stage, StageSchedule
from tilewright.support.classes import dataclass

Array = np.ndarray[Any, Any]
X, Y = "threadIdx.x", "threadIdx.y"


@dataclass(frozen=True, slots=True)
class Case:
    """A scheduled function of tensors, its inputs, and the outputs that follow them in calling order."""

    schedule: StageSchedule
    args: list[te.Tensor]
    inputs: list[Array]
    outputs: list[Array]

    def flat(self) -> PrimFunc:
        """The loops of the function, with barriers."""
        return tw.build(self.schedule, self.args, target="c").flat


def case(seed: int) -> Case:
    """A random schedule."""
    r = random.Random(seed)
    families: list[Callable[[random.Random], Case]] = [
        product,
        product,
        totals,
        transposition,
        stencil,
        pointwise,
        two_stages,
        rows_in_warps,
    ]
    return families[seed % len(families)](r)


def _numbers(r: random.Random, *shape: int) -> Array:
    """Small whole numbers: sums of any order are exact."""
    return np.array([r.randint(-4, 4) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)


def shared_among(r: random.Random, stage: Stage, count: int, threads: dict[str, int]) -> None:
    """Let the threads of a block do the innermost `count` loops of a stage: as they are, as rows and columns, or joined
    and dealt out."""
    s = stage.owner.schedule
    loops = stage.loops[-count:]
    if len(threads) == 1 or r.random() < 0.3:
        whole = stage.fuse(*loops) if count > 1 else loops[0]
        for name, n in reversed(threads.items()):
            whole, inner = stage.split(whole, n)
            stage.bind(inner, name)
        return
    for loop, (name, n) in zip(loops[-2:], threads.items(), strict=True):
        extent = int(str(s.extent(loop)))
        if extent <= n and r.random() < 0.5:
            stage.bind(loop, name)
        else:
            _, inner = stage.split(loop, n)
            stage.bind(inner, name)


def product(r: random.Random) -> Case:
    """A product of matrices, whose operands come through shared memory step by step."""
    m, n, depth = (r.choice([4, 7, 8, 12, 16, 19]) for _ in range(3))
    ty, tx = r.choice([2, 4]), r.choice([2, 4, 8])
    rows, columns, step = ty * r.choice([1, 2]), tx * r.choice([1, 2]), r.choice([2, 4, 5])
    a, b = te.placeholder((m, depth), name="A"), te.placeholder((depth, n), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c)
    copy = s[c].cache_write("local")
    by, bx, i, j = copy.tile(*copy.loops, rows, columns)
    vi, i = copy.split(i, ty)
    vj, j = copy.split(j, tx)
    copy.reorder(vi, vj, i, j)
    bound = [(by, "blockIdx.y"), (bx, "blockIdx.x"), (i, Y), (j, X)]
    afterwards = r.random() < 0.3
    virtual = r.random() < 0.3
    if virtual:
        copy.bind(vi, "vthread")
        copy.bind(vj, "vthread")
    else:
        copy.reorder(i, j, vi, vj)
    if not afterwards:
        for loop, index in bound:
            copy.bind(loop, index)
    stage = s[c]
    stage.compute_at(copy, j)
    *_, ii, jj, kk = stage.loops
    ko, ki = stage.split(kk, step)
    stage.reorder(ko, ki, ii, jj)
    parts = [stage.cache_read(t, "shared") for t in r.sample([a, b], r.choice([1, 2, 2, 2]))]
    for part in parts:
        part.compute_at(stage, ko)
    if afterwards:
        for loop, index in bound:
            copy.bind(loop, index)
    for part in parts:
        if r.random() < 0.3:
            part.storage_align(0, 4, 1)
        if r.random() < 0.3:
            part.double_buffer()
        if r.random() < 0.85:
            shared_among(r, part, 2, {Y: ty, X: tx})
    x, y = _numbers(r, m, depth), _numbers(r, depth, n)
    return Case(s, [a, b, c], [x, y], [x @ y])


def totals(r: random.Random) -> Case:
    """Rows divided by their totals, which threads add up in parts."""
    m, n, lanes = r.choice([1, 3, 5]), r.choice([8, 16, 30, 33]), r.choice([4, 8])
    x = te.placeholder((m, n), name="X")
    k = te.reduce_axis((0, n), name="k")
    most = r.random() < 0.5
    reduce = te.max if most else te.sum
    t = te.compute((m,), lambda i: reduce(x[i, k], axis=k), name="T")
    y = te.compute((m, n), lambda i, j: x[i, j] - t[i], name="Y")
    s = te.create_schedule(y)
    _, inner = s[t].split(k, lanes)
    part = s[t].rfactor(inner)
    s[y].bind(y.axis[0], "blockIdx.x")
    for stage in (s[t], part):
        stage.compute_at(s[y], y.axis[0])
        stage.set_scope("shared")
    lane = next(loop for loop in part.loops[1:] if str(s.schedule.extent(loop)) == str(lanes))
    part.bind(lane, X)
    _, column = s[y].split(y.axis[1], lanes)
    s[y].bind(column, X)
    v = _numbers(r, m, n)
    total = v.max(axis=1, keepdims=True) if most else v.sum(axis=1, keepdims=True)
    return Case(s, [x, y], [v], [v - total])


def transposition(r: random.Random) -> Case:
    """Tiles of a matrix, transposed in shared memory whose rows may be longer than they need."""
    m, n, tile = r.choice([4, 9, 16]), r.choice([4, 10, 16]), r.choice([2, 4, 8])
    a = te.placeholder((m, n), name="A")
    b = te.compute((n, m), lambda i, j: a[j, i] * 2.0, name="B")
    s = te.create_schedule(b)
    by, bx, ty, tx = s[b].tile(*b.axis, tile, tile)
    inside = r.random() < 0.5
    threads = r.choice([tile, max(1, tile // 2)])
    if threads < tile:
        _, ty = s[b].split(ty, threads)
    for loop, index in ((by, "blockIdx.y"), (bx, "blockIdx.x"), (ty, Y), (tx, X)):
        s[b].bind(loop, index)
    part = s[b].cache_read(a, "shared")
    part.compute_at(s[b], bx if not inside else tx)
    if r.random() < 0.6:
        part.storage_align(0, tile, 1)
    shared_among(r, part, 2, {Y: threads, X: tile})
    v = _numbers(r, m, n)
    return Case(s, [a, b], [v], [v.T * 2])


def stencil(r: random.Random) -> Case:
    """Sums of neighbours, which threads of a block share with a border."""
    n, width, lanes = r.choice([16, 23, 40]), r.choice([3, 5]), r.choice([4, 8])
    a = te.placeholder((n + width - 1,), name="A")
    w = te.reduce_axis((0, width), name="w")
    c = te.compute((n,), lambda i: te.sum(a[i + w], axis=w), name="C")
    s = te.create_schedule(c)
    block, lane = s[c].split(c.axis[0], lanes)
    s[c].bind(block, "blockIdx.x")
    inside = r.random() < 0.5
    if inside:
        s[c].bind(lane, X)
    part = s[c].cache_read(a, "shared")
    part.compute_at(s[c], lane if inside else block)
    if not inside:
        s[c].bind(lane, X)
    if r.random() < 0.8:
        _, inner = part.split(part.loops[-1], lanes)
        part.bind(inner, X)
    v = _numbers(r, n + width - 1)
    return Case(s, [a, c], [v], [np.array([v[i : i + width].sum() for i in range(n)], np.float32)])


def pointwise(r: random.Random) -> Case:
    """A function of elements, an element or several a thread."""
    m, n = r.choice([1, 5, 12]), r.choice([3, 16, 31])
    a, b = te.placeholder((m, n), name="A"), te.placeholder((n,), name="B")
    c = te.compute((m, n), lambda i, j: te.maximum(a[i, j] + b[j], 0.0), name="C")
    s = te.create_schedule(c)
    whole = s[c].fuse(*c.axis)
    whole, lane = s[c].split(whole, r.choice([2, 8, 32]))
    if r.random() < 0.5:
        whole, some = s[c].split(whole, 2)
        s[c].bind(some, r.choice([Y, "vthread"]))
    s[c].bind(whole, "blockIdx.x")
    s[c].bind(lane, X)
    v, u = _numbers(r, m, n), _numbers(r, n)
    return Case(s, [a, b, c], [v, u], [np.maximum(v + u, 0)])


def two_stages(r: random.Random) -> Case:
    """Two stages in shared memory, the second of which reads what neighbours computed of the first."""
    n, lanes = r.choice([16, 22, 40]), r.choice([4, 8])
    a = te.placeholder((n + 4,), name="A")
    b = te.compute((n + 2,), lambda i: a[i] + a[i + 2], name="B")
    c = te.compute((n + 1,), lambda i: b[i] * 2.0 - b[i + 1], name="C")
    d = te.compute((n,), lambda i: c[i] + c[i + 1], name="D")
    s = te.create_schedule(d)
    block, lane = s[d].split(d.axis[0], lanes)
    s[d].bind(block, "blockIdx.x")
    inside = r.random() < 0.5
    if inside:
        s[d].bind(lane, X)
    for t in (c, b):
        s[t].set_scope("shared")
        s[t].compute_at(s[d], lane if inside else block)
    if not inside:
        s[d].bind(lane, X)
    for t in (c, b):
        if r.random() < 0.8:
            _, inner = s[t].split(s[t].loops[-1], lanes)
            s[t].bind(inner, X)
    v = _numbers(r, n + 4)
    first = v[:-2] + v[2:]
    second = first[:-1] * 2 - first[1:]
    return Case(s, [a, d], [v], [second[:-1] + second[1:]])


def rows_in_warps(r: random.Random) -> Case:
    """Rows of a matrix in memory of warps: each row of threads has one, and reads it in another order."""
    m, n, rows = r.choice([3, 8]), r.choice([8, 16]), r.choice([2, 4])
    a = te.placeholder((m, n), name="A")
    b = te.compute((m, n), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((m, n), lambda i, j: b[i, n - 1 - j] * 3.0, name="C")
    s = te.create_schedule(c)
    block, row = s[c].split(c.axis[0], rows)
    s[c].bind(block, "blockIdx.x")
    s[c].bind(row, Y)
    s[c].bind(c.axis[1], X)
    s[b].set_scope(r.choice(["warp", "shared"]))
    s[b].compute_at(s[c], s[c].loops[-1])
    loop = s[b].loops[-1]
    if r.random() < 0.7:
        s[b].bind(loop, X)
    v = _numbers(r, m, n)
    return Case(s, [a, c], [v], [(v[:, ::-1] + 1) * 3])
