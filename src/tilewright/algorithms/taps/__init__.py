"""Convolutions of few filters as convolutions of many, a filter for each tap of a window, and sums over the taps."""
