"""Matrix products with a symbolic number of rows: by dot instructions for few rows, by matrix instructions for more.

    y = matmul_by_rows(x, w)     ->     if x has fewer rows than `least`:  y = matmul_dot(x, w)
                                        else:                              y = matmul_tiles(x, w)

Both read the same packed weights. A matrix register has sixteen rows, which few rows of x would leave mostly empty.
"""

from __future__ import annotations

from tilewright.ir.graph import Node
from tilewright.ops.lowered.packed import ColumnsAttrs
from tilewright.ops.lowered.tiles import MATMUL_TILES, MatmulTilesAttrs
from tilewright.ops.registry import OpDef, Version, register
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class MatmulByRowsAttrs(MatmulTilesAttrs):
    """Attributes of a product by matrix instructions, which is used for at least `least` rows."""

    least: int


def versions(node: Node) -> tuple[Version, ...]:
    """(condition, node) of both versions of a product: by dot instructions for fewer than `least` rows, else by matrix
    instructions."""
    attrs, rows = node.of(MatmulByRowsAttrs), node.output.shape[-2]
    fewer = Node("lowered.matmul_dot", node.inputs, node.outputs, ColumnsAttrs(attrs.columns))
    several = Node(MATMUL_TILES.name, node.inputs, node.outputs, MatmulTilesAttrs(attrs.columns, attrs.rows))
    return Version(rows < attrs.least, fewer), Version(None, several)


MATMUL_BY_ROWS = register(
    OpDef(
        "lowered.matmul_by_rows",
        "contraction",
        MatmulByRowsAttrs,
        MATMUL_TILES.infer,
        MATMUL_TILES.reference,
        MATMUL_TILES.compute,
        versions=versions,
    )
)
