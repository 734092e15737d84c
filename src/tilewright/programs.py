"""Programs kept on disk: a model that was compiled before is read, not laid out, fused and lowered again.

The workload is the graph's structure with those of its names that users see, not any weight's value (`identity` says
what else is in the key). The entry holds the manifest, the objects and the graph as text. The other texts of a program
are made again when somebody asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import cache, partial

from tilewright.frontend.common.finish import Interface
from tilewright.identity import identity
from tilewright.ir.graph import Graph
from tilewright.plans.framework.decisions import forced_settings, listing
from tilewright.runtime.artifact import pack_blobs, unpack_blobs
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.program import Program, Text
from tilewright.support import plugins
from tilewright.support.cache import ObjectCache
from tilewright.support.errors import ArtifactError
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options

TEXTS = ("graph", "loops", "schedule", "llvm", "asm")
"""What `Model.show` knows of a program that was just compiled."""


class ProgramCache:
    """The cache's entry for the program of one graph.

    Args:
        graph: as imported, its constants among the parameters.
        structure: its key.
        names: of inputs and outputs, as the user sees them.
        fixed: the names of the parameters that are constants.
        store: where entries are; the user's cache if None.

    What is forced (`plans/framework/decisions.py`) is part of the key. While decisions are listed, nothing is found.
    """

    def __init__(
        self,
        graph: Graph,
        structure: str,
        names: Interface,
        fixed: Collection[str],
        target: Target,
        options: Options,
        store: ObjectCache | None = None,
    ) -> None:
        values = [[v.name for v in group] for group in (graph.inputs, graph.params, graph.outputs, graph.symbols)]
        seen = [
            graph.name,
            values,
            names.inputs,
            names.outputs,
            names.ignored,
            names.tied,
            names.folded,
            names.trusted,
            sorted(fixed),
        ]
        settings = [f"{name}: {label}" for name, label in sorted(forced_settings().items())]
        workload = f"{structure} {json.dumps(seen)}"
        extensions = plugins.digests()
        name = identity(workload, target, options=repr(options), decisions=settings, extensions=extensions)
        self._key = f"program-{name}"
        self._store = store or ObjectCache()

    def get(self, build: Callable[[], Program]) -> Program | None:
        """The program, without weights, or None. `build` is asked for texts that are not kept."""
        entry = None if listing() else self._store.get(self._key)
        if entry is None:
            return None
        try:
            blobs = unpack_blobs(memoryview(entry))
            manifest = Manifest.from_json(blobs.pop("manifest").decode())
            graph = blobs.pop("graph").decode()
        except (ArtifactError, KeyError, UnicodeDecodeError):
            return None  # by another version of the runtime; it will be replaced
        built = cache(build)
        texts: dict[str, Text] = {name: partial(_text, built, name) for name in TEXTS}
        return Program(manifest, blobs, {}, {**texts, "graph": graph})

    def put(self, program: Program) -> None:
        """Keep a program, without its weights."""
        texts = {"manifest": program.manifest.to_json(), "graph": _shown(program, "graph")}
        entry = pack_blobs({**{name: text.encode() for name, text in texts.items()}, **program.objects})
        self._store.put(self._key, b"".join(entry))


def _text(built: Callable[[], Program], name: str) -> str:
    return _shown(built(), name)


def _shown(program: Program, name: str) -> str:
    text = program.texts[name]
    return text() if callable(text) else text
