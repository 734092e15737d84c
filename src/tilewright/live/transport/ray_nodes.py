"""Weights across the nodes of a Ray cluster: put once into the object store, fetched and packed once by each node.

    learner ---- ray.put(image) ----> object store ---- one copy per node ----> agent: `Relay` into the node's store
       `--- (version, reference) ---> board  <---- "newer than n?" -----------'

The board is an actor that holds references, never weights. Each node has one agent, an actor that is pinned to it and
runs a `Relay`; rollout workers of that node only `attach`. Ray is imported when the first of this is used.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.live.transport.feed import Feed, Served
from tilewright.live.transport.messages import Mark
from tilewright.live.transport.relay import Relay
from tilewright.live.transport.source import Update
from tilewright.live.transport.structure import Structure, decode
from tilewright.live.transport.wire import HostileError, LostError
from tilewright.support.classes import dataclass
from tilewright.support.errors import TransportError

_SECONDS = 10.0
"""Seconds that another Ray actor may take for an answer beyond the wait that was requested."""
_LOOK_FOR_NODES = 5.0
"""Seconds between two checks for nodes that have joined."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A publication on the board; its bytes are Ray references, in lists so that Ray does not fetch them on its own."""

    run: bytes
    number: int
    version: int
    structure: bytes
    code: list[Any]
    weights: list[Any]
    finite: bool

    @property
    def mark(self) -> Mark:
        return Mark(self.run, self.number)


class Board:
    """Holds the newest publication, for agents that request it. A Ray actor, whose methods run in one event loop."""

    def __init__(self) -> None:
        self._newest: Posted | None = None
        self._changed = asyncio.Event()

    async def post(self, posted: Posted) -> None:
        """Make `posted` the newest publication, and wake those that wait for one."""
        self._newest = posted
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer(self, after: Mark | None, wait: float) -> Posted | None:
        """The newest publication after `after`; None if none comes within `wait` seconds."""
        deadline = time.monotonic() + wait
        while True:
            posted, changed = self._newest, self._changed
            if posted is not None and posted.mark.newer_than(after):
                return posted
            try:
                await asyncio.wait_for(changed.wait(), deadline - time.monotonic())
            except TimeoutError:
                return None


class RaySource:
    """A source of updates (`Source`) that fetches them from the board of a Ray cluster."""

    def __init__(self, board: Any, where: str) -> None:
        self._board = board
        self._where = where
        self._closed = False
        self._weights: Any = None  # keeps the node's copy in the object store while it is read
        self._stats = {"bytes_received": 0, "updates": 0, "programs": 0}

    def newer(self, after: Mark | None, structure: Structure | None, wait: float) -> Update | None:
        """The newest update newer than `after` from the board; None if none came within `wait` seconds (see
        `Source.newer`)."""
        import ray

        if self._closed:
            raise TransportError("the source is closed", where=self._where)
        try:
            # Short questions, so that `close` is heeded soon.
            posted = ray.get(self._board.newer.remote(after, min(wait, 1.0)), timeout=min(wait, 1.0) + _SECONDS)
            if posted is None:
                return None
            if structure is None or structure.id != posted.structure:
                structure = self._program(ray.get(posted.code[0]), posted)
            image: np.ndarray[Any, Any] = ray.get(posted.weights[0])
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise LostError(f"Ray does not deliver: {reason}", where=self._where) from None
        self._weights = image
        self._stats["bytes_received"] += image.nbytes
        self._stats["updates"] += 1
        return Update(posted.mark, posted.version, structure, image.data.toreadonly(), posted.finite)

    def _program(self, code: bytes, posted: Posted) -> Structure:
        result = decode(memoryview(code), self._where)
        if result.id != posted.structure:
            raise HostileError("a program that is not the one announced", where=self._where)
        self._stats["bytes_received"] += len(code)
        self._stats["programs"] += 1
        return result

    def close(self) -> None:
        """Close the source: later calls of `newer` raise TransportError, and one that waits ends soon by itself."""
        self._closed = True

    def stats(self) -> dict[str, int]:
        """Bytes fetched from the object store, whole updates, whole programs."""
        return dict(self._stats)


class Agent:
    """One node's relay, as a Ray actor that is pinned to the node."""

    def __init__(self, board: Any, name: str, directory: str | None, threads: int, mode: int) -> None:
        source = RaySource(board, f"weights {name!r} over Ray")
        self._relay = Relay(source, name, directory=directory, threads=threads, mode=mode).start()

    def stats(self) -> dict[str, Any]:
        """The statistics of the node's relay (`Relay.stats`), with the agent's process and the folder of the stores."""
        return {**self._relay.stats(), "process": os.getpid(), "store": str(self._relay.folder)}

    def wait(self, number: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds until publication `number`, or a later one, is in the node's store; returns
        whether it is."""
        return self._relay.wait_mark(number, timeout)

    def close(self) -> None:
        """Stop this node's relay (`Relay.close`); the node's store keeps the version published last."""
        self._relay.close()


class RayWeights:
    """Publishes a learner's weights to all nodes of a Ray cluster; created by `ray_weights`."""

    def __init__(
        self,
        name: str,
        model: Served,
        *,
        nodes: Sequence[str] | None = None,
        directory: str | None = None,
        threads: int = 1,
        mode: int = 0o600,
    ) -> None:
        self._ray = _ray()
        self.name = name
        self._chosen = None if nodes is None else tuple(nodes)
        self._options = (name, directory, threads, mode)
        self._feed = Feed(name, model)
        self._code: tuple[bytes, Any] | None = None
        self._agents: dict[str, Any] = {}
        self._looked = 0.0
        self._board = self._ray.remote(Board).options(num_cpus=0, max_concurrency=1000).remote()
        self._post()
        self.refresh()

    def publish(
        self, weights: Mapping[str, Any], version: int | None = None, *, force: bool = False, finite: bool = True
    ) -> int:
        """Offer new weights to all nodes; returns their version. They are in the object store when this returns.

        Nodes fetch the newest version and skip older ones if they are too slow.

        Args:
            weights: all of them by name, as `state_dict()` gives them.
            version: a number larger than the newest; one more if None.
            force: accept any version, so that self-play may go back to an older one.
            finite: refuse NaN and infinity.

        Raises WeightError listing all that is wrong with the weights; nothing has changed then.
        """
        chosen = self._feed.publish(weights, version, force=force, finite=finite)
        self._post()
        if time.monotonic() - self._looked > _LOOK_FOR_NODES:
            self.refresh()
        return chosen

    def replace(self, model: Served, version: int | None = None, *, force: bool = False) -> int:
        """Offer another program with its weights as `version` (None: one more than the newest); returns their version.
        `force` admits a version that does not grow. Nodes fetch the program's code once, and actors move to it between
        calls."""
        chosen = self._feed.replace(model, version, force=force)
        self._post()
        return chosen

    def _post(self) -> None:
        with self._feed.newer(None, 0.0, lambda: True) as snapshot:
            if snapshot is None:
                return
            if self._code is None or self._code[0] != snapshot.structure.id:
                self._code = snapshot.structure.id, self._ray.put(bytes(snapshot.code.data))
            weights = self._ray.put(snapshot.memory)
            mark = snapshot.mark
            posted = Posted(
                mark.run, mark.number, snapshot.version, self._code[0], [self._code[1]], [weights], snapshot.finite
            )
        self._ray.get(self._board.post.remote(posted))

    def refresh(self) -> list[str]:
        """Start agents on nodes that have joined; returns the ids of all nodes with an agent.

        `publish` does this every few seconds. An agent whose process dies is started again by Ray.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._looked = time.monotonic()
        alive = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        wanted = [node for node in alive if self._chosen is None or node in self._chosen]
        for gone in set(self._agents) - set(alive):
            del self._agents[gone]
        for node in wanted:
            if node not in self._agents:
                pinned = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
                kind = self._ray.remote(Agent).options(
                    num_cpus=0, max_restarts=-1, max_concurrency=16, scheduling_strategy=pinned
                )
                self._agents[node] = kind.remote(self._board, *self._options)
        return list(self._agents)

    @property
    def version(self) -> int:
        """The newest version that is offered; -1 if none is yet."""
        return self._feed.version

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, at most `timeout` seconds (None: without a limit), until the stores of all nodes have the newest
        version; returns whether that happened in time."""
        seconds = 1e9 if timeout is None else timeout
        number = self._feed.published
        answers = [agent.wait.remote(number, seconds) for agent in self._agents.values()]
        try:
            return all(self._ray.get(answers, timeout=seconds + _SECONDS))
        except self._ray.exceptions.RayError:
            return False

    def stats(self) -> dict[str, dict[str, Any]]:
        """The statistics of each node's relay, by the node's id: see `Relay.stats`. Nodes that do not answer are
        omitted."""
        asked = {node: agent.stats.remote() for node, agent in self._agents.items()}
        result = {}
        for node, answer in asked.items():
            try:
                result[node] = self._ray.get(answer, timeout=_SECONDS)
            except self._ray.exceptions.RayError:
                continue
        return result

    def close(self) -> None:
        """Stop the relays of all nodes, waiting a limited time for them, and end the Ray actors that this object
        started. The nodes' stores keep the versions published last."""
        self._feed.close()
        ends = [agent.close.remote() for agent in self._agents.values()]
        self._ray.wait(ends, num_returns=len(ends), timeout=_SECONDS) if ends else None
        for actor in (*self._agents.values(), self._board):
            self._ray.kill(actor)
        self._agents.clear()

    def __enter__(self) -> RayWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RayWeights {self.name!r}, version {self.version}, {len(self._agents)} nodes>"


def ray_weights(
    name: str,
    model: Served,
    *,
    nodes: Sequence[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    threads: int = 1,
    mode: int = 0o600,
) -> RayWeights:
    """Keep the stores of a Ray cluster's nodes at the newest weights of a learner.

        weights = tw.ray_weights("policy", model)         # in the learner, after ray.init()
        weights.publish(module.state_dict(), version=17)
        actor = tw.attach("policy", timeout=60)           # in rollout workers, on any node

    The model's current weights are offered at once. The returned object must live as long as weights are published: its
    actors end with it, or with the job.

    Args:
        name: of the store on each node.
        model: a `Model`, or a `Publisher` of this node's store (leave this node out of `nodes` then).
        nodes: ids of the nodes that get the weights, as in `ray.nodes()`; all, and those that join later, if None.
        directory: of all stores on each node; that of the node's environment (TILEWRIGHT_STORE_DIR) if None.
        threads: that pack the weights on each node.
        mode: access to the stores' files.

    Raises TransportError if Ray is not installed or not initialised.
    """
    where = None if directory is None else os.fspath(directory)
    return RayWeights(name, model, nodes=nodes, directory=where, threads=threads, mode=mode)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise TransportError("Ray is not installed", hint="pip install 'tilewright[rl]'") from None
    if not ray.is_initialized():
        raise TransportError("Ray is not initialised", hint="call ray.init() first")
    return ray
