"""The backend of `torch.compile` by the name "tilewright": graphs of TorchDynamo in, callables out.

    fx graph --AOTAutograd--> ATen graph --survey, partition--> parts --compiler--> programs --> one function

TorchDynamo finds it by the entry point group `torch_dynamo_backends`.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis, TorchDynamoException
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import CompileContext, TracingContext
from torch.fx import GraphModule

from tilewright.dynamo.attention import partitioned
from tilewright.dynamo.decompose import bytes_resized_whole, decompositions
from tilewright.dynamo.graphs import GraphCompiler
from tilewright.dynamo.options import BackendOptions, read_options
from tilewright.dynamo.recurrent import listen, log, lstm_in_steps
from tilewright.dynamo.report import GraphReport
from tilewright.frontend.common.finish import reason
from tilewright.frontend.torch.unrolled import UnrolledError, refuse_unrolled
from tilewright.support.errors import Error

_numbers = itertools.count()
_said: set[tuple[int | None, str]] = set()
"""The messages already logged about each of TorchDynamo's functions, as retracing for other sizes repeats most of
them."""
listen()


def tilewright(
    gm: GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile a graph, traced with the inputs `examples`, for `torch.compile(model, backend="tilewright",
    options=...)`; see docs/torch.md. `mode` is accepted and ignored.

    Raises CallError for unknown options; with the option `full`, UnsupportedError if anything is not compiled.
    """
    chosen = read_options(options)
    number = next(_numbers)
    listen()
    traced = CompileContext.current_compile_id()
    frame = None if traced is None else traced.frame_id

    def forward(graph: GraphModule, inputs: Sequence[Any]) -> Any:
        return _compiled(graph, inputs, _weights(), chosen, f"graph{number}", frame)

    def backward(graph: GraphModule, inputs: Sequence[Any]) -> Any:
        return _compiled(graph, inputs, frozenset(), chosen, f"graph{number}_backward", frame)

    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, decompositions=dict(decompositions()), partition_fn=partitioned
    )
    try:
        refuse_unrolled(gm.graph, f"graph{number}")
        with lstm_in_steps(), bytes_resized_whole(gm):
            compiled: Callable[..., Any] = backend(gm, examples)
        return compiled
    except UnrolledError as error:
        if chosen.full:
            raise
        return _eager(gm, f"graph{number}", "it is left to PyTorch", error)
    except (Error, TorchDynamoException, TensorifyScalarRestartAnalysis):
        raise
    except Exception as error:  # what AOTAutograd cannot trace, PyTorch may run
        if chosen.full:
            raise
        return _eager(gm, f"graph{number}", "AOTAutograd cannot trace it", error)


def _eager(gm: GraphModule, label: str, what: str, error: Exception) -> Callable[..., Any]:
    """A callable that runs the graph in PyTorch, after a warning that `what` failed with `error`."""
    _warn(label, what, error)
    eager: Callable[..., Any] = gm.forward
    return eager


def _compiled(
    gm: GraphModule,
    inputs: Sequence[Any],
    weights: frozenset[int],
    options: BackendOptions,
    label: str,
    frame: int | None,
) -> Any:
    try:
        function, report = GraphCompiler(gm, weights, options, label).run(inputs)
    except Exception as error:
        if options.full:
            raise
        _warn(label, "it could not be compiled", error)
        return make_boxed_func(gm.forward)
    if options.report is None:
        _say(report, frame)
    else:
        options.report(report)
    return function


def _say(report: GraphReport, frame: int | None) -> None:
    """Log once which operators of the graph `frame` run in PyTorch: as a warning if one of them cannot be compiled, as
    information if all could be but would not pay."""
    left = report.left()
    if left and (frame, left) not in _said:
        _said.add((frame, left))
        level = logging.WARNING if report.refused else logging.INFO
        sizes = len(report.uncompiled), len(report.operators)
        log.log(level, "%s: %d of %d operators run in PyTorch: %s", report.name, *sizes, left)


def _warn(label: str, what: str, error: Exception) -> None:
    headline = error.headline() if isinstance(error, Error) else reason(error)
    warnings.warn(f"{label} runs in PyTorch: {what}: {headline}", RuntimeWarning, stacklevel=2)


def _weights() -> frozenset[int]:
    """The positions of the graph's placeholders that are parameters or buffers which it does not change, from
    AOTAutograd's tracing context."""
    context = TracingContext.try_get()
    known = context.fw_metadata if context is not None else None
    if known is None:
        return frozenset()
    return frozenset(known.static_input_indices) - frozenset(known.mutated_inp_runtime_indices)


setattr(tilewright, "reset", _said.clear)  # noqa: B010  torch._dynamo.reset numbers functions from 0 again

__all__ = ["tilewright"]
