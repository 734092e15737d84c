"""Ways to schedule that several kinds of computation use: panels, changes of layout, reductions, transposes."""
