"""A parameter server: workers pull its weights and update them by pushing gradients, and the node's actors read them.

    server = Server("digits", values, workers=2, rule=SGD(0.1), staleness=2, publisher=publisher)    # in one process
    worker = connect("digits", worker=0, workers=2)                                                  # in each worker

    shard.py     the state: clocks of workers, updates by their gradients, when they may pull; without threads or files
    frames.py    messages and records of the log: arrays with a description
    log.py       pushes on disk, so that a restarted server continues where it stopped
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
