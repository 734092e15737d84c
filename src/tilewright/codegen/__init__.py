"""Code generation: flat loops to LLVM IR, to C, or to values by interpretation."""
