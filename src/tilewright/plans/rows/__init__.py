"""Plans of reductions over rows and the stages around them: softmax, norms, sums."""
