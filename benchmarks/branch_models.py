"""Models whose parts do not depend on each other: what threads may do side by side. ONNX files with random weights.

* `inception3`, `inception3-160`: Inception-v3 as torchvision has it, at 299 pixels and at 160;
* `hrnet`, `hrnet-96`: a small HRNet (timm's hrnet_w18_small: widths 18 to 144 at four resolutions), at 224 and at 96;
* `towers256`, `towers512`: a policy and two critics on the same observation, each three layers of such a width.

Batch norms are folded already: a convolution has a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx

from benchmarks.onnx_builder import BATCH, Builder

Kernel = int | tuple[int, int]


class _Net:
    """A builder with convolutions that count themselves, each after it a ReLU."""

    def __init__(self, name: str) -> None:
        self.b = Builder(name, seed=3)
        self.count = 0

    def conv(self, x: str, c_in: int, c_out: int, kernel: Kernel = 1, stride: int = 1, *, pad: bool = True) -> str:
        """Without padding where `pad` is false, else so that a stride of one keeps the size."""
        return self.b.relu(self.linear(x, c_in, c_out, kernel, stride, pad=pad))

    def linear(self, x: str, c_in: int, c_out: int, kernel: Kernel = 1, stride: int = 1, *, pad: bool = True) -> str:
        """A convolution alone."""
        b = self.b
        self.count += 1
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        weight = b.weight(f"conv{self.count}.weight", b.normal((c_out, c_in, kh, kw), (2.0 / (c_in * kh * kw)) ** 0.5))
        bias = b.weight(f"conv{self.count}.bias", b.normal((c_out,), 0.1))
        pads = [kh // 2, kw // 2] * 2 if pad else [0] * 4
        return b.op("Conv", [x, weight, bias], kernel_shape=[kh, kw], strides=[stride, stride], pads=pads)

    def chain(self, x: str, c_in: int, layers: Sequence[tuple[int, Kernel]]) -> str:
        """Convolutions after each other: channels and window of each."""
        for c_out, kernel in layers:
            x, c_in = self.conv(x, c_in, c_out, kernel), c_out
        return x

    def mean3(self, x: str) -> str:
        return self.b.op("AveragePool", [x], kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4, count_include_pad=1)

    def max3(self, x: str) -> str:
        return self.b.op("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2])

    def joined(self, *parts: str) -> str:
        return self.b.op("Concat", list(parts), axis=1)

    def classes(self, x: str, channels: int, count: int = 1000) -> onnx.ModelProto:
        x = self.b.op("Flatten", [self.b.op("GlobalAveragePool", [x])], axis=1)
        self.b.output(self.b.linear(x, "fc", channels, count), "logits", [BATCH, count])
        return self.b.build()


def inception3(size: int = 299) -> onnx.ModelProto:
    """Inception-v3 without its auxiliary head."""
    n = _Net("inception3")
    x = n.b.input("image", [BATCH, 3, size, size])
    x = n.conv(n.conv(n.conv(x, 3, 32, 3, 2, pad=False), 32, 32, 3, pad=False), 32, 64, 3)
    x = n.max3(n.conv(n.conv(n.max3(x), 64, 80), 80, 192, 3, pad=False))
    c = 192
    for pooled in (32, 64, 64):  # A
        one, two = n.conv(x, c, 64), n.chain(x, c, [(48, 1), (64, 5)])
        three = n.chain(x, c, [(64, 1), (96, 3), (96, 3)])
        x, c = n.joined(one, two, three, n.conv(n.mean3(x), c, pooled)), 224 + pooled
    twice = n.conv(n.chain(x, c, [(64, 1), (96, 3)]), 96, 96, 3, 2, pad=False)  # B
    x, c = n.joined(n.conv(x, c, 384, 3, 2, pad=False), twice, n.max3(x)), 480 + c
    for m in (128, 160, 160, 192):  # C
        two = n.chain(x, c, [(m, 1), (m, (1, 7)), (192, (7, 1))])
        three = n.chain(x, c, [(m, 1), (m, (7, 1)), (m, (1, 7)), (m, (7, 1)), (192, (1, 7))])
        x, c = n.joined(n.conv(x, c, 192), two, three, n.conv(n.mean3(x), c, 192)), 768
    one = n.conv(n.conv(x, c, 192), 192, 320, 3, 2, pad=False)  # D
    two = n.conv(n.chain(x, c, [(192, 1), (192, (1, 7)), (192, (7, 1))]), 192, 192, 3, 2, pad=False)
    x, c = n.joined(one, two, n.max3(x)), 1280
    for _ in range(2):  # E
        two, three = n.conv(x, c, 384), n.chain(x, c, [(448, 1), (384, 3)])
        half_parts = [n.conv(part, 384, 384, kernel) for part in (two, three) for kernel in ((1, 3), (3, 1))]
        x, c = n.joined(n.conv(x, c, 320), *half_parts, n.conv(n.mean3(x), c, 192)), 2048
    return n.classes(x, c)


WIDTHS = (18, 36, 72, 144)


def hrnet(size: int = 224) -> onnx.ModelProto:
    """Four resolutions side by side, each of two residual blocks a stage, which exchange what they found."""
    n = _Net("hrnet")
    b = n.b
    x = n.conv(n.conv(b.input("image", [BATCH, 3, size, size]), 3, 64, 3, 2), 64, 64, 3, 2)
    maps = [n.conv(x, 64, WIDTHS[0], 3), n.conv(x, 64, WIDTHS[1], 3, 2)]
    for stage in (2, 3, 4):
        while len(maps) < stage:
            k = len(maps)
            maps.append(n.conv(maps[-1], WIDTHS[k - 1], WIDTHS[k], 3, 2))
        for k, c in enumerate(WIDTHS[:stage]):
            for _ in range(2):
                inner = n.linear(n.conv(maps[k], c, c, 3), c, c, 3)
                maps[k] = b.relu(b.op("Add", [inner, maps[k]]))
        maps = [_exchanged(n, maps, k) for k in range(stage)]
    parts = [n.conv(m, c, 2 * c) for m, c in zip(maps, WIDTHS, strict=True)]
    x = parts[0]
    for k, part in enumerate(parts[1:]):
        x = b.op("Add", [n.conv(x, 2 * WIDTHS[k], 2 * WIDTHS[k + 1], 3, 2), part])
    return n.classes(n.conv(x, 288, 1024), 1024)


def _exchanged(n: _Net, maps: Sequence[str], k: int) -> str:
    """The map of one resolution with all others', resized to its size, added."""
    b = n.b
    total = maps[k]
    for j, other in enumerate(maps):
        x, c = other, WIDTHS[j]
        if j > k:
            scales = b.constant(np.array([1, 1, 2 ** (j - k), 2 ** (j - k)], np.float32))
            x = b.op("Resize", [n.linear(x, c, WIDTHS[k]), "", scales], mode="nearest")
        for step in range(j, k):
            last = step == k - 1
            x = n.linear(x, c, WIDTHS[k], 3, 2) if last else n.conv(x, c, c, 3, 2)
        if j != k:
            total = b.op("Add", [total, x])
    return b.relu(total)


def towers(width: int, observation: int = 376, actions: int = 17) -> onnx.ModelProto:
    """An actor and two critics of its observation, which share nothing."""
    b = Builder("towers", seed=5)
    x = b.input("obs", [BATCH, observation])
    for name, last in (("actor", actions), ("critic1", 1), ("critic2", 1)):
        y, fan_in = x, observation
        for k in range(3):
            y, fan_in = b.relu(b.linear(y, f"{name}.{k}", fan_in, width)), width
        b.output(b.linear(y, f"{name}.head", width, last), name, [BATCH, last])
    return b.build()


BRANCHES: dict[str, Callable[[], onnx.ModelProto]] = {
    "inception3": inception3,
    "inception3-160": partial(inception3, 160),
    "hrnet": hrnet,
    "hrnet-96": partial(hrnet, 96),
    "towers256": partial(towers, 256),
    "towers512": partial(towers, 512),
}
"""By name, as `benchmarks.models` knows them."""
