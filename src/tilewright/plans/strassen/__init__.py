"""Products and 1x1 convolutions with seven block products instead of eight."""
