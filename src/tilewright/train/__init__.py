"""Training: gradients of graphs, and a whole learning step as one program."""
