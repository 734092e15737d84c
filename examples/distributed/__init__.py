"""Many processes: data-parallel learning, a parameter server that feeds actors, a model split over two processes."""
