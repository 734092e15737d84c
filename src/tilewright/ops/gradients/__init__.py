"""Gradients of the source operators, by family as the operators are."""
