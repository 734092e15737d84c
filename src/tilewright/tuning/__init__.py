"""Tuning: other settings than the estimates' are timed in the model they serve, and kept where they verifiably win.

compile the untuned program --decisions--> sites --search--> candidates --programs--> files --workers--> turns
      --evaluate--> winners of kernels --whole-model race--> verified gains --> records

`tuner.py` is the whole of it in order. Nothing here is imported by the compiler.
"""
