"""Recurrent layers under TorchDynamo: the decomposition of their operators into steps, and a warning if TorchDynamo
does not trace them.

TorchDynamo breaks the graph at `nn.RNN`, `nn.GRU` and `nn.LSTM` unless `torch._dynamo.config.allow_rnn` is set. It does
so before it calls a backend, which gets no graph of a module that consists of such layers. A backend cannot set the
option for its own traces alone, and set for the process it would change every other backend's graphs.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

from torch._decomp import decompositions
from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters

log = logging.getLogger("tilewright.dynamo")
_KINDS = ("RNN", "GRU", "LSTM")
_said: set[str] = set()
"""Modules that a warning has already named."""


@contextlib.contextmanager
def lstm_in_steps() -> Iterator[None]:
    """A context in which PyTorch decomposes an LSTM into products, as it does a GRU, and not into oneDNN's layer, which
    has no rule, and for whose backward pass AOTAutograd (2.13, 2.14) refuses to save the values."""
    before = decompositions.select_one_layer_lstm_function

    def steps(*operands: Any) -> Any:
        return decompositions.one_layer_lstm

    decompositions.select_one_layer_lstm_function = steps
    try:
        yield
    finally:
        decompositions.select_one_layer_lstm_function = before


def listen() -> None:
    """Have TorchDynamo call `_look`, which warns about recurrent modules that broke a graph, after each frame that it
    traces. Nothing changes if that is so already; `torch._dynamo.reset` undoes it."""
    if _look not in callback_handler.end_callbacks:
        callback_handler.register_end_callback(_look)


def _look(*_: Any) -> None:
    """Warn, once for each, about recurrent modules that broke a graph. TorchDynamo does not retry frames, so that for a
    module called by itself the first frame is the only chance."""
    for reason in list(counters["graph_break"]):
        if not all(kind in reason for kind in _KINDS):
            continue
        context = re.search(r"Developer debug context: (.+)", reason)
        module = f"nn.{context[1]}" if context else "nn.RNN, nn.GRU or nn.LSTM"
        if module not in _said:
            _said.add(module)
            log.warning(
                "%s runs in PyTorch: TorchDynamo breaks the graph at nn.RNN, nn.GRU and nn.LSTM while "
                "torch._dynamo.config.allow_rnn is False; with True they are compiled, for each number of steps anew",
                module,
            )


__all__ = ["listen", "log", "lstm_in_steps"]
