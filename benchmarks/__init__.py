"""Benchmarks: the models of the suite, the peers, and the harness that compares them side by side."""
