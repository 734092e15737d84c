"""Runs CUDA text without a GPU: a thread of the system for each thread of a block, a barrier for __syncthreads."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.codegen.c.c_run import compile_c

SHIM = """
#define _XOPEN_SOURCE 700
#include <pthread.h>
#include <stdlib.h>
#define __global__
#define __host__
#define __device__
#define __shared__ static
#define __syncthreads() pthread_barrier_wait(&meeting)
#define __syncwarp() pthread_barrier_wait(&meeting)
struct place { unsigned x, y, z; };
static _Thread_local struct place threadIdx, blockIdx;
static pthread_barrier_t meeting;
"""

RUN = """
struct job { struct place thread, block; };
static void *run_thread(void *given) {
    struct job *job = given;
    threadIdx = job->thread;
    blockIdx = job->block;
    @kernel@(@arguments@);
    return 0;
}
void run(@parameters@) {
    const unsigned grid[3] = {@grid@}, block[3] = {@block@}, all = block[0] * block[1] * block[2];
    pthread_barrier_init(&meeting, 0, all);
    pthread_t *threads = malloc(all * sizeof *threads);
    struct job *jobs = malloc(all * sizeof *jobs);
    for (unsigned b = 0; b < grid[0] * grid[1] * grid[2]; ++b) {
        for (unsigned t = 0; t < all; ++t) {
            jobs[t].thread = (struct place){t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
            jobs[t].block = (struct place){b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
            pthread_create(&threads[t], 0, run_thread, &jobs[t]);
        }
        for (unsigned t = 0; t < all; ++t) pthread_join(threads[t], 0);
    }
    free(threads);
    free(jobs);
}
"""


def run_cuda(text: str, arrays: Sequence[np.ndarray[Any, Any]], symbols: Sequence[int] = ()) -> None:
    """Call what a launcher with one kernel launches, in place."""
    kernels, launcher = text.rsplit('extern "C" void', 1)
    match = re.search(r"(\w+)<<<dim3\((.*)\), dim3\((.*)\), 0, stream>>>\((.*)\);", launcher)
    head = re.search(r"\((.*),\s*cudaStream_t stream", launcher, re.S)
    assert match and head
    names = [p.split()[-1].lstrip("*") for p in head[1].split(",")]
    types = [p.strip().removesuffix(n) for p, n in zip(head[1].split(","), names, strict=True)]
    fields = {
        "kernel": match[1],
        "grid": match[2],
        "block": match[3],
        "arguments": match[4],
        "parameters": ", ".join(f"{t}{n}_given" for t, n in zip(types, names, strict=True)),
    }
    runner = RUN
    for field, value in fields.items():
        runner = runner.replace(f"@{field}@", value)
    # Threads find the arguments in variables of the file.
    globals_ = "\n".join(f"static {t}{n};" for t, n in zip(types, names, strict=True))
    entry = "\n".join(f"    {n} = {n}_given;" for n in names)
    runner = globals_ + runner.replace("    const unsigned grid", f"{entry}\n    const unsigned grid", 1)
    source = SHIM + kernels.replace('extern "C" ', "") + runner
    library = compile_c(source, "-pthread", "-Wno-unused-variable")
    library.run(*[ctypes.c_void_p(a.ctypes.data) for a in arrays], *map(ctypes.c_int64, symbols))
