"""Passes over graphs that state their own place in the list of passes: the `PASS` of each module says which pass it
runs next to. Passes that make decisions, and those that others are placed next to, are listed in `compiler.py`."""
