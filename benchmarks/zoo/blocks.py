"""Composites of torch.nn: recurrent networks, transformers, convolutions of one and three dimensions, a U-Net."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.zoo.entry import Builder, Entry


class UNet(nn.Module):
    """Two scales with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.up, self.leave = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(32, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = torch.relu(self.enter(x))
        coarse = torch.relu(self.down(fine))
        return self.leave(torch.cat([fine, self.up(coarse)], 1))


class Tagger(nn.Module):
    """Word embeddings, a bidirectional LSTM, a tag for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 32)
        self.lstm = nn.LSTM(32, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(64, 9)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.tags(self.lstm(self.words(words))[0]).log_softmax(-1)


def tagger() -> Entry:
    return Entry(Tagger().eval(), (torch.randint(0, 200, (2, 12)),))


def gru() -> Entry:
    return Entry(nn.GRU(16, 64, num_layers=2).eval(), (torch.randn(20, 2, 16), torch.zeros(2, 2, 64)))


def encoder() -> Entry:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
    return Entry(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), (torch.randn(2, 17, 64),))


def whole_transformer() -> Entry:
    module = nn.Transformer(64, 4, 1, 1, 128, batch_first=True)
    return Entry(module.eval(), (torch.randn(2, 11, 64), torch.randn(2, 7, 64)))


def volumes() -> Entry:
    layers = [nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 16, 3)]
    return Entry(nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten()).eval(), (torch.randn(1, 1, 12, 16, 16),))


def waves() -> Entry:
    layers = [nn.Conv1d(1, 16, 9, stride=4), nn.GELU(), nn.Conv1d(16, 32, 5, dilation=2), nn.InstanceNorm1d(32)]
    return Entry(nn.Sequential(*layers, nn.AdaptiveMaxPool1d(4), nn.Flatten()).eval(), (torch.randn(1, 1, 400),))


def upscaler() -> Entry:
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)]
    return Entry(nn.Sequential(*layers).eval(), (torch.randn(1, 1, 20, 24),))


MODELS: dict[str, Builder] = {
    "nn-UNet": lambda: Entry(UNet().eval(), (torch.randn(1, 3, 32, 32),)),
    "nn-LSTM-tagger": tagger,
    "nn-GRU": gru,
    "nn-TransformerEncoder": encoder,
    "nn-Transformer": whole_transformer,
    "nn-Conv3d": volumes,
    "nn-Conv1d": waves,
    "nn-upscaler": upscaler,
}
