"""Estimates of costly epilogues of products, after a tile or between the products of the next one
(`transform/loops/defer.py`).

Functions whose coefficients come from tables in registers (`transform/math/tables.py`) occupy the unit for
permutations, and those for additions and comparisons, about as long as the multipliers. Between products only the
multipliers count, which is half of the time; but then a tile goes through memory, and the next tile must leave
registers for the function.
"""

from __future__ import annotations

from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_int
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import walk
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.plans.framework.cost import ORDINARY, Cost, weight
from tilewright.plans.matmul.tiles import MatmulTile, Product
from tilewright.targets.target import Target

AT_WORK = 6
"""The number of registers that a function needs."""


def epilogue_work(structure: Structure, anchor: Stage, target: Target) -> float:
    """The operations per element of a product's epilogue, in multiply-adds, beyond those of a simple epilogue."""
    stores = [s for stage in structure.after(anchor) for s in walk(stage.block.body) if isinstance(s, Store)]
    return max(0.0, sum(weight(s.value, target) for s in stores) - ORDINARY)


def epilogue(tile: MatmulTile, product: Product, work: float, target: Target, *, defer: bool) -> Cost:
    """The cost of the epilogue of `product` in tiles `tile` beyond a simple one, for an epilogue of `work`
    multiply-adds per element. `defer`: it runs within the next tile's products."""
    vectors = max(1, tile.width // target.lanes(product.itemsize))
    panels = -(-product.columns // tile.width)
    each = work * panels * vectors / target.fma_per_cycle
    deferred = max(0, product.rows // tile.rows - 1) * tile.rows if defer else 0
    costs = target.costs.arithmetic
    overhead = costs.deferred_vector * panels * vectors * deferred
    return Cost(compute=each * (product.rows - costs.idle_units * deferred), overhead=overhead)


def can_defer(anchor: Stage, tile: MatmulTile, work: float, target: Target) -> bool:
    """Whether the epilogue of tiles `tile`, of `work` operations per element, can run within the next tile's products:
    its functions are in f32 with register tables, and there are registers for both."""
    tables = bool(target.isa.tables) and anchor.writes[0].dtype is f32
    vectors = tile.width // target.lanes(f32.itemsize)
    state = tile.rows * vectors + vectors + target.registers // target.costs.arithmetic.registers_a_spare + AT_WORK
    several = tile.rows > 1 and tile.panels == 1 and as_int(anchor.reduce[0].extent) is not None
    return tables and work > 0.0 and several and state <= target.registers
