"""VTA's instructions of loops over its memories: `emit.py` walks over the loops, `tokens` order the queues."""
