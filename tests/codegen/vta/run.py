"""ResNet-18's layers C2 to C11 and a product of 1024 blocked by 256 on VTA: exact, with cycles before and after virtual
threads and loads ahead, as a table. Part of `make vta`."""

from __future__ import annotations

import numpy as np

from tests.codegen.vta.layers import RESNET, as_before, check, compiled, resnet
from tilewright.plans.vta.layers import Product, Requantised, with_offset
from tilewright.plans.vta.schedules import choose
from tilewright.plans.vta.tiles import Tile
from tilewright.targets.vta.timing import timeline

OVERLAP = 1.2
"""The least geometric mean of the ratios of cycles."""
COMPUTE_BOUND = 0.85
"""The least share of the GEMM core's peak on layers that it bounds: those of 3x3 kernels."""


def main() -> None:
    ratios, same = [], []
    print(
        "| layer | cycles without | with | ratio | ratio of the same tile | share of peak |\n|---|---|---|---|---|---|"
    )
    for name in RESNET:
        layer = resnet(name)
        tile = choose(layer)
        after = timeline(check(layer, tile).instructions)
        before = timeline(check(layer, choose(layer, False)).instructions)
        ordinary = timeline(compiled(layer, as_before(tile)).instructions)
        ratios.append(before.cycles / after.cycles)
        same.append(ordinary.cycles / after.cycles)
        print(
            f"| {name} | {before.cycles} | {after.cycles} | {ratios[-1]:.2f} | {same[-1]:.2f} | {after.share:.2f} |",
            flush=True,
        )
        assert layer.kernel == (1, 1) or after.share >= COMPUTE_BOUND, name
    assert np.exp(np.mean(np.log(ratios))) >= OVERLAP
    print(f"geometric means: {np.exp(np.mean(np.log(ratios))):.3f}, {np.exp(np.mean(np.log(same))):.3f}")
    blocked = Tile(16, 32, 16, 2, False, "chunk")
    product = timeline(check(with_offset(Product(1024, 64, 64, Requantised(11))), blocked).instructions)
    print(f"1024 x 1024 x 1024 blocked by 256: {product.cycles} cycles, {product.share:.2f} of peak")


if __name__ == "__main__":
    main()
