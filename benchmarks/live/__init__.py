"""Parts of `benchmarks.bench_live`: the weight store under load, one file for each question."""
