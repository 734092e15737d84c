"""Kernels of the GPU's plans with random sizes, types, masks and settings: what the grid interpreter makes of them, as
threads, is what was not scheduled gives, and without its barriers each has a race.

    python -m tests.plans.gpu.random_kernels 500 [FIRST]
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from tests.codegen.ptx.cases import arguments
from tests.plans.gpu.test_attention import attention
from tests.plans.gpu.test_products import across, convolution, innermost, product
from tests.plans.gpu.test_races import without
from tilewright.codegen.interpret.grid import interpret_grid
from tilewright.codegen.interpret.interpreter import InterpretError, interpret
from tilewright.ir.loops import Barrier, PrimFunc
from tilewright.ir.rewrite import walk
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.base import Candidate, Plan
from tilewright.plans.framework.cost import Cost
from tilewright.plans.gpu import attention as attentions
from tilewright.plans.gpu import products
from tilewright.plans.gpu.contractions import contraction
from tilewright.plans.gpu.product_loops import BY_TILES
from tilewright.plans.gpu.product_tiles import by_tiles, depth_of
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import Target
from tilewright.transform.loops import lower_loops

SM_90A = Target.parse("nvidia-sm_90a")
Settings = dict[str, int]


def random_product(r: random.Random) -> tuple[PrimFunc, Plan, Settings]:
    """A product, one of factors that lie across, or a convolution, with tiles, warps, stages and parts of the depth."""
    t = r.choice(["f32", "f16", "bf16", "i8"])
    m, n, k = r.randint(3, 70), r.randint(2, 6) * 4, r.choice([8, 24, 33, 64, 128])
    kind = r.random()
    if kind < 0.15 and t in ("f16", "bf16"):
        func = across(t)
    elif kind < 0.35 and t != "i8":
        sizes = r.choice([8, 16, 24, 64]), r.randint(4, 7), r.randint(3, 20), r.choice([1, 3])
        func = innermost(r.randint(1, 2), *sizes, r.choice([1, 2]), r.choice([0, 1]), t)
    elif kind < 0.45:
        func = convolution(1, r.randint(1, 6), r.randint(5, 8), r.randint(3, 12), 3, r.choice([1, 2]), r.choice([0, 1]))
    else:
        func = product(m, n, k, transposed=r.random() < 0.7, t=t, batch=r.choice([(), (), (2,)]))
    c = next(c for s in analyse(func).stages if (c := contraction(s.block)) is not None)
    together = r.choice([0, 0, 1, BY_TILES])
    if together == BY_TILES and not all(by_tiles(f, lines, c) for f, lines in ((c.a, c.rows), (c.b, c.columns))):
        together = 1
    if together:
        tile = r.choice([(64, 64, 4, 1), (64, 128, 4, 1)])
    else:
        row_warps, column_warps = r.choice([1, 2]), r.choice([1, 2, 4])
        tile = 16 * row_warps * r.choice([1, 2]), 8 * column_warps * r.choice([1, 2]), row_warps, column_warps
    if tile[2] * tile[3] == 1:
        tile = (*tile[:2], 1, 2) if tile[1] % 16 == 0 else (tile[0], 16, 1, 2)
    depth = depth_of(c.dtype, bool(together))
    splits = r.choice(products._splits(c, depth))
    stages = r.randint(1, products.stages_of(c, depth, splits))
    names = ("rows", "columns", "row_warps", "column_warps", "stages", "splits", "together")
    return func, products.PLAN, dict(zip(names, (*tile, stages, splits, together), strict=True))


def random_attention(r: random.Random) -> tuple[PrimFunc, Plan, Settings]:
    """Attention with masks, shared heads, caches, orders of dimensions and any depths."""
    t = r.choice(["f32", "f16", "bf16"])
    rows, keys, batch = r.randint(1, 40), r.randint(1, 40), r.choice([1, 1, 2])
    heads = r.choice([(1, 1), (2, 1), (2, 2), (4, 2)])
    more: dict[str, Any] = {"causal": r.random() < 0.5, "order": "".join(r.choice("sht") for _ in range(4))}
    if r.random() < 0.4:
        shape = r.choice([(rows, keys), (1, keys), (batch, 1, rows, keys), (1, heads[0], 1, keys)])
        more["mask"] = (r.choice(["bool", t]), shape)
    elif r.random() < 0.3:
        more["past"] = r.randint(1, 30)
    depths = r.choice([4, 8, 12, 16, 24, 7]), r.choice([4, 8, 20, 5])
    func = attention(rows, keys, heads=heads, depth=depths, batch=batch, t=t, guard=r.random() < 0.5, **more)
    return func, attentions.PLAN, {"warps": r.choice([1, 2]), "keys": r.choice([16, 32])}


def kernel(seed: int) -> tuple[PrimFunc, PrimFunc, Settings]:
    """A function, its flat loops for a GPU, and the settings that made them."""
    r = random.Random(seed)
    func, plan, settings = (random_attention if r.random() < 0.4 else random_product)(r)
    s = Schedule(func)
    plan.apply(s, analyse(func), Candidate(tuple(settings.items()), Cost()), SM_90A)
    return func, lower_loops(s.func, SM_90A), settings


def check(seed: int) -> str:
    """Run one kernel; AssertionError or InterpretError where it is wrong. Gives what it was."""
    func, flat, settings = kernel(seed)
    arrays = arguments(flat, {}, seed)
    wanted = [a.copy() for a in arrays[: len(func.params)]]
    interpret(func, wanted)
    bare = without(flat)
    broken = [a.copy() for a in arrays]
    interpret_grid(flat, arrays)
    short = func.params[0].dtype.name
    # Shares of attention and results of 16 bits are rounded; sums of parts of the depth are in another order.
    tolerance = {"f32": 2e-4, "f16": 8e-3, "bf16": 6e-2}.get(short, 0.0)
    for got, expected in zip(arrays, wanted, strict=False):
        a, b = got.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=f"seed {seed}: {settings}")
    if any(isinstance(s, Barrier) for s in walk(flat.body)):
        try:
            interpret_grid(bare, broken)
        except InterpretError as error:
            assert "a race on" in str(error), error
        else:
            raise AssertionError(f"seed {seed}: no race without barriers: {settings}")
    return f"{func.params[0].dtype.name} {settings}"


def main() -> None:
    count, first = (int(x) for x in (*sys.argv[1:], "0")[:2])
    for seed in range(first, first + count):
        print(seed, check(seed), flush=True)


if __name__ == "__main__":
    main()
