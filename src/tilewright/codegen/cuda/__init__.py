"""CUDA C++ for loops that are bound to hardware indices."""
