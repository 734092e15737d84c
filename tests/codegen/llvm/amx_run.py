"""Runs code for AMX on machines that have none: its instructions become calls of `amx.c`, all else is the host's.

`amx(monkeypatch)` gives the target; while it is patched, kernels for it, and what `tw.build` makes, call the emulation.
Numbers are those of the
instructions bit for bit; time is not.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.codegen.c.c_run import COMPILER
from tilewright import builder, kernels
from tilewright.codegen.llvm.emit import emit_llvm
from tilewright.ir.loops import PrimFunc
from tilewright.plans.framework.decisions import Context, deciding, forcing
from tilewright.targets import x86
from tilewright.targets.target import Target

needs_compiler = pytest.mark.skipif(
    COMPILER is None, reason="the emulation of AMX is compiled, and there is no C compiler"
)
TILES = tuple(dot for dot in x86.DOTS if dot.rows > 1)
FEATURES = ("amx-tile", "amx-bf16", "amx-int8", "amx-fp16")


@cache
def library() -> ctypes.CDLL:
    """The emulation, whose functions all code of this process can call."""
    assert COMPILER is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "amx.so"
        source = Path(__file__).parent / "amx.c"
        flags = ["-O3", "-ffp-contract=off", "-shared", "-fPIC", "-march=native"]
        subprocess.run([COMPILER, *flags, str(source), "-o", str(path), "-lm"], check=True, timeout=60)
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def products() -> int:
    """How many products of bf16 matrices were made so far."""
    return ctypes.c_long.in_dll(library(), "tw_amx_products").value


@contextmanager
def cached(nbytes: int) -> Iterator[Callable[[], int]]:
    """A second level of cache of so many bytes (a multiple of 1,024, 4 MB at most), empty before. Gives a function that
    tells how many of the lines that registers were loaded from were not in it."""
    sets, misses = (ctypes.c_long.in_dll(library(), f"tw_amx_{name}") for name in ("sets", "misses"))
    sets.value, misses.value = nbytes // 1024, 0
    try:
        yield lambda: misses.value
    finally:
        sets.value = 0


@contextmanager
def exact_sums() -> Iterator[None]:
    """Registers sum in double precision and round once, where they are stored: no machine does."""
    exact = ctypes.c_long.in_dll(library(), "tw_amx_exact")
    exact.value = 1
    try:
        yield
    finally:
        exact.value = 0


def amx(monkeypatch: pytest.MonkeyPatch) -> Target:
    """The host with registers of matrices."""
    library()
    host = Target.host()

    def emulated(func: PrimFunc, target: Target) -> str:
        text = emit_llvm(func, replace(target, features=(*target.features, *FEATURES)))
        words = (
            "ldtilecfg",
            "tilerelease",
            "tilezero",
            "tileloadd64",
            "tilestored64",
            "tdpbf16ps",
            "tdpfp16ps",
            "tdpbusd",
        )
        for word in words:
            text = text.replace(f"@llvm.x86.{word}", f"@tw_amx_{word}")
        return text

    for module in (kernels, builder):
        monkeypatch.setattr(module, "emit_llvm", emulated)
    return replace(host, isa=replace(host.isa, dots=(*host.isa.dots, *TILES)))


def forced(label: str, compiled: Callable[[], object]) -> AbstractContextManager[Context]:
    """A context in which each decision of a compile that may take a setting takes it: estimates are those of the
    machine that runs the test."""
    with deciding() as record:
        compiled()
    return forcing({d.key.name: label for d in record.decisions if label in d.space.labels})
