"""Forecasters of time series."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.zoo.entry import Builder, Entry
from benchmarks.zoo.libraries import library

STEPS = 48
HORIZON = 12
CHANNELS = 5


class DLinear(nn.Module):
    """A trend by moving means and what is left, each through one linear layer (Zeng et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.trend, self.season = nn.Linear(STEPS, HORIZON), nn.Linear(STEPS, HORIZON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        trend = nn.functional.avg_pool1d(nn.functional.pad(x, (6, 6), mode="replicate"), 13, 1)
        return (self.trend(trend) + self.season(x - trend)).transpose(1, 2)


class Causal(nn.Module):
    """A temporal convolutional network: dilated causal convolutions with residuals (Bai et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(CHANNELS, 32, 1)
        self.layers = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=2**k) for k in range(4))
        self.head = nn.Linear(32, HORIZON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.enter(x.transpose(1, 2))
        for k, layer in enumerate(self.layers):
            y = y + torch.relu(layer(nn.functional.pad(y, (2 * 2**k, 0))))
        return self.head(y[:, :, -1])


class NBeats(nn.Module):
    """Blocks that each explain a part of the past and say what it means for the future (Oreshkin et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(nn.Sequential(nn.Linear(STEPS, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(3))
        self.past = nn.ModuleList(nn.Linear(64, STEPS) for _ in range(3))
        self.future = nn.ModuleList(nn.Linear(64, HORIZON) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        forecast = torch.zeros(x.shape[0], HORIZON)
        for body, past, future in zip(self.bodies, self.past, self.future, strict=True):
            y = torch.relu(body(x))
            x, forecast = x - past(y), forecast + future(y)
        return forecast


class Patches(nn.Module):
    """Overlapping pieces of a series as words of a transformer (Nie et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(32 * 5, HORIZON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, deviation = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        pieces = ((x - mean) / deviation).transpose(1, 2).unfold(-1, 16, 8)
        y = self.body(self.embed(pieces).flatten(0, 1)).flatten(1)
        return self.head(y).unflatten(0, (x.shape[0], -1)).transpose(1, 2) * deviation + mean


class Spectral(nn.Module):
    """The strongest frequencies of the past, mixed and turned back (after FiLM and FEDformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.head = nn.Parameter(torch.randn(STEPS // 2 + 1)), nn.Linear(STEPS, HORIZON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x.transpose(1, 2)) * self.gain
        return self.head(torch.fft.irfft(spectrum, n=STEPS))


def patch_series() -> Entry:
    transformers = library("transformers")
    config = transformers.PatchTSTConfig(
        num_input_channels=CHANNELS,
        context_length=STEPS,
        patch_length=8,
        patch_stride=8,
        d_model=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
    )
    return Entry(transformers.PatchTSTModel(config).eval(), (torch.randn(2, STEPS, CHANNELS),))


MODELS: dict[str, Builder] = {
    "series-DLinear": lambda: Entry(DLinear().eval(), (torch.randn(2, STEPS, CHANNELS),)),
    "series-TCN": lambda: Entry(Causal().eval(), (torch.randn(2, STEPS, CHANNELS),)),
    "series-NBeats": lambda: Entry(NBeats().eval(), (torch.randn(4, STEPS),)),
    "series-patches": lambda: Entry(Patches().eval(), (torch.randn(2, STEPS, CHANNELS),)),
    "series-spectral": lambda: Entry(Spectral().eval(), (torch.randn(2, STEPS, CHANNELS),)),
    "series-PatchTST": patch_series,
}
