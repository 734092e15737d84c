"""Bundles for microcontrollers are small: loops count in 32 bits, kernels know of no threads."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import tilewright as tw
from benchmarks.bundle_models import MODELS
from tilewright.bundle.write import described

EMX = {"m64": 968, "nat": 3916, "integers": 2600}
"""Bytes of code of emx-onnx-cgen 1.4.0's C for a Cortex-M4 (benchmarks/results/mcu.md)."""
SECTION = struct.Struct("<10I")
LOADED, NOBITS = 2, 8


def code_bytes(image: bytes) -> int:
    """Bytes of an ELF object of 32 bits that lie in flash: code and constants."""
    start = struct.unpack_from("<I", image, 32)[0]
    count = struct.unpack_from("<H", image, 48)[0]
    sections = [SECTION.unpack_from(image, start + k * SECTION.size) for k in range(count)]
    return sum(nbytes for _, kind, flags, _, _, nbytes, *_ in sections if flags & LOADED and kind != NOBITS)


@pytest.mark.parametrize("name", EMX)
def test_code_is_smaller_than_compiled_c(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    program = tw.compile_program(model.build(), dims=dict(model.dims), target="cortex-m4")
    program.bundle(tmp_path, name="model")
    assert 500 < code_bytes((tmp_path / "model.o").read_bytes()) <= EMX[name]


@pytest.mark.parametrize(("target", "frame"), [("cortex-m4", 720), ("cortex-m7", 688)])
def test_memory_is_less_than_the_frame_of_compiled_c(target: str, frame: int) -> None:
    """The model in 8 bits: memory ends where its last part does, and constants are an address alone."""
    model = MODELS["integers"]
    program = tw.compile_program(model.build(), dims=dict(model.dims), target=target)
    binding = described(program)
    places, sizes = binding.activations, [t.nbytes or 0 for t in program.manifest.run_temps]
    assert all(at + n <= places.slots for at, n in zip(places.offsets, sizes, strict=True))
    assert binding.constant_bytes + places.nbytes < frame


@pytest.mark.parametrize(("target", "counter", "threads"), [("cortex-m4", "i32", False), ("x86-64-v3", "i64", True)])
def test_counters_are_as_wide_as_addresses(target: str, counter: str, threads: bool) -> None:
    program = tw.compile_program(MODELS["m64"].build(), dims={"batch": 1}, target=target)
    text = program.texts["llvm"]
    kernels = text() if callable(text) else text
    assert f" = phi {counter} [ 0," in kernels
    assert ("i64 %nthreads" in kernels.partition("@tw_run")[0]) == threads
