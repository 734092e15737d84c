"""The tuning service: turns workloads collected in production into records that make them faster (docs/farm.md).

collected decisions -> intake.py -> state.py (SQL) -> planner.py -> queue.py -> worker.py -> work.py, with the tuner
-> results.py (checked, confirmed, signed) -> rollout.py (canary, stable) -> http.py, channels of records -> compiles
"""
