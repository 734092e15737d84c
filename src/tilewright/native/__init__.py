"""Native code that Tilewright writes itself: LLVM text as one writes C, objects, linking into memory."""
