"""A parameter server: weights that workers pull and move by pushing gradients, and that actors of the node read.

    server = Server("digits", values, workers=2, rule=SGD(0.1), staleness=2, publisher=publisher)    # in one process
    worker = connect("digits", worker=0, workers=2)                                                  # in each worker

    shard.py     who has pushed how far, what is added when, and what may be pulled: without threads or files
    frames.py    messages and records of the log: arrays with a description
    log.py       what was pushed, on disk: a server that dies goes on where it was
    server.py    the process that has the weights; it publishes them into a store
    port.py      its answers to workers and readers of other machines
    link.py      connections to servers, through shared memory or over TCP
    worker.py    the other end; it splits keys over several servers
    follow.py    a node's store kept at the weights of servers elsewhere

docs/parameter-server.md.
"""

from __future__ import annotations

from tilewright.collective.server.follow import Follower, follow
from tilewright.collective.server.port import Port
from tilewright.collective.server.server import Server
from tilewright.collective.server.shard import SGD, Add, Push, Rule, Shard
from tilewright.collective.server.worker import Worker, connect, ranges

__all__ = [
    "SGD",
    "Add",
    "Follower",
    "Port",
    "Push",
    "Rule",
    "Server",
    "Shard",
    "Worker",
    "connect",
    "follow",
    "ranges",
]
