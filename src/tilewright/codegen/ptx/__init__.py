"""PTX for NVIDIA GPUs by LLVM. The text of kernels is checked for unsupported functions before LLVM gets it."""
