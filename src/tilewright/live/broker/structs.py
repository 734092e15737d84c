"""The native structs that an agent and its broker share, and those of each.

What is shared (`HEADER`, `SLOT`) lies in the ring's file (`ring.py`); `CLIENT`, `SERVER` and `LANE` are private to a
process. An agent owns its slot; the server trusts of it only the state and, once checked, the number of rows, so that
no agent decides where the server reads and writes.

    state of a slot   FREE --attach--> IDLE --request--> READY --server--> CLAIMED --server--> DONE --agent--> IDLE

`ready` has a bit for every slot with a request: an agent sets it and the server clears it, so that collecting a batch
reads one word instead of all slots. A bit whose slot is not READY is a withdrawn request, and is ignored.

Waiting is sleeping (futexes): agents outnumber cores. A server that waits says for how many requests it is worth waking
(`wake_at`), and the agent that makes the number full wakes it; the server wakes all agents of a batch by one call of
the system for 32 slots, each agent by its bit of the futex's mask.
"""

from __future__ import annotations

from tilewright.runtime.layout import Struct

MAX_SLOTS = 256
"""The most agents of a ring."""
GROUP_SLOTS = 32
"""The agents that one word can wake: bits of a futex's mask."""
WORDS, GROUPS = MAX_SLOTS // 64, MAX_SLOTS // GROUP_SLOTS

FREE, IDLE, READY, CLAIMED, DONE = range(5)

# Outcomes of a request. OK is 0, as everywhere.
BUSY, LOST, TIMED_OUT, INTERRUPTED, FAILED, DETACHED = 11, 12, 13, 14, 15, 16

TICK_NS = 20_000_000
"""The interval, in nanoseconds, at which a sleeping agent checks whether the broker still lives."""
PAUSE_NS = 100_000_000
"""The interval, in nanoseconds, at which a waiting agent returns to Python to handle signals, which may have arrived
while it was not asleep."""
IDLE_NS = 100_000_000
"""The longest sleep of a server in nanoseconds."""
IN_FLIGHT = 1 << 62
"""In place of the time of an agent's last answer: its request is being computed."""

# The ring's first page. Each part that others write has cache lines of its own.
HEADER = Struct("magic", "abi", "size", "text_size", "closed", "pid", "epoch", "attached")
READY_AT = 128
"""Offset, in bytes, of the words with a bit for each slot that has a request."""
BELL = Struct("bell", "asleep", "wake_at", "first_ns", offset=256)
ANSWERS_AT, ANSWER_SIZE = 384, 64
SLOT = Struct("state", "sleeping", "rows", "version", "status", "pid")
SLOT_DATA = 128
"""Offset, in bytes, of a slot's arrays after its words."""

CLIENT = Struct(
    "busy", "header*", "slot*", "word", "bit", "answer*", "mask", "rows", "timeout_ns", "ring", "lock*",
    "inputs", "outputs", "table*",
)  # fmt: skip
"""`ring` is the file, `lock` a `struct flock` that queries the server's byte, `table` has COPY for every tensor."""
COPY = Struct("offset", "row_bytes", "outer", "inner")
SERVER = Struct(
    "stop", "collector", "inflight", "cursor", "last_requests", "last_rows",
    "header*", "slots*", "slot_size", "slot_count", "lanes", "max_rows", "max_batch", "max_wait_ns",
    "model*", "inputs", "outputs", "table*", "seen*", "batch_ns",
)  # fmt: skip
LANE = Struct(
    "server*", "requests", "rows", "io*", "claimed*", "buffers*", "batches", "all_requests", "all_rows", "busy_ns"
)
"""`requests` and `rows` are those of the current batch; `claimed` has CLAIM for each request, `buffers` the batch's
tensors."""
CLAIM = Struct("slot*", "index", "rows", "first")
