"""All benchmarks one after another: `python -m benchmarks` (or `make bench`); reports go to `benchmarks/results`."""

from __future__ import annotations

from benchmarks import (
    bars,
    bench_compile,
    bench_layers,
    bench_memory,
    bench_models,
    bench_overhead,
    bench_profile,
    bench_threads,
)

if __name__ == "__main__":
    status = bench_layers.main([])
    status |= bench_models.main([])
    status |= bench_threads.main([])
    status |= bench_profile.main([])
    status |= bench_overhead.main([])
    status |= bench_compile.main([])
    status |= bench_memory.main([])
    status |= bars.main()
    raise SystemExit(status)
