"""Tiny language models of transformers: encoders, decoders, encoder-decoders, mixtures of experts, state spaces."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.zoo.entry import Builder, Entry, tokens
from benchmarks.zoo.libraries import library

VOCABULARY = 200
LENGTH = 24
BASE = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE = {**BASE, "intermediate_size": 128}
GROUPED = {**WIDE, "num_key_value_heads": 2, "max_position_embeddings": 64}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2}
NO_CACHE = {"use_cache": False}

ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": WIDE,
    "Roberta": WIDE,
    "DistilBert": {"vocab_size": VOCABULARY, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
    "Albert": {**WIDE, "embedding_size": 32},
    "Electra": {**WIDE, "embedding_size": 32},
    "Deberta": {**WIDE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "DebertaV2": {**WIDE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16},
    "MPNet": WIDE,
    "SqueezeBert": {**WIDE, "embedding_size": 64},
    "MobileBert": {**WIDE, "embedding_size": 32, "intra_bottleneck_size": 32},
    "ConvBert": {**WIDE, "embedding_size": 32},
    "FNet": {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128},
    "Funnel": {
        "vocab_size": VOCABULARY,
        "d_model": 64,
        "n_head": 4,
        "d_head": 16,
        "d_inner": 128,
        "block_sizes": [1, 1],
    },
    "ModernBert": {**WIDE, "pad_token_id": 0},
    "RoFormer": WIDE,
    "XLMRoberta": WIDE,
    "Longformer": {**WIDE, "attention_window": 8, "max_position_embeddings": 64},
    "BigBird": {**WIDE, "attention_type": "original_full"},
    "Nystromformer": {**WIDE, "segment_means_seq_len": 24, "num_landmarks": 8},
    "Splinter": WIDE,
    "IBert": {**WIDE, "quant_mode": False},
    "RemBert": {**WIDE, "input_embedding_size": 32},
    "MegatronBert": WIDE,
    "Xmod": {**WIDE, "languages": ["en_XX"], "default_language": "en_XX"},
    "Flaubert": {"vocab_size": VOCABULARY, "emb_dim": 64, "n_layers": 2, "n_heads": 4},
    "XLNet": {"vocab_size": VOCABULARY, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128},
}
"""Configurations of encoders, by the name of their classes."""

DECODERS: dict[str, dict[str, Any]] = {
    "GPT2": {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "GPTNeo": {**BASE, "num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "GPTNeoX": {**WIDE, "max_position_embeddings": 64},
    "GPTJ": {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    "GPTBigCode": {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "CodeGen": {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    "OPT": {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 128,
        "word_embed_proj_dim": 64,
    },
    "Bloom": {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "Falcon": {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "Mpt": {"vocab_size": VOCABULARY, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 16},
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 16},
    "Phi": {**WIDE, "max_position_embeddings": 64},
    "Phi3": {**GROUPED, "pad_token_id": 0},
    "Gemma": {**GROUPED, "head_dim": 16},
    "Gemma2": {**GROUPED, "head_dim": 16, "sliding_window": 16},
    "Gemma3Text": {**GROUPED, "head_dim": 16, "sliding_window": 16},
    "StableLm": GROUPED,
    "Olmo": GROUPED,
    "Olmo2": GROUPED,
    "Cohere": GROUPED,
    "Granite": GROUPED,
    "Starcoder2": GROUPED,
    "Persimmon": {**WIDE, "max_position_embeddings": 64},
    "SmolLM3": {**GROUPED, "pad_token_id": 0},
    "Glm": {**GROUPED, "head_dim": 16, "pad_token_id": 0},
    "Mixtral": {**EXPERTS, "num_local_experts": 4},
    "Qwen2Moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "Olmoe": {**EXPERTS, "num_experts": 4},
    "Mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "Mamba2": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 8,
        "num_heads": 4,
        "head_dim": 16,
        "n_groups": 1,
        "chunk_size": 8,
    },
    "Rwkv": {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "attention_hidden_size": 64},
}
"""Configurations of decoders; all but the state spaces are run without a cache."""

TRANSLATOR: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "decoder_start_token_id": 2,
}
SEQUENCES: dict[str, dict[str, Any]] = {
    "T5": {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "MT5": {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    **{name: dict(TRANSLATOR) for name in ("Bart", "MBart", "Pegasus", "Marian", "Blenderbot", "M2M100")},
}
"""Configurations of encoder-decoders."""


def build(name: str, config: dict[str, Any], arguments: dict[str, Any]) -> Entry:
    """A model over i64[1, LENGTH] token numbers."""
    transformers = library("transformers")
    settings = getattr(transformers, name + "Config")(**config)
    for key, value in arguments.items():
        setattr(settings, key, value)
    model = getattr(transformers, name + "Model")(settings)
    return Entry(model.eval(), {"input_ids": tokens(VOCABULARY, LENGTH)})


def encoder_decoder(name: str, config: dict[str, Any]) -> Entry:
    entry = build(name, config, NO_CACHE)
    more = {"attention_mask": torch.ones(1, LENGTH, dtype=torch.int64), "decoder_input_ids": tokens(VOCABULARY, 8)}
    return Entry(entry.module, {**entry.example, **more})  # type: ignore[dict-item]


MODELS: dict[str, Builder] = {
    **{f"text-{name}": partial(build, name, config, {}) for name, config in ENCODERS.items()},
    **{f"text-{name}": partial(build, name, config, NO_CACHE) for name, config in DECODERS.items()},
    **{f"text-{name}": partial(encoder_decoder, name, config) for name, config in SEQUENCES.items()},
}
