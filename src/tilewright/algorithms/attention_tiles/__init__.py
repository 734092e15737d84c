"""Attention with both products in matrix registers, and the softmax between them, in one kernel."""
