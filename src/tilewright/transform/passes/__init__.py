"""Passes over graphs that state their own place: each module is one, its `PASS` says beside which pass it runs. What
chooses, and what other passes are placed beside, is listed in `compiler.py`."""
