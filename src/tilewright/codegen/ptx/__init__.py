"""PTX for NVIDIA's processors, by LLVM: text of kernels, which is looked through before LLVM gets it."""
