"""The parts that all plans share: a function's structure, estimates of time, decisions, candidates, versions of a
kernel."""
