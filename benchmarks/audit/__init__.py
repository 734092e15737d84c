"""Random layers compiled, timed and compared: estimates against the clock, and the compiler against eager PyTorch."""
