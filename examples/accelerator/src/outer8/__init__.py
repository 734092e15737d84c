"""A target for an accelerator with an 8x8 outer-product unit and one scratchpad."""
