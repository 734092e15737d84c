"""Exported functions: used by ctypes, by threads and from C, with nothing of Tilewright."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.builder.exported import expected, filtered
from tests.codegen.c.c_run import COMPILER, needs_compiler
from tilewright import te
from tilewright.native.link import host_triple
from tilewright.support.errors import CompileError

linux = pytest.mark.skipif(host_triple() != "x86_64-unknown-linux-gnu", reason="libraries are written for x86-64 Linux")

CLIENT = """
import ctypes, sys
import numpy as np
lib = ctypes.CDLL(sys.argv[1])
lib.filtered_workspace.restype = ctypes.c_int64
alpha = np.array(0.5, np.float32)
for n in (1, 5, 16, 1000):
    x, y = np.linspace(-2, 3, n, dtype=np.float32), np.empty(n, np.float32)
    size = lib.filtered_workspace(ctypes.c_int64(n), ctypes.c_int64(1))
    assert size >= 4 * n and size % 64 == 0, size
    memory = np.empty(size + 64, np.uint8)
    at = memory.ctypes.data + -memory.ctypes.data % 64
    pointers = [ctypes.c_void_p(v.ctypes.data) for v in (x, alpha, y)]
    lib.filtered(*pointers, ctypes.c_int64(n), ctypes.c_void_p(at))
    c = np.abs(x.astype(np.float64)) ** 2.5 * 0.5
    np.testing.assert_allclose(y, c + c[::-1], rtol=1e-5)
assert not [m for m in sys.modules if m.startswith("tilewright")]
print("fine")
"""


@linux
def test_a_process_without_tilewright_calls_the_library(tmp_path: Path) -> None:
    library, header = filtered().export(tmp_path / "filtered.so")
    assert header.name == "filtered.h"
    done = subprocess.run([sys.executable, "-I", "-c", CLIENT, library], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr


@linux
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_a_call(tmp_path: Path, threads: int) -> None:
    library = ctypes.CDLL(str(filtered().export(tmp_path)[1]))
    library.filtered_workspace.restype = ctypes.c_int64
    n = 1003
    x, y = np.linspace(-2, 3, n, dtype=np.float32), np.full(n, np.nan, np.float32)
    alpha, barrier = np.array(0.5, np.float32), (ctypes.c_int64 * 2)()
    memory = np.empty(library.filtered_workspace(ctypes.c_int64(n), ctypes.c_int64(threads)) + 64, np.uint8)
    workspace = memory.ctypes.data + -memory.ctypes.data % 64
    pointers = [ctypes.c_void_p(v.ctypes.data) for v in (x, alpha, y)]

    def share(k: int) -> None:
        numbers = ctypes.c_int64(n), ctypes.c_void_p(workspace), ctypes.c_int64(k), ctypes.c_int64(threads)
        library.filtered_thread(*pointers, *numbers, barrier)

    workers = [threading.Thread(target=share, args=(k,)) for k in range(threads)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    np.testing.assert_allclose(y, expected(x, 0.5), rtol=1e-5)


PROGRAM = """
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "filtered.h"

int main(void) {
    enum { N = 37 };
    float a[N], d[N], alpha = 2.0f;
    for (int i = 0; i < N; ++i) a[i] = (float)(i - 18) / 7;
    void *workspace = aligned_alloc(64, (size_t)filtered_workspace(N));
    filtered(a, &alpha, d, N, workspace);
    for (int i = 0; i < N; ++i) {
        double wanted = 2 * (pow(fabs(a[i]), 2.5) + pow(fabs(a[N - 1 - i]), 2.5));
        if (fabs(d[i] - wanted) > 1e-5 * (1 + wanted)) return 1;
    }
    free(workspace);
    puts("fine");
    return 0;
}
"""


@needs_compiler
@linux
@pytest.mark.parametrize("suffix", [".o", ".so"])
def test_a_c_program_uses_it(tmp_path: Path, suffix: str) -> None:
    written = filtered(parallel=False).export(tmp_path / f"filtered{suffix}")
    (tmp_path / "main.c").write_text(PROGRAM)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    assert COMPILER is not None
    line = [COMPILER, *flags, "main.c", written[0].name, "-lm"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True).stdout == "fine\n"


def test_the_header_says_what_a_caller_must_know(tmp_path: Path) -> None:
    *_, header = filtered(target="x86-64-v3").export(tmp_path / "f.o")
    text = header.read_text()
    assert "void filtered(const float *A, const float *alpha, float *D, int64_t n, void *workspace);" in text
    assert "int64_t filtered_workspace(int64_t n, int64_t threads);" in text
    assert "its parts: C f32[n]" in text
    assert "D: float[n], written, at a multiple of 4 bytes" in text


def test_types_and_names_in_the_header(tmp_path: Path) -> None:
    a = te.placeholder((3, 4), "float16", name="for")
    m = te.placeholder((3, 4), "bool", name="mask!")
    b = te.compute((3, 4), lambda i, j: te.if_then_else(m[i, j], a[i, j], 0.0), name="B")
    f = tw.build(te.create_schedule(b), [a, m, b], name="masked")
    text = f.export(tmp_path)[-1].read_text()
    assert "void masked(const uint16_t *for_, const bool *mask_, uint16_t *B);" in text
    assert "#include <stdbool.h>" in text
    assert "the bits of f16" in text


@pytest.mark.parametrize("name", ["fmod", "expf", "while", "a b", "1st", "x-y"])
def test_names_that_c_cannot_have_are_refused(tmp_path: Path, name: str) -> None:
    a = te.placeholder((8,), "float64", name="A")
    b = te.compute((8,), lambda i: te.fmod(a[i], 3.0), name="B")
    f = tw.build(te.create_schedule(b), [a, b], target="c", name=name)
    with pytest.raises(CompileError, match="no name for a function in C"):
        f.export(tmp_path / "x.o")
    assert not list(tmp_path.iterdir())


def test_a_library_for_another_machine_needs_its_linker(tmp_path: Path) -> None:
    f = filtered(target="neoverse-n1")
    with pytest.raises(CompileError, match=r"cc -shared"):
        f.export(tmp_path / "x.so")
    assert f.export(tmp_path / "x.o")[0].read_bytes()[:4] == b"\x7fELF"


@linux
def test_sizes_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    """C[i] = A[i + by] for i < m: with wrong sizes nothing is touched but the number that says so."""
    a, by = te.placeholder((te.var("n"),), name="A"), te.var("shift", lo=None)
    c = te.compute((te.var("m"),), lambda i: a[i + by], name="C")
    library, header = tw.build(te.create_schedule(c), [a, by, c], name="shifted").export(tmp_path / "shifted.so")
    assert "1: 0 <= shift and m + shift <= n" in header.read_text()
    call = ctypes.CDLL(str(library)).shifted
    for shift, m, said in ((1, 3, 0), (2, 3, 1), (-1, 2, 1)):
        x, number, y = np.arange(4, dtype=np.float32), np.array(shift, np.int64), np.full(m, 9, np.float32)
        outside = np.full(1, 7, np.int64)
        pointers = [ctypes.c_void_p(v.ctypes.data) for v in (x, number, y, outside)]
        call(*pointers, ctypes.c_int64(4), ctypes.c_int64(m))
        assert outside[0] == said
        assert y.tolist() == ([9] * m if said else x[shift : shift + m].tolist())
