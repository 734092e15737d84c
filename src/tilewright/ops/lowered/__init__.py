"""The operators that lowering creates: with packed weights or blocked channels, for dot and matrix instructions, and
fused attention."""
