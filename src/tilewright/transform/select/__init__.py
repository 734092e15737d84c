"""Selection: by which algorithm and in which precision each operator is computed, noted on its node."""
