"""A program as files for C, C++, Rust and the web: `Program.bundle`, `tilewright bundle`.

    NAME.o         kernels, entries and glue in one object without Python, without a heap, without threads
    NAME.h         the functions, and all sizes as numbers
    NAME.weights   raw weights, unless they are in the object
    main.c ...     an example, NAME.cmake, README.md

`binding.py` says what a program looks like to its caller, `glue.py` writes the functions, `native/relocatable.py` joins
objects, the other modules write texts.
"""

from tilewright.bundle.write import bundle

__all__ = ["bundle"]
