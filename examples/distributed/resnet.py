"""ResNet-18 (He et al., 2016) for ten classes."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet18(nn.Module):
    """Images f32[n, 3, h, w] to scores f32[n, 10]; 11.2 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 64, 128, 256, 512)
        stages = [
            Block(widths[k - (second == 0)], widths[k], 2 if k > 1 and second == 0 else 1)
            for k in range(1, 5)
            for second in range(2)
        ]
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stages = nn.Sequential(*stages)
        self.scores = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.stages(self.stem(x)).mean((2, 3)))
