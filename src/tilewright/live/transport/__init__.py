"""Weights across nodes: raw weights travel once to each node, new programs as `.tw` files; each node packs once.

    source.py     `Source`: the one interface, "the newest update newer than this one"
    relay.py      `relay`: a node's agent, which pulls from a source and publishes into the node's store
    serve.py      `serve_weights`: the learner's side over TCP
    feed.py       the program and weights that a learner offers under one name, to any number of nodes
    structure.py  a program as it travels, and the layout of its weights
    blob.py       bytes in chunks, digested once, received across broken connections
    wire.py       frames, tags, deadlines
    session.py    the handshake: nonces, the secret, keys
    messages.py   the bodies of WANT and OFFER
    server.py     TCP: accepts and sends
    calls.py      messages of any length and their answers, for services beside weights
    client.py     TCP: connects, fetches, resumes
    ray_nodes.py  the same over Ray's object store

docs/transport.md has the protocol. Nothing here imports Ray but the functions of `ray_nodes`.
"""
