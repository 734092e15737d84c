"""`Stream`: a model for one of several callers, with an arena and a thread of its own, and shared weights and code.

    streams = [model.stream() for _ in range(4)]     one for each thread that calls
    y = streams[0](x)                                like a call of the model
    pending = streams[0].call_async(x)               calls of one stream are made in their order

Callers that share a model claim any free arena at each call, and compete for the thread pool of the process. A stream's
calls always use the same arena, part of which may still be in the caches.
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
    """Calls of a `Model` with an arena of their own. Updates of the model's weights apply to its streams at once.

    Args:
        model: whose code and weights it uses, and which it keeps alive.
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
        """Let the stream's thread make the call, after all calls submitted before."""
        if self._background is None:
            self._background = Background(1)
        return self._background.submit(self.__call__, inputs, out, named)

    @property
    def version(self) -> int:
        """The version of the model's weights that a call would use now."""
        return self._model.version

    def _weight_addresses(self) -> list[int]:
        return self._model._weight_addresses()

    def close(self) -> None:
        """Make the calls that `call_async` has queued, and end the thread. Ordinary calls remain possible."""
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
