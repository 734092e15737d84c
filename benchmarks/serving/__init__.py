"""Measurements of the inference server; `python -m benchmarks.bench_serve` runs them."""
