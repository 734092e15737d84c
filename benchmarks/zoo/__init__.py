"""The zoo: architectures with random weights, built from libraries by their configurations; nothing is downloaded."""

from __future__ import annotations

import torch

from benchmarks.zoo import blocks, control, diffusion, recommenders, series, speech, text, vision, visionlanguage
from benchmarks.zoo.entry import Builder, Entry, awaken

FAMILIES: dict[str, dict[str, Builder]] = {
    "timm": vision.MODELS,
    "text": text.MODELS,
    "speech": speech.MODELS,
    "vision and language": visionlanguage.MODELS,
    "diffusion": diffusion.MODELS,
    "torch.nn": blocks.MODELS,
    "control": control.MODELS,
    "recommenders and graphs": recommenders.MODELS,
    "time series": series.MODELS,
}
"""Builders by name, by kind of model."""


def builders() -> dict[str, Builder]:
    """All builders by name."""
    return {name: make for models in FAMILIES.values() for name, make in models.items()}


def built(name: str) -> Entry:
    """The module with the weights and the example that it always has, in a process of one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    entry = builders()[name]()
    awaken(entry.module)
    return entry
