"""Convolutional networks in PyTorch with random weights: ResNet, VGG-16, U-Net, MobileNetV2, a YOLOv8n backbone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]
"""A module and example inputs of batch 2."""


def initialize(model: nn.Module) -> None:
    """Weights that keep activations near one; batch norms with statistics of their own.

    A batch norm's defaults (0 and 1) would hide mistakes in folding it.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, 0.0, 0.1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.4, 0.8)
            nn.init.normal_(module.bias, 0.0, 0.1)
            module.running_mean.normal_(0.0, 0.1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.8, 1.2)  # type: ignore[union-attr]


class Bottleneck(nn.Module):
    """ResNet v1.5 block of 1x1, 3x3 (strided), 1x1 convolutions (He et al. 2015)."""

    expansion = 4

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        c_out = width * self.expansion
        self.conv1 = nn.Conv2d(c_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, c_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.downsample = _downsample(c_in, c_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class BasicBlock(nn.Module):
    """ResNet block of two 3x3 convolutions."""

    expansion = 1

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(c_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def _downsample(c_in: int, c_out: int, stride: int) -> nn.Module:
    if stride == 1 and c_in == c_out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))


class ResNet(nn.Module):
    """ResNet for 224x224 images and 1000 classes."""

    def __init__(self, block: type[Bottleneck] | type[BasicBlock], depths: list[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        layers: list[nn.Module] = []
        c_in = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for i in range(depth):
                layers.append(block(c_in, width, 2 if stage > 0 and i == 0 else 1))
                c_in = width * block.expansion
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(c_in, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = torch.nn.functional.adaptive_avg_pool2d(self.layers(x), 1)
        return self.fc(torch.flatten(x, 1))


def _built(model: nn.Module, size: int) -> Built:
    initialize(model)
    return model, (torch.randn(2, 3, size, size),)


def resnet18() -> Built:
    return _built(ResNet(BasicBlock, [2, 2, 2, 2]), 224)


def resnet50() -> Built:
    return _built(ResNet(Bottleneck, [3, 4, 6, 3]), 224)


def vgg16() -> Built:
    """VGG-16 without batch norm (Simonyan and Zisserman 2014)."""
    layers: list[nn.Module] = []
    c_in = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(c_in, width, 3, padding=1), nn.ReLU()]
            c_in = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return _built(nn.Sequential(*layers, nn.Linear(4096, 1000)), 224)


def _conv_bn(c_in: int, c_out: int, kernel: int, stride: int, groups: int, act: nn.Module | None) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), *([act] if act is not None else []))


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with padded convolutions and batch norm, widths 64 to 1024, two classes."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(self._two(a, b) for a, b in zip([3, *widths], widths, strict=False))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(self._two(a, b) for a, b in pairs)
        self.head = nn.Conv2d(width, 2, 1)

    def _two(self, c_in: int, c_out: int) -> nn.Sequential:
        first = _conv_bn(c_in, c_out, 3, 1, 1, nn.ReLU())
        return nn.Sequential(first, _conv_bn(c_out, c_out, 3, 1, 1, nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else torch.nn.functional.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def unet() -> Built:
    return _built(UNet(), 256)


class InvertedResidual(nn.Module):
    """MobileNetV2's block: 1x1 up, depthwise 3x3, 1x1 down without activation."""

    def __init__(self, c_in: int, c_out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = c_in * expand
        layers = [] if expand == 1 else [_conv_bn(c_in, hidden, 1, 1, 1, nn.ReLU6())]
        layers.append(_conv_bn(hidden, hidden, 3, stride, hidden, nn.ReLU6()))
        self.layers = nn.Sequential(*layers, _conv_bn(hidden, c_out, 1, 1, 1, None))
        self.residual = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


def mobilenetv2() -> Built:
    """Sandler et al. 2018, table 2, width 1."""
    layers: list[nn.Module] = [_conv_bn(3, 32, 3, 2, 1, nn.ReLU6())]
    c_in = 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expand, width, depth, stride in table:
        for i in range(depth):
            layers.append(InvertedResidual(c_in, width, stride if i == 0 else 1, expand))
            c_in = width
    layers += [_conv_bn(320, 1280, 1, 1, 1, nn.ReLU6()), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _built(nn.Sequential(*layers, nn.Linear(1280, 1000)), 224)


class C2f(nn.Module):
    """YOLOv8's stage: half of the channels pass through bottlenecks whose results are all concatenated."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        half = width // 2
        self.split = _conv_bn(width, width, 1, 1, 1, nn.SiLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(_conv_bn(half, half, 3, 1, 1, nn.SiLU()), _conv_bn(half, half, 3, 1, 1, nn.SiLU()))
            for _ in range(depth)
        )
        self.join = _conv_bn((2 + depth) * half, width, 1, 1, 1, nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.split(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.join(torch.cat(parts, 1))


class YoloBackbone(nn.Module):
    """Backbone of YOLOv8n with its pyramid pooling; returns the features at strides 8, 16 and 32."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv_bn(3, 16, 3, 2, 1, nn.SiLU())
        self.stages = nn.ModuleList(
            nn.Sequential(_conv_bn(a, b, 3, 2, 1, nn.SiLU()), C2f(b, depth))
            for a, b, depth in ((16, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 1))
        )
        self.reduce = _conv_bn(256, 128, 1, 1, 1, nn.SiLU())
        self.join = _conv_bn(512, 256, 1, 1, 1, nn.SiLU())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stem(x)
        results = []
        for stage in self.stages:
            x = stage(x)
            results.append(x)
        pooled = [self.reduce(x)]
        for _ in range(3):
            pooled.append(torch.nn.functional.max_pool2d(pooled[-1], 5, 1, 2))
        return results[1], results[2], self.join(torch.cat(pooled, 1))


def yolo() -> Built:
    return _built(YoloBackbone(), 640)
