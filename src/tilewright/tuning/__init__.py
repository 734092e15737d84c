"""Tuning: settings other than those that the cost estimates prefer are timed inside the model, and kept if verified
faster.

compile the untuned program --decisions--> sites --search--> candidates --programs--> files --workers--> turns
      --evaluate--> winners of kernels --whole-model race--> verified gains --> records

`tuner.py` is the whole of it in order. Nothing here is imported by the compiler.
"""
