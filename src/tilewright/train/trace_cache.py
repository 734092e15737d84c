"""A cache on disk of traced losses of PyTorch modules: graphs by a digest of the module's tape.

The key holds all that a graph depends on: the tape of the code (`train/tape.py`), the versions of PyTorch and of this
package, whose frontend reads the trace, and plug-ins. Numbers of parameters and buffers are not in the graph. Programs
compiled from the graph are cached by `programs.py`, under keys of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

import torch

from tilewright.ir.graph import Graph
from tilewright.ops.registry import parse_graph
from tilewright.runtime.artifact import pack_blobs, unpack_blobs
from tilewright.support import plugins
from tilewright.support.cache import ObjectCache
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error


@dataclass(frozen=True, slots=True)
class Traced:
    """An imported loss, without the weights' numbers.

    graph     from the batch to the loss, metrics and new values of buffers
    changed   the buffers whose new values are the last outputs
    counters  buffers of integers that grow by one at each step
    key       the input that random numbers depend on
    tied      later names of parameters, each with the first
    """

    graph: Graph
    changed: tuple[str, ...]
    counters: tuple[str, ...]
    key: str | None
    tied: tuple[tuple[str, str], ...]


def name_of(tape: str, metrics: Sequence[str]) -> str:
    """The key of an entry: "loss-" and 32 hexadecimal digits, a digest of everything on which a trace depends, such as
    the `tape` (what tracing read) and the names of the `metrics`."""
    inputs = [tape, list(metrics), torch.__version__, package_version(), list(plugins.digests())]
    return f"loss-{blake2b(json.dumps(inputs).encode(), digest_size=16).hexdigest()}"


@cache
def package_version() -> str:
    """A digest of this package's source, that of frontends and gradients included."""
    root = Path(__file__).parents[1]
    digest = blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def get(name: str, store: ObjectCache | None = None) -> Traced | None:
    """The trace that was stored under a name, or None."""
    entry = (store or ObjectCache()).get(name)
    if entry is None:
        return None
    try:
        blobs = unpack_blobs(memoryview(entry))
        said = json.loads(blobs["said"])
        tied = tuple((str(later), str(first)) for later, first in said["tied"])
        graph = parse_graph(blobs["graph"].decode())
        return Traced(graph, tuple(said["changed"]), tuple(said["counters"]), said["key"], tied)
    except (Error, KeyError, ValueError, TypeError):
        return None  # by another version; it will be replaced


def put(name: str, traced: Traced, store: ObjectCache | None = None) -> None:
    """Store the loss `traced` under the key `name`, if the text of its graph describes it completely."""
    text = str(traced.graph)
    if parse_graph(text) != traced.graph:
        return
    said = {"changed": traced.changed, "counters": traced.counters, "key": traced.key, "tied": traced.tied}
    entry = {"said": json.dumps(said).encode(), "graph": text.encode()}
    (store or ObjectCache()).put(name, b"".join(pack_blobs(entry)))
