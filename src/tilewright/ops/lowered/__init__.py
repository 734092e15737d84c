"""What lowering makes of source operators: packed weights, blocked channels, fast products, attention in one piece."""
