"""Targets: what schedules and code generation need to know of a machine."""
