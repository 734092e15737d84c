"""Compiles emitted C with every warning an error, and calls it with NumPy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.c.emit import emit_c
from tilewright.ir.loops import PrimFunc

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
_LIBRARIES = tempfile.TemporaryDirectory(prefix="tilewright-c-")
_FOLDER = Path(_LIBRARIES.name)


def compile_c(text: str, *more: str) -> ctypes.CDLL:
    """The shared library of a C text. Fails the test with the compiler's messages and the text."""
    assert COMPILER is not None
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    source, library = _FOLDER / f"{name}.c", _FOLDER / f"{name}.so"
    source.write_text(text)
    done = subprocess.run(
        [COMPILER, *FLAGS, *more, str(source), "-o", str(library), "-lm"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return ctypes.CDLL(str(library))


def has_openmp() -> bool:
    """Whether the compiler knows OpenMP."""
    if COMPILER is None:
        return False
    source = "#include <omp.h>\nint main(void) { return omp_get_thread_num(); }\n"
    line = [COMPILER, "-fopenmp", "-x", "c", "-", "-o", os.devnull]
    return subprocess.run(line, input=source, capture_output=True, text=True).returncode == 0


def run_c(func: PrimFunc, arrays: Sequence[np.ndarray[Any, Any]], symbols: Sequence[int] = (), name: str = "") -> str:
    """Emit, compile and call `func`; returns the text."""
    text = emit_c(func)
    function = getattr(compile_c(text), name or func.name)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in arrays]
    function(*pointers, *[ctypes.c_int64(s) for s in symbols])
    return text
