"""Convolutions by Winograd's and Fourier's transforms, and the transforms of their filters."""
