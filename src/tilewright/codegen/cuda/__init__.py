"""CUDA C++ of loops that hardware indices run through."""
