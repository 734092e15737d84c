"""A graph as it comes from outside: with the arrays of its parameters and the interface that its user sees."""

from __future__ import annotations

from typing import Any

from tilewright.ir.graph import Graph
from tilewright.runtime.specs import PatternSpec, RaggedSpec, RoomSpec, StateSpec
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Interface:
    """The names and roles by which a program's user knows its inputs, outputs and weights, beside its graph.

    inputs, outputs  their names where these are not those of the graph's values (a graph names each value once, but an
                     input, an output and a weight may share a name); empty: as the graph says
    ignored          names that the model's own dictionary of weights has and the graph does not read
    tied             those among them that are one tensor with a weight of the graph: (name, the weight's name)
    folded           weights that the program has no parameter of because something was computed from them when the
                     model was exported or compiled, each with what that is: updates that hold them are refused
    patterns         weights that products read as sparse ones, with where they may have numbers: others are refused
    fixed            parameters of the graph that are constants of the program: updates leave them out
    extents          the symbols that data decides; the last outputs are their values, which no user sees
    rooms            inputs without elements that the runtime gives (`ops/extent.py`)
    state            the caches that callers keep (`transform/graph/state.py`)
    ragged           how rows of sequences are packed (`transform/graph/ragged.py`)
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    folded: tuple[tuple[str, str], ...] = ()
    patterns: tuple[PatternSpec, ...] = ()
    fixed: frozenset[str] = frozenset()
    extents: tuple[str, ...] = ()
    rooms: tuple[RoomSpec, ...] = ()
    state: StateSpec | None = None
    ragged: RaggedSpec | None = None


AS_GRAPH = Interface()
"""The interface of a graph whose values have the names that its user knows."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, the arrays of its parameters by name, and its interface for users.

    `private`: only the import has references to the arrays, so that a model may keep them without a copy. `data`: the
    bytes of the imported file, if it is small.
    """

    graph: Graph
    weights: dict[str, Any]
    interface: Interface = AS_GRAPH
    private: bool = False
    data: bytes = b""
