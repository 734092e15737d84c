"""Models whose sizes vary from call to call: encoders of text and sound, a decoder's first pass and its later steps, a
U-Net, a detector, rankers.

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
    """A layer of an encoder, its norms after (BERT)."""
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


def prefill(layers: int = 2, width: int = 768, words: int = 1000, most: int = 512) -> onnx.ModelProto:
    """The first pass of a decoder as GPT-2 has twelve layers of: ids [batch, seq] to the scores of the word that
    follows, [batch, words], and to the keys and values of all tokens. Who may see whom is cut from a table of `most`
    tokens, as exporters write it."""
    b, heads = Builder(f"prefill{layers}", seed=7), width // 64
    ids = b.input("ids", [BATCH, "seq"], "int64")
    length = b.op("Slice", [b.op("Shape", [ids]), *(b.constant(np.array([k], np.int64)) for k in (1, 2))])
    zero, one = (b.constant(np.array([k], np.int64)) for k in (0, 1))
    hidden = b.constant(np.triu(np.full((most, most), -1e9, np.float32), 1))
    for axis in (zero, one):
        hidden = b.op("Slice", [hidden, zero, length, axis])
    places = b.op("Slice", [b.weight("positions", b.normal((most, width), 0.1)), zero, length, zero])
    table = b.weight("words", b.normal((words, width), 1.0))
    x = b.op("Add", [b.op("Gather", [table, ids]), places])
    for i in range(layers):
        h = b.layer_norm(x, f"layer{i}.ln1", width)
        query, keys, values = (
            b.op("Transpose", [b.reshape(b.dense(h, f"layer{i}.{kind}", width, width), [0, 0, heads, 64])],
                 perm=[0, 2, 1, 3])
            for kind in ("query", "key", "value")
        )  # fmt: skip
        scores = b.op("MatMul", [query, b.op("Transpose", [keys], perm=[0, 1, 3, 2])])
        scores = b.op("Add", [b.op("Mul", [scores, b.constant(np.float32(1 / 8))]), hidden])
        mixed = b.op("MatMul", [b.op("Softmax", [scores], axis=-1), values])
        joined = b.reshape(b.op("Transpose", [mixed], perm=[0, 2, 1, 3]), [0, 0, width])
        x = b.op("Add", [x, b.dense(joined, f"layer{i}.out", width, width)])
        h = b.layer_norm(x, f"layer{i}.ln2", width)
        inner = b.dense(_gelu(b, b.dense(h, f"layer{i}.fc1", width, 4 * width)), f"layer{i}.fc2", 4 * width, width)
        x = b.op("Add", [x, inner])
        for kind, value in (("keys", keys), ("values", values)):
            b.output(value, f"{kind}{i}", [BATCH, heads, "seq", 64])
    last = b.op("Gather", [b.layer_norm(x, "norm", width), b.constant(np.array(-1, np.int64))], axis=1)
    b.output(b.op("MatMul", [last, b.op("Transpose", [table], perm=[1, 0])]), "scores", [BATCH, words])
    return b.build()


def detector(width: int = 16, classes: int = 20) -> onnx.ModelProto:
    """A one-stage detector over [1, 3, height, width], which are multiples of 32: residual stages, features of three
    scales joined from above, and for each place of each scale four sides and the classes' probabilities."""
    b = Builder("detector", seed=8)

    def block(x: str, name: str, c_in: int, c_out: int, kernel: int = 3, stride: int = 1) -> str:
        y = b.conv(x, name, c_in, c_out, kernel, stride=stride, pad=kernel // 2)
        return b.op("Mul", [y, b.op("Sigmoid", [y])])

    def twice(x: str) -> str:
        scales = b.constant(np.array([1, 1, 2, 2], np.float32))
        return b.op("Resize", [x, "", scales], mode="nearest", coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor")  # fmt: skip

    x, channels, scales = block(b.input("image", [1, 3, "height", "width"]), "stem", 3, width, stride=2), width, []
    for i in range(4):
        x, channels = block(x, f"down{i}", channels, 2 * channels, stride=2), 2 * channels
        inner = block(block(x, f"stage{i}.1", channels, channels // 2, 1), f"stage{i}.2", channels // 2, channels)
        x = b.op("Add", [x, inner])
        scales.append((x, channels))
    result, (x, above) = [], scales[-1]
    for i in (2, 1, 0):
        result.append((x, above))
        if i:
            side, wide = scales[i]
            x = block(b.op("Concat", [twice(x), side], axis=1), f"join{i}", above + wide, wide)
            above = wide
    rows = []
    for i, (x, channels) in enumerate(result):
        sides = b.op("Exp", [b.conv(block(x, f"sides{i}", channels, channels), f"sides{i}.out", channels, 4, 1)])
        kinds = b.op(
            "Sigmoid", [b.conv(block(x, f"kinds{i}", channels, channels), f"kinds{i}.out", channels, classes, 1)]
        )
        rows.append(b.reshape(b.op("Concat", [sides, kinds], axis=1), [1, 4 + classes, -1]))
    places = b.op("Transpose", [b.op("Concat", rows, axis=2)], perm=[0, 2, 1])
    b.output(places, "places", [1, "places", 4 + classes])
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
