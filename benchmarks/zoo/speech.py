"""Models of sound from transformers: wave forms and spectrograms in."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.zoo.entry import Builder, Entry, tokens
from benchmarks.zoo.libraries import library

SAMPLES = 1600
BASE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
WAVES = {
    **BASE,
    "conv_dim": [32, 32, 32],
    "conv_stride": [5, 4, 2],
    "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
}


def wave(name: str, config: dict[str, Any]) -> Entry:
    """A wave form f32[1, SAMPLES]."""
    transformers = library("transformers")
    model = getattr(transformers, name + "Model")(getattr(transformers, name + "Config")(**config))
    return Entry(model.eval(), (torch.randn(1, SAMPLES),))


def whisper() -> Entry:
    transformers = library("transformers")
    config = transformers.WhisperConfig(
        vocab_size=200,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50,
        max_target_positions=32,
        use_cache=False,
        pad_token_id=1,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    example = {"input_features": torch.randn(1, 16, 100), "decoder_input_ids": tokens(200, 8)}
    return Entry(transformers.WhisperModel(config).eval(), example)


def spectrogram() -> Entry:
    transformers = library("transformers")
    config = transformers.ASTConfig(**BASE, max_length=64, num_mel_bins=32)
    return Entry(transformers.ASTModel(config).eval(), (torch.randn(1, 64, 32),))


MODELS: dict[str, Builder] = {
    **{f"speech-{name}": partial(wave, name, WAVES) for name in ("Wav2Vec2", "Hubert", "WavLM", "UniSpeech", "SEW")},
    "speech-Whisper": whisper,
    "speech-AST": spectrogram,
}
