"""Targets: machines, one file a family, and what schedules and code generation need to know of them.

`target.py` says what a target is, `isa.py`, `memory.py` and `costs.py` its parts; `registry.py` finds one by name,
`host.py` describes this machine. docs/targets.md shows how to describe another one.
"""
