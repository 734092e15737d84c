"""Models whose sizes vary from call to call: encoders of text and sound, a decoder with its cache, a U-Net, rankers.

Weights are random with a fixed seed. Only `onnx` and NumPy are needed. Names of symbolic dimensions say what they are:
"seq", "past", "frames", "height", "width", "rows".
"""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.onnx_builder import BATCH, Builder


def _attention(b: Builder, x: str, name: str, width: int, heads: int) -> str:
    """Self-attention of all heads over [batch, tokens, width]."""
    part = width // heads

    def split(kind: str, perm: list[int]) -> str:
        y = b.reshape(b.dense(x, f"{name}.{kind}", width, width), [0, 0, heads, part])
        return b.op("Transpose", [y], perm=perm)

    query, keys, values = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]), split("value", [0, 2, 1, 3])
    scores = b.op("Mul", [b.op("MatMul", [query, keys]), b.constant(np.float32(part**-0.5))])
    mixed = b.op("MatMul", [b.op("Softmax", [scores], axis=-1), values])
    joined = b.reshape(b.op("Transpose", [mixed], perm=[0, 2, 1, 3]), [0, 0, width])
    return b.dense(joined, f"{name}.out", width, width)


def _gelu(b: Builder, x: str) -> str:
    inner = b.op("Erf", [b.op("Mul", [x, b.constant(np.float32(0.5**0.5))])])
    half = b.op("Mul", [x, b.op("Add", [inner, b.constant(np.float32(1))])])
    return b.op("Mul", [half, b.constant(np.float32(0.5))])


def _layer(b: Builder, x: str, name: str, width: int, heads: int) -> str:
    """A layer of an encoder, its norms behind (BERT)."""
    x = b.layer_norm(b.op("Add", [x, _attention(b, x, f"{name}.attention", width, heads)]), f"{name}.ln1", width)
    inner = b.dense(_gelu(b, b.dense(x, f"{name}.fc1", width, 4 * width)), f"{name}.fc2", 4 * width, width)
    return b.layer_norm(b.op("Add", [x, inner]), f"{name}.ln2", width)


def bert(layers: int = 2, width: int = 768, words: int = 1000, most: int = 512) -> onnx.ModelProto:
    """An encoder as BERT-base has twelve layers of: ids [batch, seq] to states [batch, seq, width]."""
    b = Builder(f"bert{layers}", seed=1)
    ids, places = b.input("ids", [BATCH, "seq"], "int64"), b.input("places", ["seq"], "int64")
    word = b.op("Gather", [b.weight("words", b.normal((words, width), 1.0)), ids])
    place = b.op("Gather", [b.weight("positions", b.normal((most, width), 0.1)), places])
    x = b.layer_norm(b.op("Add", [word, place]), "embedding", width)
    for i in range(layers):
        x = _layer(b, x, f"layer{i}", width, width // 64)
    b.output(x, "states", [BATCH, "seq", width])
    return b.build()


def decode(layers: int = 2, width: int = 768) -> onnx.ModelProto:
    """One step of a decoder: a token's state and the keys and values of earlier ones, [batch, heads, past, 64]; gives
    the next state and what the caller appends to its cache."""
    b, heads = Builder(f"decode{layers}", seed=2), width // 64
    x = b.input("x", [BATCH, 1, width])
    for i in range(layers):
        past = [b.input(f"{kind}{i}", [BATCH, heads, "past", 64]) for kind in ("keys", "values")]
        h = b.layer_norm(x, f"layer{i}.ln1", width)
        query, *new = (
            b.op("Transpose", [b.reshape(b.dense(h, f"layer{i}.{kind}", width, width), [0, 0, heads, 64])],
                 perm=[0, 2, 1, 3])
            for kind in ("query", "key", "value")
        )  # fmt: skip
        keys, values = (b.op("Concat", [old, here], axis=2) for old, here in zip(past, new, strict=True))
        scores = b.op("MatMul", [query, b.op("Transpose", [keys], perm=[0, 1, 3, 2])])
        scores = b.op("Mul", [scores, b.constant(np.float32(1 / 8))])
        mixed = b.op("MatMul", [b.op("Softmax", [scores], axis=-1), values])
        joined = b.reshape(b.op("Transpose", [mixed], perm=[0, 2, 1, 3]), [0, 0, width])
        x = b.op("Add", [x, b.dense(joined, f"layer{i}.out", width, width)])
        h = b.layer_norm(x, f"layer{i}.ln2", width)
        inner = b.dense(_gelu(b, b.dense(h, f"layer{i}.fc1", width, 4 * width)), f"layer{i}.fc2", 4 * width, width)
        x = b.op("Add", [x, inner])
        for kind, value in zip(("key", "value"), new, strict=True):
            b.output(value, f"new_{kind}{i}", [BATCH, heads, 1, 64])
    b.output(x, "state", [BATCH, 1, width])
    return b.build()


def speech(layers: int = 2, width: int = 256, bands: int = 80) -> onnx.ModelProto:
    """An encoder of sound: two convolutions with stride 2 over [1, bands, frames], then layers of an encoder."""
    b = Builder(f"speech{layers}", seed=3)
    x = b.input("sound", [1, bands, "frames"])
    for i, channels in enumerate((bands, width)):
        std = (2.0 / (3 * channels)) ** 0.5
        weight = b.weight(f"conv{i}.weight", b.normal((width, channels, 3), std))
        bias = b.weight(f"conv{i}.bias", b.normal((width,), 0.1))
        x = b.relu(b.op("Conv", [x, weight, bias], kernel_shape=[3], pads=[1, 1], strides=[2]))
    x = b.op("Transpose", [x], perm=[0, 2, 1])
    for i in range(layers):
        x = _layer(b, x, f"layer{i}", width, width // 64)
    b.output(x, "states", [1, "tokens", width])
    return b.build()


def unet(width: int = 16, depth: int = 3) -> onnx.ModelProto:
    """A U-Net of 3x3 convolutions over [1, 3, height, width], which are multiples of 2**depth."""
    b = Builder("unet", seed=4)

    def double(x: str, name: str, c_in: int, c_out: int) -> str:
        x = b.relu(b.conv(x, f"{name}.1", c_in, c_out, 3, pad=1))
        return b.relu(b.conv(x, f"{name}.2", c_out, c_out, 3, pad=1))

    x, channels, skips = b.input("image", [1, 3, "height", "width"]), 3, []
    for i in range(depth):
        x = double(x, f"down{i}", channels, width << i)
        channels = width << i
        skips.append((x, channels))
        x = b.op("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = double(x, "middle", channels, 2 * channels)
    channels *= 2
    for i, (skip, wide) in reversed(list(enumerate(skips))):
        weight = b.weight(f"up{i}.weight", b.normal((channels, wide, 2, 2), (1 / channels) ** 0.5))
        x = b.op("ConvTranspose", [x, weight], kernel_shape=[2, 2], strides=[2, 2])
        x = double(b.op("Concat", [skip, x], axis=1), f"join{i}", 2 * wide, wide)
        channels = wide
    b.output(b.conv(x, "head", channels, 2, 1), "classes", [1, 2, "height", "width"])
    return b.build()


def ranker(features: int = 256, hidden: tuple[int, ...] = (512, 256, 128)) -> onnx.ModelProto:
    """Scores of candidates: [rows, features] to [rows, 1] by an MLP."""
    b = Builder("ranker", seed=6)
    x, fan_in = b.input("candidates", ["rows", features]), features
    for i, size in enumerate(hidden):
        x, fan_in = b.relu(b.linear(x, f"dense{i}", fan_in, size)), size
    b.output(b.linear(x, "score", fan_in, 1), "scores", ["rows", 1])
    return b.build()
