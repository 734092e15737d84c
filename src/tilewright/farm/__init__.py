"""The tuning service: from what production runs to records that make it faster (docs/farm.md).

collected decisions -> intake.py -> state.py (SQL) -> planner.py -> queue.py -> worker.py -> work.py, with the tuner
-> results.py (checked, confirmed, signed) -> rollout.py (canary, stable) -> http.py, channels of records -> compiles
"""
