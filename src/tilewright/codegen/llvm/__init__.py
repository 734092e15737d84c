"""LLVM: flat loops to LLVM text, the text of a program's entry, and text to objects and assembly."""
