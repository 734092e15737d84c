"""How new weights reach the actors, and how these run the policy: through a store, or eagerly as is usual.

Each way has the learner's side (`publish`, `version`, `close`), an address that a process can be started with, and the
actor's side (`versioned`, `age`), which `connect` makes of the address.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from examples.ppo_actors.config import Config

Array = npt.NDArray[Any]

_PREFIX = "ppo-demo-"
"""A prefix of the stores' names; the learner's process follows, so that any number of runs go on at once."""


class Policy(Protocol):
    """The actor's side."""

    @property
    def age(self) -> float:
        """Seconds since the weights of the last call were published."""

    def versioned(self, obs: Array) -> tuple[tuple[Array, Array], int]:
        """(logits [n, actions], values [n]) of observations [n, ...], and the version of the weights that gave them."""


class Source(Protocol):
    """The learner's side."""

    @property
    def address(self) -> Any:
        """The data with which an actor connects."""

    @property
    def version(self) -> int:
        """The newest version."""

    def publish(self, weights: Mapping[str, Any]) -> int:
        """Hand all weights to the actors, who use them from their next call on; gives their version."""

    def close(self) -> None:
        """Leave nothing after."""


class Store:
    """Tilewright: the network is compiled once, its weights live in a store that all actors map.

    Args:
        agent: the network, a torch.nn.Module.
        example: a batch of observations, a torch tensor.
    """

    def __init__(self, agent: Any, example: Any) -> None:
        import tilewright as tw
        from tilewright.live import store as weights

        for info in weights.stores():
            if info.name.startswith(_PREFIX):
                weights.sweep(name=info.name)  # of a run that was killed; one in use stays
        model = tw.compile(agent, example)
        self.address = f"{_PREFIX}{os.getpid()}"
        self._publisher = tw.Publisher(self.address, model)
        self.publish = self._publisher.publish

    @property
    def version(self) -> int:
        return self._publisher.version

    def close(self) -> None:
        self._publisher.close(remove=True)


class Copies:
    """Eager PyTorch: raw weights in shared memory, which every actor copies into a network of its own.

    One writer, and readers that try again when they met it writing: a count goes up before and after (a seqlock).

    Args:
        agent: the network, a torch.nn.Module.
        context: a multiprocessing context.
    """

    def __init__(self, agent: Any, context: Any) -> None:
        flat = flatten(agent.state_dict())
        self.address = SharedWeights(context.RawArray(ctypes.c_float, flat.size), context.RawArray(ctypes.c_double, 3))
        self.publish(agent.state_dict())

    @property
    def version(self) -> int:
        return self.address.version

    def publish(self, weights: Mapping[str, Any]) -> int:
        return self.address.write(flatten(weights))

    def close(self) -> None:
        """Nothing to do: the memory has no name."""


class SharedWeights:
    """A flat array of weights with its version and the time when it was written; pickles to descriptors."""

    def __init__(self, values: Any, head: Any) -> None:
        self._values, self._head = values, head

    @property
    def version(self) -> int:
        """0 before the first."""
        return int(self._head[1])

    @property
    def time(self) -> float:
        """When the newest were written, on the system's monotonic clock."""
        return float(self._head[2])

    def write(self, flat: Array) -> int:
        head = self._head
        head[0] += 1
        np.frombuffer(self._values, np.float32)[:] = flat
        head[1], head[2] = head[1] + 1, time.monotonic()
        head[0] += 1
        return self.version

    def read(self) -> tuple[Array, int, float]:
        """A copy of the weights, its version, when it was written."""
        while True:
            before = self._head[0]
            results = np.frombuffer(self._values, np.float32).copy(), self.version, self.time
            if before % 2 == 0 and before == self._head[0]:
                return results
            time.sleep(0)


class Eager:
    """The actor's side of `Copies`."""

    def __init__(self, weights: SharedWeights, config: Config) -> None:
        import torch

        from examples.ppo_actors.learner import agent_for

        torch.set_num_threads(1)
        self._agent = agent_for(config.env)
        self._weights, self._version, self._time = weights, 0, 0.0
        self._torch = torch

    @property
    def age(self) -> float:
        return time.monotonic() - self._time

    def versioned(self, obs: Array) -> tuple[tuple[Array, Array], int]:
        torch = self._torch
        with torch.inference_mode():
            if self._weights.version != self._version:
                flat, self._version, self._time = self._weights.read()
                self._load(flat)
            logits, value = self._agent(torch.from_numpy(obs))
        return (logits.numpy(), value.numpy()), self._version

    def _load(self, flat: Array) -> None:
        at, source = 0, self._torch.from_numpy(flat)
        for tensor in self._agent.state_dict().values():
            tensor.copy_(source[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()


def flatten(weights: Mapping[str, Any]) -> Array:
    """A state_dict as one float32 vector, in its order."""
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in weights.values()])


def connect(address: Any, config: Config) -> Policy:
    """The actor's side of what has this address; waits up to a minute for a store to exist."""
    if isinstance(address, SharedWeights):
        return Eager(address, config)
    import tilewright as tw

    return tw.attach(address, threads=1, timeout=60.0)
