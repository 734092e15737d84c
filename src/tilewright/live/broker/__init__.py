"""Batching of a node's agents: processes pass observations through shared memory, and one process runs them as a batch.

    native.py   an agent's requests, and the loop that serves batches, as native code
    ring.py     the file that they share
    fit.py      whether a model can be batched over agents
    server.py   `Broker`
    client.py   `BrokerClient`

docs/broker.md says when it is worth it.
"""
