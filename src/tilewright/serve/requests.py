"""A request for an inference and its answer, in any protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.serve.errors import ServeError
from tilewright.serve.tensors import Array


@dataclass(slots=True)  # not frozen: one is made for each request
class Request:
    """An inference that a client asks for.

    Args:
        model, version: those that shall compute it; "" lets the server choose the version.
        inputs: by name.
        outputs: the names of the outputs to return; None for all.
        id: an identifier that the answer repeats.
        timeout: seconds from `arrival` in which the answer is needed; None: the model's promise.
        priority: of two requests the one with the larger number comes first.
        arrival: seconds of `time.monotonic`.
        traceparent: W3C's header, for the log.
        shared: whether the inputs lie in memory that the client can still write; they are copied before they are
            looked at.
    """

    model: str
    inputs: Mapping[str, Array]
    arrival: float
    version: str = ""
    outputs: tuple[str, ...] | None = None
    id: str = ""
    timeout: float | None = None
    priority: int = 0
    traceparent: str = ""
    shared: bool = False


@dataclass(slots=True)  # not frozen: one is made for each request
class Answer:
    """The result of an inference.

    Args:
        weights_version: of the weights that computed it.
        batch: rows of the batch that it was part of.
        queue, compute: seconds in the queue and in the batch.
    """

    model: str
    version: str
    outputs: Mapping[str, Array]
    id: str = ""
    weights_version: int = 0
    batch: int = 1
    queue: float = 0.0
    compute: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)


Done = Callable[[Answer | ServeError], None]
"""A function that gets the answer, called once on the thread of the server's loop."""


__all__ = ["Answer", "Done", "Request"]
