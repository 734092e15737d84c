"""`Stream`: a caller's own way into a model: memory for temporaries and a thread of its own, weights and code shared.

    streams = [model.stream() for _ in range(4)]     one for each thread that calls
    y = streams[0](x)                                as the model itself
    pending = streams[0].call_async(x)               calls of one stream are made in their order

Callers that share a model look for a free arena at each call, and those that use several threads compete for the pool
of the process. A stream's calls always find the arena that they used before, with what the caches still have of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.runtime.engine import Engine
from tilewright.runtime.pending import Background, Pending
from tilewright.runtime.runner import Runner
from tilewright.runtime.threads import check_threads

if TYPE_CHECKING:
    from tilewright.runtime.model import Model


class Stream(Runner):
    """Calls of a `Model` with an arena of their own. New weights of the model are its own at once.

    Args:
        model: whose code and weights it uses, and which it keeps.
        threads: of each call, the caller included.
    """

    def __init__(self, model: Model, threads: int) -> None:
        self._model = model
        self._background: Background | None = None
        shared = model._engine
        engine = Engine(shared.manifest, shared.linked, check_threads(threads), shared.control, device=shared.device)
        engine.max_iterations, engine.time_limit = shared.max_iterations, shared.time_limit
        model._weights.follow(engine)
        self._start(engine)

    def call_async(self, /, *inputs: Any, out: Any = None, **named: Any) -> Pending:
        """The call, made by the stream's own thread after all that were asked for before."""
        if self._background is None:
            self._background = Background(1)
        return self._background.submit(self.__call__, inputs, out, named)

    @property
    def version(self) -> int:
        """The version of the weights that a call now would use: the model's."""
        return self._model.version

    def _weight_addresses(self) -> list[int]:
        return self._model._weight_addresses()

    def close(self) -> None:
        """Make the calls that `call_async` still has, and end its thread. Ordinary calls go on as before."""
        if self._background is not None:
            self._background.close()
            self._background = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Stream of {self._described()}>"


__all__ = ["Stream"]
