"""Live weights, above the runtime: a node's store, transport between nodes, agents as one batch."""
