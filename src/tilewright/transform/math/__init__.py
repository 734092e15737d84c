"""Functions as arithmetic: exp, tanh, erf and their kin as polynomials with stated bounds."""
