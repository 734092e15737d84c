"""Parts of diffusion models from diffusers: denoisers and autoencoders."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.zoo.entry import Builder, Entry
from benchmarks.zoo.libraries import library

STEP = torch.tensor([10])


def unet() -> Entry:
    model = library("diffusers").UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        norm_num_groups=8,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return Entry(model.eval(), (torch.randn(1, 3, 16, 16), STEP))


def conditional_unet() -> Entry:
    model = library("diffusers").UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        norm_num_groups=8,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    return Entry(model.eval(), (torch.randn(1, 4, 16, 16), STEP, torch.randn(1, 6, 32)))


def autoencoder() -> Entry:
    model = library("diffusers").AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        latent_channels=4,
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return Entry(model.eval(), (torch.randn(1, 3, 32, 32),))


def tiny_autoencoder() -> Entry:
    widths: dict[str, Any] = {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16)}
    blocks: dict[str, Any] = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
    return Entry(library("diffusers").AutoencoderTiny(**widths, **blocks).eval(), (torch.randn(1, 3, 32, 32),))


def vector_quantised() -> Entry:
    model = library("diffusers").VQModel(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        latent_channels=3,
        num_vq_embeddings=32,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return Entry(model.eval(), (torch.randn(1, 3, 16, 16),))


def transformer() -> Entry:
    model = library("diffusers").DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        norm_num_groups=4,
        num_embeds_ada_norm=10,
    )
    example = {"hidden_states": torch.randn(1, 4, 8, 8), "timestep": STEP, "class_labels": torch.tensor([3])}
    return Entry(model.eval(), example)


MODELS: dict[str, Builder] = {
    "diffusion-UNet2D": unet,
    "diffusion-UNet2DCondition": conditional_unet,
    "diffusion-AutoencoderKL": autoencoder,
    "diffusion-AutoencoderTiny": tiny_autoencoder,
    "diffusion-VQ": vector_quantised,
    "diffusion-DiT": transformer,
}
