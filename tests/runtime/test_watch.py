"""Whether tensors are what they were: digests as NumPy computes them, and every way in which a tensor may differ."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tilewright.native.assembler import PTR, Module
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime import dlpack
from tilewright.runtime.layout import Memory
from tilewright.runtime.native import native
from tilewright.runtime.watch import RELEASE_GIL_BYTES, WATCH, WATCHED, define_watch

ODD = np.arange(8, dtype=np.uint64)


def digest(data: np.ndarray) -> int:
    """Eight lanes of words, which are mixed with keys of their places, and folded into one word."""
    words = np.zeros(data.nbytes // 64 * 8 + 8, np.uint64)
    words.view(np.uint8)[: data.nbytes] = data.view(np.uint8)
    key = np.uint64(0x9E3779B97F4A7C15) * (2 * ODD + 1)
    lanes = np.zeros(8, np.uint64)
    for row in words.reshape(-1, 8):
        keyed = row ^ key
        lanes += (keyed & np.uint64(0xFFFFFFFF)) * (keyed >> np.uint64(32)) + row[[1, 0, 3, 2, 5, 4, 7, 6]]
        key += np.uint64(0xD6E8FEB86659FD93) * (2 * ODD + 3)
    folded, mask = data.nbytes + 1, (1 << 64) - 1
    for lane in lanes.tolist():
        folded = (folded ^ lane) * 0xFF51AFD7ED558CCD & mask
        folded ^= folded >> 29
    return folded


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 63, 64, 65, 127, 128, 200, 1000])
def test_digests_are_those_of_the_formula(nbytes: int) -> None:
    memory = np.random.default_rng(nbytes).integers(0, 256, nbytes + 1, np.uint8)
    for data in (memory[:nbytes], memory[1:]):
        assert native().digest(data.ctypes.data, nbytes) & (1 << 64) - 1 == digest(data)


@dataclass(frozen=True)
class Tensor:
    """The fields of a tensor's header."""

    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    offset: int = 0
    readable: bool = True


Watched = Callable[[list[Tensor]], bool]
Watch = Callable[[list[Tensor], list[int]], Watched]


@pytest.fixture(scope="module")
def watch() -> Watch:
    """`watch(tensors, nbytes)` notes what they are now; what it gives says of others whether they are the same."""
    now: list[Tensor] = []
    keep: list[Any] = []

    def view(obj: int, out: int) -> int:
        tensor = now[obj - 1]
        fields = Memory(128)
        fields.write(0, tensor.shape)
        fields.write(64, tensor.strides or ())
        keep.append(fields)
        for at, kind, value in (
            (dlpack.DL_DATA, ctypes.c_int64, tensor.data),
            (dlpack.DL_RANK, ctypes.c_int32, len(tensor.shape)),
            (dlpack.DL_SHAPE, ctypes.c_int64, fields.address),
            (dlpack.DL_STRIDES, ctypes.c_int64, 0 if tensor.strides is None else fields.address + 64),
            (dlpack.DL_OFFSET, ctypes.c_int64, tensor.offset),
        ):
            kind.from_address(out + at).value = value
        return int(not tensor.readable)

    callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)(view)
    api = Memory(64)
    api[dlpack.API_VIEW] = ctypes.cast(callback, ctypes.c_void_p).value or 0
    m = Module(host_triple())
    with m.function("tw_api", PTR, [("obj", PTR)], local=True) as (f, _):
        f.ret(f.value(api.address, PTR))
    define_watch(m)
    linked = Library({"watch": compile_text(m.text(), cache=False)}, ["tw_unchanged"])
    run = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(linked["tw_unchanged"])
    keep += [callback, api, linked]

    def noted(tensors: list[Tensor], nbytes: list[int]) -> Watched:
        table, objects = Memory(WATCH.size + WATCHED.size * len(tensors)), Memory(8 * len(tensors))
        table.write(0, [len(tensors), sum(nbytes), native().digest_address])
        for k, (t, n) in enumerate(zip(tensors, nbytes, strict=True)):
            layout, at = Memory(128), t.data + t.offset
            layout.write(0, [*t.shape, *(t.strides or ())])
            keep.append(layout)
            row = [at, n, native().digest(at, n), len(t.shape), layout.address]
            table.write(WATCH.size + k * WATCHED.size, row)
        objects.write(0, range(1, len(tensors) + 1))

        def same(tensors: list[Tensor]) -> bool:
            now[:] = tensors
            return bool(run(table.address, objects.address))

        return same

    return noted


@pytest.mark.parametrize("size", [600, RELEASE_GIL_BYTES // 4])
def test_each_byte_that_is_digested_counts(watch: Watch, size: int) -> None:
    memory = np.random.default_rng(0).standard_normal((3, size)).astype(np.float32)
    tensors = [Tensor(row.ctypes.data, (size,), (1,)) for row in memory]
    same = watch(tensors, [size * 4, 0, size * 4 - 4])
    assert same(tensors)
    raw = memory.view(np.uint8)
    for row, byte, counts in ((0, 0, True), (0, -1, True), (1, 0, False), (2, 0, True), (2, -5, True), (2, -4, False)):
        raw[row, byte] ^= 64
        assert same(tensors) != counts, (row, byte)
        raw[row, byte] ^= 64
        assert same(tensors)


def test_a_tensor_of_other_place_or_form_is_another(watch: Watch) -> None:
    memory = np.zeros(64, np.float32)
    first = Tensor(memory.ctypes.data, (4, 5), (5, 1))
    second = Tensor(memory.ctypes.data, (3, 2, 1), (2, 1, 1), offset=16)
    same = watch([first, second], [0, 0])
    assert same([first, second])
    assert same([first, replace(second, data=second.data + 16, offset=0)])
    assert not same([second, first])
    for change in (
        {"data": first.data + 4},
        {"offset": 20},
        {"shape": (3, 2)},
        {"shape": (3, 2, 2)},
        {"shape": (4, 2, 1)},
        {"strides": (2, 1, 2)},
        {"strides": (3, 1, 1)},
        {"strides": None},
        {"readable": False},
    ):
        assert not same([first, replace(second, **change)]), change  # type: ignore[arg-type]
    assert same([first, second])
