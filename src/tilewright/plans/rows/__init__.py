"""Reductions over rows and what stands around them: softmax, norms, sums."""
