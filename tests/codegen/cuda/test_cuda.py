"""Emitted CUDA: text, the same results as the interpreter's (run by threads of the system), and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.c.c_run import needs_compiler
from tests.codegen.cuda.cuda_run import run_cuda
from tests.codegen.interpret.gpu_schedules import case
from tilewright import te
from tilewright.builder import BuiltFunction
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.schedule.stages import StageSchedule
from tilewright.support.errors import CompileError

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")


def added() -> BuiltFunction:
    """A sum of vectors: a thread an element."""
    n = te.var("n")
    a, b = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    c = te.compute((n,), lambda i: a[i] + b[i], name="C")
    s = te.create_schedule(c)
    outer, inner = s[c].split(c.axis[0], 16)
    s[c].bind(outer, "blockIdx.x")
    s[c].bind(inner, "threadIdx.x")
    return tw.build(s, [a, b, c], name="add", target="cuda")


def product(n: int = 12, tile: int = 4, scope: str = "shared") -> BuiltFunction:
    """A product of matrices: a block a tile, whose operands its threads bring to shared memory, step by step."""
    x, y = te.placeholder((n, n), name="X"), te.placeholder((n, n), name="Y")
    k = te.reduce_axis((0, n), name="k")
    z = te.compute((n, n), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k), name="Z")
    s = te.create_schedule(z)
    copy = s[z].cache_write("local")
    rows, columns, row, column = copy.tile(*copy.loops, tile, tile)
    stage = s[z]
    stage.compute_at(copy, columns)
    i, j, whole = stage.loops[-3:]
    outer, inner = stage.split(whole, tile)
    stage.reorder(outer, i, j, inner)
    parts = [stage.cache_read(t, scope) for t in (x, y)]
    for part in parts:
        part.compute_at(stage, outer)
    init = stage.decompose_reduction(outer)
    for part in (init, *parts):
        part.bind(part.loops[-2], "threadIdx.y")
        part.bind(part.loops[-1], "threadIdx.x")
    for a, b in ((i, j), (row, column)):
        stage.bind(a, "threadIdx.y")
        stage.bind(b, "threadIdx.x")
    copy.bind(rows, "blockIdx.y")
    copy.bind(columns, "blockIdx.x")
    return tw.build(s, [x, y, z], name="gemm", target="cuda")


def totals() -> BuiltFunction:
    """A sum over each row: threads add up columns, one thread adds those up, all use the result."""
    x = te.placeholder((3, 40), name="X")
    k = te.reduce_axis((0, 40), name="k")
    t = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), name="T")
    y = te.compute((3, 40), lambda i, j: x[i, j] / t[i], name="Y")
    s = te.create_schedule(y)
    _, inner = s[t].split(k, 8)
    part = s[t].rfactor(inner)
    s[y].bind(y.axis[0], "blockIdx.x")
    for stage in (s[t], part):
        stage.compute_at(s[y], y.axis[0])
        stage.set_scope("shared")
    lane = next(x for x in part.loops[1:] if s.schedule.extent(x) == 8)
    part.bind(lane, "threadIdx.x")
    _, column = s[y].split(y.axis[1], 8)
    s[y].bind(column, "threadIdx.x")
    return tw.build(s, [x, y], name="totals", target="cuda")


@pytest.mark.parametrize("make", [added, product, totals])
def test_text(make: Callable[[], BuiltFunction], golden: Callable[..., None]) -> None:
    golden(make().source("cuda"), "cu")


@needs_compiler
@pytest.mark.parametrize("n", [1, 16, 37])
def test_a_sum_of_vectors(n: int) -> None:
    f = added()
    a, b = np.random.default_rng(n).standard_normal((2, n), np.float32)
    c = np.full(n, np.nan, np.float32)
    run_cuda(f.source("cuda"), [a, b, c], [n])
    np.testing.assert_array_equal(c, a + b)


@needs_compiler
@pytest.mark.parametrize("make", [product, totals])
def test_runs_as_the_interpreter_says(make: Callable[[], BuiltFunction]) -> None:
    f = make()
    source = np.random.default_rng(0)
    arrays = [source.standard_normal([int(str(d)) for d in b.shape]).astype(np.float32) for b in f.func.params]
    wanted = [a.copy() for a in arrays]
    interpret(f.flat, wanted)
    run_cuda(f.source("cuda"), arrays)
    for got, expected in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@needs_compiler
@pytest.mark.parametrize("seed", [0, 2, 6, 15])
def test_random_schedules_as_numpy_says(seed: int) -> None:
    c = case(seed)
    text = tw.build(c.schedule, c.args, target="cuda").source("cuda")
    results = [np.full_like(x, np.nan) for x in c.outputs]
    run_cuda(text, [*c.inputs, *results])
    for got, expected in zip(results, c.outputs, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.daily(3)
@needs_nvcc
@pytest.mark.parametrize("make", [added, product, totals])
def test_the_cuda_compiler_takes_it(make: Callable[[], BuiltFunction], tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(make().source("cuda"))
    done = subprocess.run(["nvcc", "-c", "k.cu", "-o", "k.o"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def scheduled(apply: Callable[[StageSchedule, te.Tensor, te.Tensor], object]) -> str:
    a = te.placeholder((8, 64), name="A")
    b = te.compute((8, 64), lambda i, j: a[i, j] * 2.0, name="B")
    c = te.compute((8, 64), lambda i, j: b[i, 63 - j], name="C")
    s = te.create_schedule(c)
    apply(s, b, c)
    return tw.build(s, [a, c], target="cuda").source("cuda")


def test_what_no_kernel_can_be_is_refused() -> None:
    def threads(s: StageSchedule, b: te.Tensor, c: te.Tensor, scope: str) -> None:
        s[b].compute_at(s[c], c.axis[0])
        s[b].set_scope(scope)
        s[c].bind(c.axis[0], "blockIdx.x")
        s[b].bind(s[b].loops[-1], "threadIdx.x")
        s[c].bind(c.axis[1], "threadIdx.x")

    with pytest.raises(CompileError, match="no hardware index"):
        scheduled(lambda s, b, c: None)
    with pytest.raises(CompileError, match=r"elements of local 'B' do not belong to single threads"):
        scheduled(lambda s, b, c: threads(s, b, c, "local"))
    with pytest.raises(CompileError, match="threads share 'B', which is no shared memory"):
        scheduled(lambda s, b, c: threads(s, b, c, "global"))
    assert "__syncthreads();" in scheduled(lambda s, b, c: threads(s, b, c, "shared"))
    with pytest.raises(CompileError, match="too many threads"):
        product(n=64, tile=64).source("cuda")
