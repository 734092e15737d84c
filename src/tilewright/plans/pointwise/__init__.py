"""Functions without a reduction: pointwise loops, packing of weights, empty functions."""
