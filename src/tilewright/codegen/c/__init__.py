"""C: flat loops as a C function, to be read and for compilers of other machines."""
