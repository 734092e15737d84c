"""Schedules that several plans share: panels, changes of layout, reductions, transposes."""
