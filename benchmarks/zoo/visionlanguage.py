"""Models of transformers that see: images alone, and images with text."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.zoo.entry import Builder, Entry, tokens
from benchmarks.zoo.libraries import library

SIDE = 64
BASE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
PATCHES = {**BASE, "image_size": SIDE, "patch_size": 16}
WORDS = {**BASE, "vocab_size": 200, "max_position_embeddings": 32}

IMAGES: dict[str, dict[str, Any]] = {
    "ViT": PATCHES,
    "DeiT": PATCHES,
    "Beit": PATCHES,
    "Dinov2": {**PATCHES, "mlp_ratio": 2},
    "ViTMAE": {**PATCHES, "mask_ratio": 0.0},
    "YolosModel": {**PATCHES, "image_size": [SIDE, SIDE], "num_detection_tokens": 8},
    "Segformer": {
        "hidden_sizes": [16, 32],
        "depths": [1, 1],
        "num_encoder_blocks": 2,
        "sr_ratios": [4, 2],
        "num_attention_heads": [1, 2],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "mlp_ratios": [2, 2],
    },
    "Swin": {
        "image_size": SIDE,
        "patch_size": 4,
        "embed_dim": 32,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
    },
    "ConvNext": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    "ResNet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
    "MobileViT": {"image_size": SIDE},
    "SiglipVisionModel": PATCHES,
    "CLIPVisionModel": PATCHES,
    "PoolFormer": {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1]},
    "VitDet": {**PATCHES, "mlp_ratio": 2},
    "DPT": {**PATCHES, "backbone_out_indices": [0, 1], "is_hybrid": False},
}
"""Configurations of what takes an image alone."""


def image(name: str, config: dict[str, Any]) -> Entry:
    """An image f32[1, 3, SIDE, SIDE]."""
    transformers = library("transformers")
    family = name.removesuffix("Model")
    settings = getattr(transformers, family + "Config")(**config)
    model = getattr(transformers, family + "Model")(settings)
    pixels = torch.randn(1, 3, SIDE, SIDE)
    if name == "ViTMAE":  # shuffles the patches by random numbers, unless it is given some
        return Entry(model.eval(), {"pixel_values": pixels, "noise": torch.rand(1, (SIDE // 16) ** 2)})
    return Entry(model.eval(), (pixels,))


def pair(name: str) -> Entry:
    """An image and a sentence, two towers."""
    transformers = library("transformers")
    settings = getattr(transformers, name + "Config")(text_config=WORDS, vision_config=PATCHES, projection_dim=32)
    model = getattr(transformers, name + "Model")(settings)
    example = {"input_ids": tokens(200, 8), "pixel_values": torch.randn(1, 3, SIDE, SIDE)}
    return Entry(model.eval(), {**example, "attention_mask": torch.ones(1, 8, dtype=torch.int64)})


def vilt() -> Entry:
    transformers = library("transformers")
    model = transformers.ViltModel(transformers.ViltConfig(**{**PATCHES, "vocab_size": 200}))
    return Entry(model.eval(), {"input_ids": tokens(200, 8), "pixel_values": torch.randn(1, 3, SIDE, SIDE)})


MODELS: dict[str, Builder] = {
    **{f"image-{name}": partial(image, name, config) for name, config in IMAGES.items()},
    **{f"pair-{name}": partial(pair, name) for name in ("CLIP", "Siglip", "ChineseCLIP", "CLIPSeg")},
    "pair-Vilt": vilt,
}
