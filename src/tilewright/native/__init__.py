"""Support for native code that is not generated from models: structured LLVM text, object files, linking into
memory."""
