"""The interpreter: loops of any stage over NumPy arrays, the oracle of the native backends."""
