"""Tiny architectures of transformers whose every axis is open: batches, sequences, caches, images, waves.

Each is a module from tensors to tensors, as an exporter takes it, with a name for each open axis and what is called
with five times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.entry import awaken
from benchmarks.zoo.libraries import library
from benchmarks.zoo.speech import WAVES
from benchmarks.zoo.text import ENCODERS, GROUPED, TRANSLATOR, VOCABULARY, WIDE
from benchmarks.zoo.visionlanguage import IMAGES, PATCHES, WORDS

Sizes = Mapping[str, int]
Axes = dict[str, dict[int, str]]

LAYERS, HEADS, WIDTH = 2, 4, 16
"""Layers of a cache, its heads, and the width of each."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A module, its open axes by input and position, a call's tensors for values of the axes, and five such values."""

    module: nn.Module
    axes: Axes
    tensors: Callable[[Sizes], dict[str, torch.Tensor]]
    sizes: tuple[Sizes, ...]


class Results(nn.Module):
    """A model of transformers from tensors by name to a tuple of tensors, without a cache of its own."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], results: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.model, self.names, self.results, self.options = model, names, results, options

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(**dict(zip(self.names, inputs, strict=True)), **self.options)
        return tuple(getattr(result, name) for name in self.results)


class Cached(nn.Module):
    """A decoder that is given keys and values of earlier tokens and gives them back longer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = library("transformers").DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        result = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        retained = [t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)]
        return result.logits, *retained


def words(sizes: Sizes, batch: str = "batch", length: str = "seq") -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (sizes[batch], sizes[length]))


def ones(sizes: Sizes, *axes: str) -> torch.Tensor:
    return torch.ones([sizes[a] for a in axes], dtype=torch.int64)


def grid(**axes: tuple[int, ...]) -> tuple[Sizes, ...]:
    """One mapping for each position of the tuples."""
    return tuple(dict(zip(axes, values, strict=True)) for values in zip(*axes.values(), strict=True))


TEXT = grid(batch=(2, 1, 3, 5, 2), seq=(12, 5, 33, 7, 60))
CACHED = grid(batch=(2, 1, 3, 1, 2), seq=(4, 1, 7, 12, 3), past=(6, 9, 3, 20, 31))
PAIRS = grid(batch=(2, 1, 3, 1, 2), seq=(12, 5, 33, 7, 41), target=(6, 9, 3, 20, 31))
PICTURES = grid(batch=(2, 1, 3, 1, 2), height=(96, 64, 32, 80, 48), width=(48, 64, 96, 64, 112))
WINDOWED = grid(batch=(2, 1, 3, 1, 2), height=(96, 64, 128, 80, 48), width=(48, 64, 96, 64, 112))
"""Pictures whose patches are more than Swin's windows: of fewer it makes other windows, which a module keeps for later
calls, and an exporter writes down the windows that it saw. For the rest there must be whole windows of patches."""
SOUNDS = grid(batch=(2, 1, 3, 1, 2), samples=(1600, 800, 2401, 999, 3203))


def model_of(family: str, suffix: str, config: Mapping[str, Any]) -> nn.Module:
    """A model with random weights. Attention is written out, as exporters that know no other way want it."""
    transformers = library("transformers")
    settings = getattr(transformers, family + "Config")(**config)
    model: nn.Module = getattr(transformers, family + suffix)(settings).eval()
    awaken(model)
    return model


def encoder(family: str, config: Mapping[str, Any], suffix: str = "Model") -> Opened:
    """Token numbers and a mask, both [batch, seq]."""
    model = model_of(family, suffix, config)
    names = ("input_ids", "attention_mask")
    axes: Axes = {name: {0: "batch", 1: "seq"} for name in names}

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        return {"input_ids": words(sizes), "attention_mask": ones(sizes, "batch", "seq")}

    return Opened(Results(model, names, ("last_hidden_state",)), axes, tensors, TEXT)


def recurrent(family: str, config: Mapping[str, Any]) -> Opened:
    """Token numbers alone: a model with a state goes through them one by one."""
    model = model_of(family, "Model", config)

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        return {"input_ids": words(sizes)}

    axes: Axes = {"input_ids": {0: "batch", 1: "seq"}}
    return Opened(Results(model, ("input_ids",), ("last_hidden_state",), use_cache=False), axes, tensors, TEXT)


def layout(config: Mapping[str, Any]) -> Opened:
    """Token numbers, their boxes [batch, seq, 4] and a mask."""
    model = model_of("LayoutLM", "Model", config)
    names = ("input_ids", "bbox", "attention_mask")
    axes: Axes = {name: {0: "batch", 1: "seq"} for name in names}

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        corners = torch.randint(0, 500, (sizes["batch"], sizes["seq"], 2))
        boxes = torch.cat((corners, corners + torch.randint(1, 400, corners.shape)), -1)
        return {"input_ids": words(sizes), "bbox": boxes, "attention_mask": ones(sizes, "batch", "seq")}

    return Opened(Results(model, names, ("last_hidden_state",)), axes, tensors, TEXT)


def decoder(family: str, config: Mapping[str, Any], heads: int = HEADS) -> Opened:
    """Token numbers, a mask over earlier and new ones, and the keys and values of earlier ones."""
    model = model_of(family, "LMHeadModel" if family == "GPT2" else "ForCausalLM", config)
    past = [f"past_{k}_{what}" for k in range(LAYERS) for what in ("key", "value")]
    axes: Axes = {"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "total"}}
    axes |= {name: {0: "batch", 2: "past"} for name in past}

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        mask = torch.ones(sizes["batch"], sizes["seq"] + sizes["past"], dtype=torch.int64)
        caches = {name: torch.randn(sizes["batch"], heads, sizes["past"], WIDTH) for name in past}
        return {"ids": words(sizes), "mask": mask, **caches}

    return Opened(Cached(model), axes, tensors, CACHED)


def encoder_decoder(family: str, config: Mapping[str, Any]) -> Opened:
    """Two sequences of token numbers, and the first one's mask."""
    model = model_of(family, "Model", config)
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    axes: Axes = {name: {0: "batch", 1: "target" if "decoder" in name else "seq"} for name in names}

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        more = words(sizes, length="target")
        return {"input_ids": words(sizes), "attention_mask": ones(sizes, "batch", "seq"), "decoder_input_ids": more}

    return Opened(Results(model, names, ("last_hidden_state",), use_cache=False), axes, tensors, PAIRS)


def picture(
    family: str, config: Mapping[str, Any], suffix: str = "Model", sizes: tuple[Sizes, ...] = PICTURES, **options: Any
) -> Opened:
    """An image f32[batch, 3, height, width]."""
    model = model_of(family, suffix, config)
    axes: Axes = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.randn(sizes["batch"], 3, sizes["height"], sizes["width"])}

    return Opened(Results(model, ("pixel_values",), ("last_hidden_state",), **options), axes, tensors, sizes)


def sound(family: str, config: Mapping[str, Any]) -> Opened:
    """A wave form f32[batch, samples]."""
    model = model_of(family, "Model", config)
    axes: Axes = {"input_values": {0: "batch", 1: "samples"}}

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        return {"input_values": torch.randn(sizes["batch"], sizes["samples"])}

    return Opened(Results(model, ("input_values",), ("last_hidden_state",)), axes, tensors, SOUNDS)


def whisper() -> Opened:
    """A spectrogram of the one length that Whisper takes, and token numbers with their mask: without one, the exporter
    by TorchScript meets `diff`, which it does not know."""
    config = {**TRANSLATOR, "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 64}
    config = {**config, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
    model = model_of("Whisper", "Model", {k: v for k, v in config.items() if k != "max_position_embeddings"})
    names = ("decoder_input_ids", "decoder_attention_mask")
    axes: Axes = {"input_features": {0: "batch"}, **{name: {0: "batch", 1: "target"} for name in names}}

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        return {
            "input_features": torch.randn(sizes["batch"], 16, 100),
            "decoder_input_ids": words(sizes, length="target"),
            "decoder_attention_mask": ones(sizes, "batch", "target"),
        }

    return Opened(Results(model, tuple(axes), ("last_hidden_state",), use_cache=False), axes, tensors, PAIRS)


def pair() -> Opened:
    """Sentences and images, two towers that meet in a product."""
    transformers = library("transformers")
    settings = transformers.CLIPConfig(text_config=WORDS, vision_config=PATCHES, projection_dim=32)
    model = transformers.CLIPModel(settings).eval()
    awaken(model)
    axes: Axes = {name: {0: "texts", 1: "seq"} for name in ("input_ids", "attention_mask")}
    axes["pixel_values"] = {0: "images", 2: "height", 3: "width"}
    sizes = grid(texts=(2, 1, 3, 1, 2), seq=(8, 5, 20, 31, 7), images=(3, 1, 2, 4, 1))
    sizes = tuple({**a, **b} for a, b in zip(sizes, PICTURES, strict=True))

    def tensors(sizes: Sizes) -> dict[str, torch.Tensor]:
        return {
            "input_ids": words(sizes, "texts"),
            "attention_mask": ones(sizes, "texts", "seq"),
            "pixel_values": torch.randn(sizes["images"], 3, sizes["height"], sizes["width"]),
        }

    wanted = ("logits_per_image", "text_embeds", "image_embeds")
    return Opened(Results(model, tuple(axes), wanted, interpolate_pos_encoding=True), axes, tensors, sizes)


ENCODING = ("Bert", "Albert", "Electra", "Roberta", "DistilBert", "DebertaV2", "MPNet", "ModernBert", "RoFormer")
XLM = {"vocab_size": VOCABULARY, "emb_dim": 64, "n_layers": 2, "n_heads": 4}
CLIP_TEXT = {**WIDE, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 199}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
OPT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 128,
    "word_embed_proj_dim": 64,
    "max_position_embeddings": 64,
}
T5 = {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
RWKV = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32}
INTERPOLATED = {"interpolate_pos_encoding": True}
TRANSLATORS = {**TRANSLATOR, "max_position_embeddings": 64}

CASES: dict[str, Callable[[], Opened]] = {
    **{name: partial(encoder, name, ENCODERS[name]) for name in ENCODING},
    "XLM": partial(encoder, "XLM", XLM),
    "CLIP-text": partial(encoder, "CLIPText", CLIP_TEXT),
    "LayoutLM": partial(layout, WIDE),
    "GPT2": partial(decoder, "GPT2", GPT2),
    "OPT": partial(decoder, "OPT", OPT),
    "Phi": partial(decoder, "Phi", {**WIDE, "max_position_embeddings": 64}),
    "Llama": partial(decoder, "Llama", GROUPED, heads=2),
    "Mistral": partial(decoder, "Mistral", {**GROUPED, "sliding_window": None}, heads=2),
    "Qwen2": partial(decoder, "Qwen2", GROUPED, heads=2),
    "Qwen3": partial(decoder, "Qwen3", {**GROUPED, "head_dim": 16}, heads=2),
    "Gemma": partial(decoder, "Gemma", {**GROUPED, "head_dim": 16}, heads=2),
    "T5": partial(encoder_decoder, "T5", T5),
    "Bart": partial(encoder_decoder, "Bart", TRANSLATORS),
    "Marian": partial(encoder_decoder, "Marian", TRANSLATORS),
    "Whisper": whisper,
    "Wav2Vec2": partial(sound, "Wav2Vec2", WAVES),
    "Hubert": partial(sound, "Hubert", WAVES),
    "ViT": partial(picture, "ViT", PATCHES, **INTERPOLATED),
    "Dinov2": partial(picture, "Dinov2", IMAGES["Dinov2"]),
    "CLIP-vision": partial(picture, "CLIPVision", PATCHES, **INTERPOLATED),
    "Swin": partial(picture, "Swin", IMAGES["Swin"], sizes=WINDOWED),
    "ConvNext": partial(picture, "ConvNext", IMAGES["ConvNext"]),
    "Segformer": partial(picture, "Segformer", IMAGES["Segformer"]),
    "CLIP": pair,
    "Mamba": partial(recurrent, "Mamba", MAMBA),
    "Rwkv": partial(recurrent, "Rwkv", RWKV),
}
"""Builders by name. Models whose forward loops over the sequence in Python stand last."""


def opened(name: str) -> Opened:
    """The case with the weights that it always has, in a process of one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = CASES[name]()
    case.module.eval()
    return case
