"""ResNet-18's layers C2 to C11, a product of 1024 blocked by 256, layers of MobileNet and DCGAN, and ResNet-18 on VTA:
exact, with cycles before and after virtual threads and loads ahead, as a table; how fast the simulator is. Part of
`make vta`."""

from __future__ import annotations

import time

import numpy as np

import tilewright as tw
from tests.codegen.vta.layers import RESNET, as_before, check, compiled, operands, resnet, wanted
from tests.codegen.vta.resnet import resnet18
from tests.targets.vta.reference import Reference
from tilewright.plans.vta.layers import Convolution, Product, Requantised, with_offset
from tilewright.plans.vta.schedules import choose
from tilewright.plans.vta.tiles import Tile
from tilewright.targets.vta.simulator import Machine
from tilewright.targets.vta.timing import timeline

MOBILENET = ((32, 112, 1), (64, 112, 2), (128, 56, 1), (512, 14, 1), (512, 14, 2), (1024, 7, 1))
"""Depthwise layers: channels, size, stride."""
DCGAN = ((1024, 512, 4), (512, 256, 8), (256, 128, 16), (128, 64, 32))
"""Transposed layers of stride 2 and kernel 4: channels in and out, size."""
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
    print(f"1024 x 1024 x 1024 blocked by 256: {product.cycles} cycles, {product.share:.2f} of peak", flush=True)
    for channels, size, stride in MOBILENET:
        blocks = channels // 16
        q = Requantised(9)
        check(Convolution(blocks, size, size, blocks, (3, 3), stride, (1, 1, 1, 1), separate=True, requantised=q))
        print(f"MobileNet, depthwise, {channels} channels of {size} x {size}, stride {stride}: equal", flush=True)
    for cin, cout, size in DCGAN:
        q = Requantised(12)
        check(
            Convolution(
                cin // 16, size, size, cout // 16, (2, 2), 1, (1, 1, 1, 1), phases=2, shifted=(1, 1), requantised=q
            )
        )
        print(f"DCGAN, transposed, {cin} to {cout} channels, {size} x {size}: equal", flush=True)
    simulator()


def simulator() -> None:
    """How long the simulator takes, and how many times an interpreter in Python takes, which computes row by row."""
    layer = resnet("C11")
    program, arrays = compiled(layer), operands(layer)
    values = [*arrays, np.zeros_like(wanted(layer, arrays)), program.uops]
    places = [*program.addresses, program.uop_address]
    image = np.zeros(max(a + v.nbytes for a, v in zip(places, values, strict=True)), np.uint8)
    for a, v in zip(places, values, strict=True):
        image[a : a + v.nbytes] = np.ascontiguousarray(v).view(np.uint8).ravel()
    words, seconds = program.words, []
    for _ in range(9):
        machine, begin = Machine(), time.perf_counter()
        machine.run(words, dict(zip(places, values, strict=True)))
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    Reference(image, 0).run(program.instructions)
    ratio = (time.perf_counter() - begin) / float(np.median(seconds))
    proto, x, features = resnet18()
    model = tw.compile(proto, target="vta-1x16x16")
    begin = time.perf_counter()
    result = model.run({"x": x})
    whole = time.perf_counter() - begin
    assert np.array_equal(np.asarray(result["features"])[0], features)
    print(f"simulator: ResNet-18 exact in {whole:.2f} s; C11 {ratio:.0f} times as fast as an interpreter in Python")
    assert whole <= 20 and ratio >= 50


if __name__ == "__main__":
    main()
