"""Exchange between the workers of a server, on the pages of a board: each worker reads the statistics of the others,
and the supervisor announces the models. Page 0 belongs to the supervisor: the models, and the statistics of workers
that have ended. Page k belongs to the k-th worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import tilewright
from tilewright.serve.board import Board
from tilewright.serve.core import Core
from tilewright.serve.models import Served
from tilewright.serve.opening import Source, served
from tilewright.serve.statistics import Statistics
from tilewright.support.errors import Error

_SOURCE = ("name", "version", "store", "promise", "max_batch", "threads", "share")


def told(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """The fields of `sources` that another process needs to attach to their models, as JSON data for the supervisor's
    page."""
    return [{name: value for name, value in asdict(s).items() if name in _SOURCE} for s in sources]


def gathered(core: Core) -> dict[str, Any]:
    """The state of this process as JSON data for its page: the number of requests in progress, and for each version of
    a model [name, number, how many requests wait for it, statistics]."""
    models = [[s.name, s.version, core.backlog(s), s.statistics.to_json()] for s in core.catalogue]
    return {"in_flight": core.in_flight, "models": models}


def added(past: Mapping[str, Any] | None, page: Mapping[str, Any] | None) -> dict[str, Any]:
    """The accumulated statistics `past` of workers that have ended, plus those on the page of one more."""
    totals: dict[tuple[str, str], Statistics] = {}
    for part in (past, page):
        for name, version, _, numbers in (part or {}).get("models", ()):
            totals.setdefault((name, version), Statistics()).add(numbers)
    return {"in_flight": 0, "models": [[*key, 0, s.to_json()] for key, s in totals.items()]}


class Colleagues:
    """One worker process's view of the pages in shared memory by which the server's workers tell each other what they
    do.

    Args:
        places: pages of workers.
        mine: this worker's page.
    """

    def __init__(self, board: Board, places: int, mine: int, sources: Sequence[Source]) -> None:
        self._board, self._places, self._mine = board, places, mine
        self._known = told(sources)
        self._fitted = True
        self.on_trouble: Callable[[str], None] = lambda text: None

    def _others(self) -> list[Mapping[str, Any]]:
        pages = [self._board.read(page) for page in range(1, self._places + 1) if page != self._mine]
        pages.append((self._board.read(0) or {}).get("past"))
        return [page for page in pages if page]

    def in_flight(self) -> int:
        """The number of requests in progress in the other workers, as their pages say."""
        return sum(page["in_flight"] for page in self._others())

    def statistics(self, own: Served) -> tuple[Statistics, int]:
        """(statistics of a model over all processes, number of requests that wait for it in others)."""
        total, waits = Statistics(), 0
        total.add(own.statistics.to_json())
        for page in self._others():
            for name, version, waiting, numbers in page["models"]:
                if (name, version) == own.key:
                    total.add(numbers)
                    waits += waiting
        return total, waits

    def tell(self, core: Core) -> None:
        """Write this worker's statistics to its page, where other workers read them. If they do not fit, the page stays
        as it was, and `on_trouble` is called the first time."""
        fits = self._board.write(self._mine, gathered(core))
        if not fits and self._fitted:
            self.on_trouble("statistics of so many models do not fit: other workers go on with older ones")
        self._fitted = fits

    async def sweep(self, core: Core) -> None:
        """Write this process's statistics; open models that the supervisor has added, and remove those that it has
        removed."""
        self.tell(core)
        sources = (self._board.read(0) or {}).get("sources")
        if sources is None or sources == self._known:
            return
        before, self._known = self._known, sources
        for fields in sources:
            if fields not in before:
                source = Source(**fields)
                try:
                    model = await asyncio.get_running_loop().run_in_executor(None, _attached, source)
                except Error as error:
                    self.on_trouble(f"{source.name}: {error.headline()}")
                else:
                    core.add(model, source.share)
        present = {(fields["name"], fields["version"]) for fields in sources}
        for fields in before:
            key = (fields["name"], fields["version"])
            if key not in present and key in {s.key for s in core.catalogue}:
                core.remove(*key)


def _attached(source: Source) -> Served:
    return served(source, tilewright.attach(source.store, source.threads, timeout=5.0))


__all__ = ["Colleagues", "added", "gathered", "told"]
