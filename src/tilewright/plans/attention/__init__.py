"""Sizes of attention's blocks."""
