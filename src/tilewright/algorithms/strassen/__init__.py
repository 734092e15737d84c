"""Strassen's method for matrix products and convolutions of one pixel: seven products of quarters instead of eight."""
