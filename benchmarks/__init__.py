"""Benchmarks: the models of the suite, the peers, and the harness that compares them side by side."""

import os

# Figures are of the untuned compiler; a benchmark of tuning names its records itself.
os.environ.setdefault("TILEWRIGHT_RECORDS", "none")
