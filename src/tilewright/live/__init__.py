"""Live weights, on top of the runtime: a node's weight store, transport between nodes, and batching of agents."""
