"""Detect Python loops in a module's code, which PyTorch unrolls: one line of code creates very many operators.

A recurrence over thousands of steps (slow paths of Mamba, RWKV and the delta rule in transformers) becomes as many
copies of its body. Tracing takes milliseconds for each operator and compiling longer, so it is refused early, with the
line.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch.fx import Graph

from tilewright.support.errors import ModelError

MAX_NODES = 1 << 13
"""Graphs of up to this many operators are never refused."""
MAX_OF_A_LINE = 1 << 10
"""In a larger graph, the most operators that one line may create; a model with a hundred layers needs some hundred."""
_HINT = "say a loop as nn.RNN, nn.LSTM, nn.GRU, torch.while_loop or scan; or pass one step at a time"


class UnrolledError(ModelError):
    """A loop in Python makes more operators than a program should have."""


def refuse_unrolled(graph: Graph, label: str) -> None:
    """Raise UnrolledError where one line of code makes a large part of a very large graph."""
    if len(graph.nodes) <= MAX_NODES:
        return
    lines = Counter(_line(node.meta.get("stack_trace")) for node in graph.nodes if node.op == "call_function")
    lines.pop("", None)
    (line, times), *_ = lines.most_common(1) or [("", 0)]
    if times > MAX_OF_A_LINE:
        what = f"{label} has a loop in Python that PyTorch traces step by step: {len(graph.nodes)} operators or more"
        raise UnrolledError(what, where=line, got=f"{times} operators of this line", hint=_HINT)


def _line(trace: Any) -> str:
    """The innermost line of code in a stack trace as "file:line: code", without folders; "" if there is none."""
    frames = re.findall(r'File "(?:[^"]*/)?([^"/]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', trace or "")
    return f"{frames[-1][0]}:{frames[-1][1]}: {frames[-1][2].strip()}" if frames else ""


@contextlib.contextmanager
def unrolled_refused(label: str) -> Iterator[None]:
    """A context in which this thread's traces are checked by `refuse_unrolled` now and then, so that a trace of a long
    Python loop stops early."""
    create, thread = Graph.create_node, threading.get_ident()

    def counted(self: Graph, *args: Any, **kwargs: Any) -> Any:
        node = create(self, *args, **kwargs)
        if len(self.nodes) % MAX_OF_A_LINE == 0 and threading.get_ident() == thread:
            refuse_unrolled(self, label)
        return node

    Graph.create_node = counted
    try:
        yield
    finally:
        Graph.create_node = create


__all__ = ["UnrolledError", "refuse_unrolled", "unrolled_refused"]
