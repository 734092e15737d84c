"""Strassen's method for matrix products and 1x1 convolutions: seven products of quarters instead of eight."""
