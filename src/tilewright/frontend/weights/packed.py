"""Weights of safetensors files that AutoAWQ, GPTQ and bitsandbytes wrote, by the names and shapes of their tensors.

    GPTQ   X.qweight i32[K/8, N], codes of 4 bits along K; X.qzeros i32[G, N/8]; X.scales [G, N]; X.g_idx [K]
    AWQ    X.qweight i32[K, N/8], codes along N in the order 0 2 4 6 1 3 5 7; X.qzeros i32[G, N/8]; X.scales [G, N]
    nf4    X.weight u8[N K / 2, 1], the first code in the high half; X.weight.absmax [N K / block];
           X.weight.quant_state.bitsandbytes__nf4: JSON with shape and block size

A GPTQ file stores its zero points less 1. Sources: AutoGPTQ `qlinear`, AutoAWQ `packing_utils`, bitsandbytes
`functional.QuantState`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.frontend.weights.coded import Array, CodedWeight, paired
from tilewright.support.errors import ModelError, UnsupportedError

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The position of each of eight columns' codes in a word."""
NF4_STATE = ".quant_state.bitsandbytes__nf4"


def unpack(tensors: Mapping[str, Any], where: str) -> dict[str, Array | CodedWeight]:
    """Tensors of a file with its packed weights as codes, named `X.weight`; all others as they are.

    Raises ModelError where the tensors of a weight do not fit together.
    """
    rest, result = dict(tensors), dict[str, Array | CodedWeight]()
    for name in [n for n in tensors if n.endswith(".qweight")]:
        stem = name.removesuffix(".qweight")
        parts = {key: rest.pop(f"{stem}.{key}", None) for key in ("qweight", "qzeros", "scales", "g_idx")}
        result[f"{stem}.weight"] = _packed(f"{where}: {stem}", parts)
    for name in [n for n in tensors if n.endswith(NF4_STATE)]:
        stem = name.removesuffix(NF4_STATE)
        parts = {
            key.removeprefix(stem): rest.pop(key) for key in list(rest) if key == stem or key.startswith(f"{stem}.")
        }
        result[stem] = _nf4(f"{where}: {stem}", parts)
    return result | rest


def _packed(where: str, parts: Mapping[str, Any]) -> Array | CodedWeight:
    words, scales, zeros = parts["qweight"], parts["scales"], parts["qzeros"]
    if scales is None or zeros is None or np.ndim(words) != 2 or np.ndim(scales) != 2 or np.ndim(zeros) != 2:
        raise ModelError("a packed weight needs qweight, qzeros and scales of two dimensions", where=where)
    if words.dtype != np.int32 or zeros.dtype != np.int32:
        raise ModelError("packed codes are words of 32 bits", where=where, got=[str(words.dtype), str(zeros.dtype)])
    groups, columns = scales.shape
    is_awq = words.shape[1] * 8 == columns != words.shape[1]
    codes = _words(words, AWQ_ORDER) if is_awq else _words(words.T).T
    depth = codes.shape[0]
    fit = codes.shape[1] == columns and columns % 8 == 0 and zeros.shape == (groups, columns // 8)
    if not fit or not groups or depth % groups:
        got = f"qweight {words.shape}, qzeros {zeros.shape}, scales {scales.shape}"
        raise ModelError("the tensors of a packed weight do not fit, or do not have 4 bits", where=where, got=got)
    group = depth // groups
    if group % 2:
        raise UnsupportedError("groups of an odd number of rows are not read", where=where, got=group)
    levels = _words(zeros, AWQ_ORDER).astype(np.float32) if is_awq else _words(zeros).astype(np.float32) + 1
    order = parts["g_idx"]
    if order is not None and not np.array_equal(order, np.arange(depth) // group):
        return _ordered(where, codes, scales, levels, np.asarray(order))
    blocks = np.ascontiguousarray(codes.T).reshape(columns, groups, group)
    return CodedWeight(paired(blocks), scales.T.astype(np.float32), levels.T.copy(), paired=True)


def _ordered(where: str, codes: Array, scales: Any, levels: Array, order: Array) -> Array:
    """The GPTQ weight named `where` dequantised, f32[N, K], from `codes` [K, N], `scales` and zero points `levels`
    [groups, N], where `order` (`g_idx`) assigns each input row to a group in any order. Raises ModelError if it names
    other groups."""
    whole = order.shape == codes.shape[:1] and order.dtype.kind in "iu"
    if not whole or order.min() < 0 or order.max() >= len(levels):
        raise ModelError("g_idx names groups that there are not", where=where, expected=f"0 to {len(levels) - 1}")
    numbers = (codes.astype(np.float32) - levels[order]) * scales.astype(np.float32)[order]
    return np.ascontiguousarray(numbers.T)


def _words(words: Any, order: tuple[int, ...] = tuple(range(8))) -> Array:
    """The eight 4-bit codes of each 32-bit word, u8[rows, 8 * columns]; code k of the result is at position order[k] of
    the word."""
    bits = np.ascontiguousarray(words).view(np.uint32)
    shifts = np.uint32(4) * np.asarray(order, np.uint32)
    return (bits[..., None] >> shifts & np.uint32(15)).astype(np.uint8).reshape(len(bits), -1)


def _nf4(where: str, parts: Mapping[str, Any]) -> CodedWeight:
    packed, absmax, state = parts.get(""), parts.get(".absmax"), _state(where, parts[NF4_STATE])
    shape, block = state.get("shape"), state.get("blocksize")
    sizes = [*shape, block] if isinstance(shape, list) else []
    if len(sizes) != 3 or any(not isinstance(d, int) or d < 1 for d in sizes):
        raise ModelError("the state of a weight of nf4 has no shape and block size", where=where, got=state)
    rows, depth, block = (int(d or 0) for d in sizes)
    if packed is None or absmax is None or depth % block or block % 2:
        raise UnsupportedError("blocks of nf4 must lie in rows", where=where, got=f"blocks of {block}, rows of {depth}")
    if packed.size * 2 != rows * depth or absmax.size != rows * depth // block:
        got = f"{packed.size} bytes, {absmax.size} scales"
        raise ModelError("the tensors of a weight of nf4 do not fit its shape", where=where, expected=shape, got=got)
    scales = absmax.astype(np.float32)
    if ".nested_absmax" in parts:
        scales = _nested(where, absmax, parts, state)
    book = np.asarray(parts.get(".quant_map"), np.float32)
    if book.shape != (16,):
        raise ModelError("the book of a weight of nf4 has sixteen levels", where=where, got=book.shape)
    flat = packed.reshape(-1).astype(np.uint8)
    codes = (flat << 4 | flat >> 4).reshape(rows, depth // block, block // 2)
    return CodedWeight(codes, scales.reshape(rows, depth // block), book=book, paired=True)


def _nested(where: str, absmax: Array, parts: Mapping[str, Any], state: Mapping[str, Any]) -> Array:
    """bitsandbytes' scales of the weight named `where` that are themselves quantised to 8 bits (`absmax`), dequantised
    by the map of levels and the scale for each block in `parts`; `state` is the weight's quantisation state. Raises
    ModelError if these do not fit."""
    outer, book, block = parts[".nested_absmax"], parts.get(".nested_quant_map"), state.get("nested_blocksize")
    if book is None or np.shape(book) != (256,) or not isinstance(block, int) or block < 1:
        raise ModelError("nested scales need a map of 256 levels and a block size", where=where, got=block)
    if outer.size != -(-absmax.size // block) or absmax.dtype != np.uint8:
        raise ModelError("nested scales do not fit", where=where, expected=-(-absmax.size // block), got=outer.size)
    spread = np.repeat(outer.astype(np.float32), block)[: absmax.size]
    scales: Array = book.astype(np.float32)[absmax] * spread + np.float32(state.get("nested_offset", 0.0))
    return scales


def _state(where: str, packed: Any) -> dict[str, Any]:
    try:
        state = json.loads(np.asarray(packed, np.uint8).tobytes())
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise ModelError("the state of a weight of nf4 is no JSON object", where=where)
    return state
