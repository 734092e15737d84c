"""Agents batched on a node: processes hand observations over shared memory, and one runs them as a batch.

    native.py   what an agent does with a request, and the loop that serves batches, as native code
    ring.py     the file that they share
    fit.py      whether a model can be batched over agents
    server.py   `Broker`
    client.py   `BrokerClient`

docs/broker.md says when it is worth it.
"""
