"""The operators that lowering makes: packed weights, blocked channels, fast products, attention in one piece."""
