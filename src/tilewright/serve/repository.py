"""The model repository of the protocol's extension: a folder whose models may be loaded and unloaded by their names.

Names are looked up among the models of the folder, never joined to a path. Compiling takes place on a thread, and the
model that is served stays until the new one is ready.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tilewright.serve.core import Core
from tilewright.serve.errors import ServeError, Status
from tilewright.serve.opening import Source, in_folder, open_source
from tilewright.support.errors import Error


class Repository:
    """Models of a folder.

    Args:
        options: of all models of the folder, as `Source` takes them.
    """

    def __init__(self, core: Core, folder: Path, **options: Any) -> None:
        self._core, self._folder, self._options = core, folder, options
        self._failed: dict[tuple[str, str], str] = {}

    def sources(self) -> list[Source]:
        """The models in the folder now."""
        return list(in_folder(self._folder, **self._options))

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """The name, version and state of each model; with `ready`, only of those that are served."""
        there = {(s.name, s.version): s for s in self.sources()}
        rows = []
        for key in sorted({*there, *(served.key for served in self._core.catalogue)}):
            serving = any(served.key == key for served in self._core.catalogue)
            if serving or not ready:
                reason = "" if serving else self._failed.get(key, "unloaded")
                state = "READY" if serving else "UNAVAILABLE"
                rows.append({"name": key[0], "version": key[1], "state": state, "reason": reason})
        return rows

    async def load(self, name: str) -> None:
        """Load, or reload, all versions of a model. Raises ServeError if there are none, or one fails."""
        loop = asyncio.get_running_loop()
        sources = [s for s in self.sources() if s.name == name]
        if not sources:
            raise ServeError(f"the repository has no model {name[:100]!r}", Status.NOT_FOUND)
        for source in sources:
            try:
                self._core.add(await loop.run_in_executor(None, open_source, source), source.share)
            except Error as error:
                self._failed[source.name, source.version] = error.headline()[:300]
                raise ServeError("the model cannot be loaded", got=error.headline()[:300]) from None
            self._failed.pop((source.name, source.version), None)

    def unload(self, name: str) -> None:
        """Stop serving all versions of the model `name`; requests that wait for it are still computed.
        Raises ServeError if there is no such model."""
        self._core.remove(name)


__all__ = ["Repository"]
