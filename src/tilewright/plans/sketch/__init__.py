"""Schedules made by rules, for computations that no plan was written for."""
