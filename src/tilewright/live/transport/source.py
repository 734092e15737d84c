"""The interface of all transports: a source passes a node the newest update after the one that it has."""

from __future__ import annotations

from typing import Protocol

from tilewright.live.transport.messages import Mark
from tilewright.live.transport.structure import Structure
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Update:
    """Weights that have arrived whole, and have been checked against what was sent.

    Args:
        mark: identifies it in the request for the next one.
        version: the learner's label.
        structure: the program that they are for.
        image: the weights as `structure.weights` reads them; the next call of the source may overwrite it.
        finite: whether the learner has checked that none is NaN or infinite.
    """

    mark: Mark
    version: int
    structure: Structure
    image: memoryview
    finite: bool


class Source(Protocol):
    """The source of a node's weights, which one thread uses; `close` may be called on any thread."""

    def newer(self, after: Mark | None, structure: Structure | None, wait: float) -> Update | None:
        """The newest update newer than `after`; None if none came within `wait` seconds.

        Args:
            after: the mark of the update that the node has.
            structure: the program that it has; another one is fetched only where it is needed.

        Raises TransportError if it cannot be fetched now (the next call resumes the transfer), and ArtifactError if its
        program cannot run here.
        """
        ...

    def close(self) -> None:
        """Close the source; a waiting call raises TransportError."""
        ...

    def stats(self) -> dict[str, int]:
        """Counts since the start."""
        ...
