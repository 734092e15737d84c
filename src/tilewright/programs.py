"""Programs cached on disk: a model that was compiled before is read back instead of being compiled again.

The workload is the graph's structure with those of its names that users see, not any weight's value (`identity` says
what else is in the key). The entry holds the manifest, the objects, the graph and the
sizes of its temporaries as text. The other texts of a program
are made again when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from tilewright.identity import identity
from tilewright.ir.graph import Graph
from tilewright.ir.interface import Interface
from tilewright.plans.framework.advice import Advisor, answer
from tilewright.plans.framework.decisions import current, forced_settings
from tilewright.runtime.artifact import pack_blobs, unpack_blobs
from tilewright.runtime.compilers import versions
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.program import Program, Text
from tilewright.runtime.recorded import RecordUse
from tilewright.support import plugins
from tilewright.support.cache import ObjectCache
from tilewright.support.classes import dataclass
from tilewright.support.errors import ArtifactError
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options

TEXTS = ("graph", "loops", "schedule", "llvm", "asm")
"""The texts that `Model.show` can give for a program that was just compiled."""


OWN_TEXTS = ("graph", "sizes")
"""The texts that are stored in the entry itself."""

TRACES = 8
"""The number of traces that are kept for one graph; a trace is what tuning records answered to the questions of one
compile."""


@dataclass(frozen=True, slots=True)
class Source:
    """A graph with its weights, as it is compiled.

    Args:
        model: as imported.
        graph: its constants among the parameters.
        structure: its key.
        names: of inputs and outputs, as the user sees them.
        fixed: the names of the parameters that are constants.
        weights: the arrays of all parameters.
    """

    model: Graph
    graph: Graph
    structure: str
    names: Interface
    fixed: frozenset[str]
    weights: Mapping[str, np.ndarray[Any, Any]]

    def workload(self) -> str:
        """A text of the graph and its names that is different for any other graph."""
        graph, names = self.graph, self.names
        values = [[v.name for v in group] for group in (graph.inputs, graph.params, graph.outputs, graph.symbols)]
        seen = [
            graph.name,
            values,
            names.inputs,
            names.outputs,
            names.ignored,
            names.tied,
            names.folded,
            sorted(self.fixed),
            *([a.reason for a in graph.assumptions]),
            *([repr(names.rooms)] if names.rooms else []),
            *([] if names.state is None else [repr(names.state)]),
            *([repr(names.patterns)] if names.patterns else []),
            *([] if names.ragged is None else [repr(names.ragged)]),
        ]
        return f"{self.structure} {json.dumps(seen)}"


class ProgramCache:
    """The cache's entry for the program of one graph.

    Args:
        workload: of its `Source`.
        store: where entries are; the user's cache if None.

    Forced decisions (`plans/framework/decisions.py`), and the answers of tuning records, are part of the key. While
    decisions are listed, nothing is found.

    Which decisions a compile asks the records about is not known before it, and depends on the answers. So a second
    entry holds a few traces: the questions and answers of earlier compiles of the graph. A trace all of whose answers
    are still the same leads to the program that was made then. While no folder of records has changed, nothing is asked
    at all.
    """

    def __init__(
        self,
        workload: str,
        target: Target,
        options: Options,
        store: ObjectCache | None = None,
    ) -> None:
        settings = [f"{name}: {label}" for name, label in sorted(forced_settings().items())]
        extensions = (*plugins.digests(), *versions(options.compilers))

        def name(answers: Mapping[str, str]) -> str:
            told = [f"{name} by {answer}" for name, answer in sorted(answers.items()) if answer]
            return identity(
                workload, target, options=repr(options), decisions=[*settings, *told], extensions=extensions
            )

        self._name = name
        self._store = store or ObjectCache()

    def get(self, build: Callable[[Sequence[RecordUse]], Program]) -> Program | None:
        """The program, without weights; None if it is not in the cache. `build` makes it again with the same records,
        for texts that are not stored."""
        context = current()
        if context is not None and context.listing:
            return None
        answers = {} if context is None or context.advisor is None else self._answers(context.advisor)
        entry = None if answers is None else self._store.get(f"program-{self._name(answers)}")
        if entry is None:
            return None
        try:
            blobs = unpack_blobs(memoryview(entry))
            manifest = Manifest.from_json(blobs.pop("manifest").decode())
            graph, sizes = blobs.pop("graph").decode(), blobs.pop("sizes").decode()
        except (ArtifactError, KeyError, UnicodeDecodeError):
            return None  # by another version of the runtime; it will be replaced
        built = cache(partial(build, manifest.records))
        texts: dict[str, Text] = {name: partial(_text, built, name) for name in TEXTS}
        return Program(manifest, blobs, {}, {**texts, "graph": graph, "sizes": sizes})

    def put(self, program: Program) -> None:
        """Store a program in the cache, without its weights."""
        context = current()
        answers = {} if context is None else context.asked
        texts = {"manifest": program.manifest.to_json(), **{name: _shown(program, name) for name in OWN_TEXTS}}
        entry = pack_blobs({**{name: text.encode() for name, text in texts.items()}, **program.objects})
        self._store.put(f"program-{self._name(answers)}", b"".join(entry))
        if context is not None and context.advisor is not None:
            self._remember(context.advisor.stamp, answers)

    def _answers(self, advisor: Advisor) -> dict[str, str] | None:
        """The records' answers to all questions that this graph asks, by name; None if these are not known."""
        stamp = advisor.stamp
        for then, answers in self._traces():
            if stamp and stamp == then:
                return answers
            if all(answer(advisor.advise(name)) == known for name, known in answers.items()):
                self._remember(stamp, answers)
                return answers
        return None

    def _traces(self) -> list[tuple[str, dict[str, str]]]:
        """The kept traces: the stamp of the records that answered, and the answers. The last one that served first."""
        entry = self._store.get(f"traces-{self._name({})}")
        try:
            return [(str(stamp), dict(answers)) for stamp, answers in json.loads(entry or b"[]")]
        except (ValueError, TypeError):
            return []  # by another version

    def _remember(self, stamp: str, answers: dict[str, str]) -> None:
        others = [trace for trace in self._traces() if trace[1] != answers]
        traces = [(stamp, answers), *others][:TRACES]
        self._store.put(f"traces-{self._name({})}", json.dumps(traces).encode())


def _text(built: Callable[[], Program], name: str) -> str:
    return _shown(built(), name)


def _shown(program: Program, name: str) -> str:
    text = program.texts[name]
    return text() if callable(text) else text
