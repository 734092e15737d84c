"""A module to an `ExportedProgram` whose operators have rules.

Export keeps PyTorch's composite operators (linear, lstm, layer_norm, scaled_dot_product_attention ...), which have
rules. If an operator has no rule, or changes a tensor in place that another one reads, a second pass of PyTorch makes
the graph functional and decomposes such operators; the second pass costs more than the first.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import sys
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any, TypeVar

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._decomp import decomposition_table
from torch._subclasses import FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.frontend.torch import registry
from tilewright.frontend.torch.checks import ChecksAsNumbers, unchecked_distributions
from tilewright.frontend.torch.example import Dims, Example, Trace, assignments, trace_inputs
from tilewright.frontend.torch.inner import InnerGradients, InnerGradientsError
from tilewright.frontend.torch.reasons import known_reason
from tilewright.frontend.torch.restored import parameters_restored
from tilewright.frontend.torch.spaced import OpenSteps
from tilewright.frontend.torch.symbols import guards_of, guards_of_operators, holds, own_guards, traced_sizes
from tilewright.frontend.torch.unrolled import UnrolledError, unrolled_refused
from tilewright.frontend.torch.unskip import unskip
from tilewright.frontend.torch.whole import opaque_operators
from tilewright.ir.dim import Dim, DimSizes
from tilewright.support.errors import ModelError, UnsupportedError

E = TypeVar("E", bound=BaseException)
TIMEOUT_S = 20.0
"""The most seconds for which eager PyTorch runs the module on its example, to see whether the module itself fails, or
whether an exported program computes the same."""
_POWERS = (2, 4, 8, 16, 32, 64)
"""Numbers that are tried as divisors of heights and widths."""
MAX_ELEMENTS = 1 << 36
"""The most elements of a tensor that can still be computed; each has 4 bytes or more."""
_ADVICE = 'pass dynamic=None to compile for the example\'s sizes only, or {"input": {axis: "symbol"}} to say which vary'


def export_module(
    module: torch.nn.Module,
    example: Example,
    dynamic: str | Mapping[str, Mapping[int, str]] | None,
    sizes: DimSizes,
    training: bool = False,
) -> tuple[ExportedProgram, list[Dims], dict[str, Dim]]:
    """Trace the module in evaluation mode, or for training in each submodule's own mode. Returns the program, the
    symbolic dimensions of its inputs, and their ranges. `sizes`: sizes and ranges that the caller states.

    Where the module cannot be traced with any height and width (a U-Net joins maps that were halved with those that
    were not), they are restricted to multiples of the least power of two with which it can. Where it cannot be traced
    with unusual sizes, or the conditions that PyTorch derives from these do not hold for the example (`x.reshape(2,
    -1)` is traced for odd or for even sizes), it is traced with the example's sizes.

    Raises ModelError with PyTorch's reason.
    """
    failures: list[Exception] = []
    stated = {name: size for name, size in sizes.items() if isinstance(size, Dim)}
    for dims in assignments(module, example.leaves, dynamic):
        for known in (stated, *_multiples(stated, dims if dynamic != "auto" else ())):
            for strict in (True, False):
                trace = trace_inputs(module, example, dims, known, strict=strict)
                try:
                    result = _exported(module, trace, training)
                except Exception as error:  # what a module's own code raises while it is traced may be anything
                    unskip(error)
                    for kind in (UnrolledError, InnerGradientsError):
                        if cause := _cause(error, kind):
                            raise cause from None
                    failures.append(error)
                    if not _is_of_ranges(error) or _numbers(error):
                        break
                else:
                    serves = holds(guards_of(result), _symbols(result, example))
                    return (result if serves else _of_example(module, example, dims, training) or result), dims, known
            # Multiples of a number that the code asks for are none either, and a loop would be traced for each of them.
            if _numbers(failures[-1]) or not _is_about_sizes(failures[0]):
                break
        else:
            if any(dims) and (result := _of_example(module, example, dims, training)):
                return result, dims, stated
    if type(failures[0]).__name__ == "GuardOnDataDependentSymNode":
        decides: Any = getattr(failures[0], "cond", None)  # a condition, or the number that Python asks for
        if isinstance(decides, sympy.Symbol) or not isinstance(decides, Boolean):
            what = (
                f"{type(module).__name__} needs an element as a Python number, for int(), float() or a function of math"
            )
            hint = "compute with the tensor of one element: x.long(), x.float(), torch.exp(x)"
            raise ModelError(what, got=_place(failures[0]), hint=hint) from failures[0]
        what = f"{type(module).__name__} does other things for other values, which one program cannot"
        hint = "give outputs that say everything (logits, means), and draw or branch outside: tilewright.rl.sampling"
        raise ModelError(what, got=_place(failures[0]), hint=hint) from failures[0]
    if reason := next((r for f in failures if (r := known_reason(type(module).__name__, f))), None):
        raise reason from failures[0]
    refuse_example(module, example, training)
    if numbers := _numbers(failures[0]):
        what = f"{type(module).__name__} cannot be exported with symbolic dimensions: it needs a number for "
        what += f"{', '.join(numbers)}, as a loop in Python over the steps of a sequence does"
        expected = "operators whose number does not depend on sizes"
        hint = f"say a loop over it as nn.RNN, nn.LSTM, nn.GRU, torch.while_loop or scan, or {_ADVICE}"
        raise ModelError(what, expected=expected, hint=hint) from failures[0]
    symbols = dynamic is not None
    what = "cannot be exported" + (" with symbolic dimensions" if symbols else "")
    raise ModelError(
        f"{type(module).__name__} {what}: {_reason(failures[0])}", hint=_ADVICE if symbols else None
    ) from failures[0]


def _cause(error: BaseException | None, kind: type[E]) -> E | None:
    """The first error of class `kind` among `error` and its causes; None if there is none."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _exported(module: torch.nn.Module, trace: Trace, training: bool) -> ExportedProgram:
    mode = contextlib.nullcontext() if training else evaluating(module)
    label, inner = type(module).__name__, InnerGradients()
    traced = mode, opaque_operators(), OpenSteps(), unrolled_refused(label), ChecksAsNumbers(), inner
    restored = parameters_restored(module, numbers=False)
    with contextlib.ExitStack() as stack, quietly(), torch.set_grad_enabled(training):
        for context in (restored, *traced, *([unchecked_distributions()] if training else [])):
            stack.enter_context(context)
        try:
            result = torch.export.export(module, trace.args, trace.kwargs, dynamic_shapes=trace.shapes)
        except Exception as error:  # whatever the exporter meets in such a graph
            if inner.computed:
                raise InnerGradientsError from error
            raise
        constants = [c for c in result.constants.values() if isinstance(c, torch.Tensor)]  # generators may be others
        if any(isinstance(c, FakeTensor) or is_functorch_wrapped_tensor(c) for c in constants):
            raise InnerGradientsError  # torch.func.vjp and jacrev of an input, which PyTorch's program does not read
        if training:
            detach_in_place(result)
            detach_regions(result)
        return result


def _of_example(
    module: torch.nn.Module, example: Example, dims: Sequence[Dims], training: bool
) -> ExportedProgram | None:
    """The program exported with the sizes of `example` itself, for `training` or evaluation; `dims` are the symbolic
    dimensions of its inputs. None if the export fails, or if the guards of the program do not hold for the example."""
    trace = trace_inputs(module, example, dims, {}, strict=False, own=True)
    try:
        result = _exported(module, trace, training)
    except Exception as error:  # the module's own code
        unskip(error)
        return None
    return result if holds(guards_of(result), _symbols(result, example)) else None


def _symbols(program: ExportedProgram, example: Example) -> dict[Any, int]:
    """PyTorch's symbol -> the size that it has in the example."""
    users = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT}
    held = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in users]
    tensors = [v for v in held if isinstance(v, torch.Tensor)]
    pairs = [
        (a, b)
        for v, leaf in zip(tensors, example.leaves, strict=False)
        for a, b in zip(v.shape, leaf.tensor.shape, strict=False)
    ]
    return {a.node.expr: b for a, b in pairs if isinstance(a, torch.SymInt) and a.node.expr.is_Symbol}


def _multiples(stated: Mapping[str, Dim], dims: Iterable[Dims]) -> Iterator[dict[str, Dim]]:
    """Yield ranges by symbol to try one after another when a module cannot be traced with the ranges `stated`: these,
    with the symbols of heights and widths restricted to multiples of 2, then of 4, up to 64. Heights and widths are
    the symbols in `dims` (of each input, axis -> symbol) that are at no axis 0, where batches are."""
    batches = {name for axes in dims for axis, name in axes.items() if axis == 0}
    others = {name: stated.get(name, Dim()) for axes in dims for name in axes.values() if name not in batches}
    for unit in _POWERS if others else ():
        yield {**stated, **{n: replace(d, multiple=math.lcm(unit, d.multiple)) for n, d in others.items()}}


def _numbers(error: Exception) -> list[str]:
    """The names of symbolic sizes that a module's code needs as Python numbers, from PyTorch's error: it loops over
    them, or passes them as float (for `scale=1 / x.shape[0]` PyTorch inserts the traced value, under a guard)."""
    own = r"marked (\w+) as dynamic but your code specialized it to be a constant"
    floats = r"Not all values of (\w+) = .* satisfy the generated guard .* == -?\d+(?:\.\d|e)"
    return re.findall(own, str(error)) or re.findall(floats, str(error))


def _is_of_ranges(error: Exception) -> bool:
    """Whether PyTorch refuses a module because the stated ranges of sizes contradict the conditions that it derived; it
    may accept the module if it derives the ranges itself. From `-w % 4 <= w` it derives an empty range (2.13), which it
    cannot report."""
    return "generated guard" in str(error) or "Cannot create Dim with inconsistent" in str(error)


def _is_about_sizes(error: Exception) -> bool:
    """Whether an error of PyTorch's mentions a symbolic size."""
    text = str(error)
    return "Suggested fixes" in text or re.search(r"\bs\d+\b", text) is not None


def detach_in_place(program: ExportedProgram) -> None:
    """Replace `detach_` by `detach`, since PyTorch drops the in-place form when it makes a graph functional."""
    for graph in [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]:
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default):
            node.target = torch.ops.aten.detach.default
        graph.recompile()


def detach_regions(program: ExportedProgram) -> None:
    """Insert `detach` after regions without gradients (`torch.no_grad`), which PyTorch drops when it decomposes
    operators."""
    for graph in [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]:
        for node in list(graph.graph.nodes):
            region: Any = node.args[0] if node.target is getitem else None
            if not isinstance(region, torch.fx.Node) or not _is_without_gradients(region):
                continue
            if isinstance(node.meta.get("val"), torch.Tensor):
                with graph.graph.inserting_after(node):
                    detached = graph.graph.call_function(torch.ops.aten.detach.default, (node,))
                detached.meta.update(node.meta)
                node.replace_all_uses_with(detached, lambda user, own=detached: user is not own)
        graph.recompile()


def _is_without_gradients(node: torch.fx.Node) -> bool:
    target: Any = node.target
    wraps = isinstance(target, torch._ops.HigherOrderOperator) and target.name() == "wrap_with_set_grad_enabled"
    return wraps and node.args[0] is False


def refuse_example(module: torch.nn.Module, example: Example, gradients: bool = False) -> None:
    """Raise ModelError if eager PyTorch cannot run the module on the example either: then the module is at fault, not
    the compiler. Only called after a failure, as it runs the module for up to TIMEOUT_S seconds."""
    try:
        states = evaluating(module), parameters_restored(module)
        with states[0], states[1], quietly(), torch.set_grad_enabled(gradients), _time_limit(TIMEOUT_S):
            if not _makes_huge(module, example):
                module(*example.args, **example.kwargs)
    except _GaveUp:
        return
    except Exception as error:  # the module's own code
        unskip(error)
        if isinstance(error, torch._dynamo.exc.TorchDynamoException):  # of a compiled function, such as flex_attention
            return
        arguments = (
            f"{x.name} {str(x.tensor.dtype).removeprefix('torch.')}{list(x.tensor.shape)}" for x in example.leaves
        )
        what = f"{type(module).__name__} cannot run on the example: {_reason(error)}"
        raise ModelError(what, got=", ".join(arguments)) from error


class _GaveUp(BaseException):
    """Raised when a module takes too long; a BaseException, so that `except Exception` in the module does not catch
    it."""


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Within the context, raise _GaveUp at the first function call after so many seconds, as a module may loop
    forever."""
    deadline, before = time.monotonic() + seconds, sys.getprofile()

    def look(_frame: object, _event: str, _argument: object) -> None:
        if time.monotonic() > deadline:
            raise _GaveUp

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


class _Huge(BaseException):
    """Raised when a module creates a tensor that is too large to compute."""


class _Sizes(TorchDispatchMode):  # type: ignore[misc]
    """Within the mode, an operator whose result has more than MAX_ELEMENTS raises _Huge."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and math.prod(x.shape) > MAX_ELEMENTS for x in pytree.tree_leaves(result)):
            raise _Huge
        return result


@contextlib.contextmanager
def _fake(sizes: Any = None) -> Iterator[FakeTensorMode]:
    """A mode of tensors without elements, with the `ShapeEnv` of their `sizes`. Functions of `torch.compile` run as
    written: the code that Inductor generates reads the memory of its arguments, and these have none."""
    with (
        torch.compiler.set_stance("force_eager"),
        FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes) as mode,
    ):
        yield mode


def _makes_huge(module: torch.nn.Module, example: Example) -> bool:
    """Whether the module creates a tensor that is too large to compute, by running it on shapes alone."""
    try:
        restored = parameters_restored(module, numbers=False)
        with restored, _fake() as mode, _Sizes():
            args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (example.args, example.kwargs))
            module(*args, **kwargs)
    except _Huge:
        return True
    except Exception as error:  # the module's own code
        unskip(error)
    return False


def serves_least(
    program: ExportedProgram, module: torch.nn.Module, example: Example, dims: Sequence[Dims], known: Mapping[str, Dim]
) -> bool:
    """Whether the program agrees with the module where every symbolic dimension has its least size: 1, or its divisor.

    Export assumes sizes of 2 and more: a `squeeze()` keeps the batch dimension, and `if n > 1` takes its first branch
    without a guard. So shapes are compared, and also numbers if a condition on sizes in the module's code changes
    there. True if the module cannot be run.
    """
    trace = trace_inputs(module, example, dims, known, least=True)
    leaves = _results(module, trace, real=not _data_decides(program))
    if leaves is None:
        return True
    results = next(n for n in program.graph.nodes if n.op == "output").args[0]
    kinds = [spec.kind is OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs]
    stated = [r.meta["val"] for r, ours in zip(results, kinds, strict=True) if ours and isinstance(r, torch.fx.Node)]
    matches = [tuple(x.shape) for x in leaves if isinstance(x, torch.Tensor)]
    if matches != [tuple(map(_at_one, v.shape)) for v in stated if isinstance(v, torch.Tensor)]:
        return False
    usual = trace_inputs(module, example, dims, known, strict=False)
    return _conditions_hold(module, usual, _sizes_of(usual), _sizes_of(trace)) or _agree(program, module, trace)


def _data_decides(program: ExportedProgram) -> bool:
    """Whether a size in a program depends on data, for which PyTorch has symbols u0, u1, ..."""
    held = (n.meta.get("val") for n in program.graph.nodes)
    sizes = [d for v in held if isinstance(v, torch.Tensor) for d in v.shape if isinstance(d, torch.SymInt)]
    return any(str(symbol).startswith("u") for d in sizes for symbol in d.node.expr.free_symbols)


def _results(module: torch.nn.Module, trace: Trace, real: bool) -> list[Any] | None:
    """The results of a module for a trace, on fake tensors, or with `real` on the trace's own where those do not do:
    PyTorch's code may look at numbers (`torch.cov`). None if it cannot be run within TIMEOUT_S seconds."""
    try:
        with evaluating(module), quietly(), torch.no_grad(), _fake() as mode:
            args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (trace.args, trace.kwargs))
            return list(pytree.tree_leaves(module(*args, **kwargs)))
    except Exception as error:  # the module's own code again, which ran before
        unskip(error)
    if not real:
        return None
    try:
        with evaluating(module), quietly(), torch.no_grad(), torch.random.fork_rng([]), _time_limit(TIMEOUT_S):
            args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, (trace.args, trace.kwargs))
            return list(pytree.tree_leaves(module(*args, **kwargs)))
    except _GaveUp:
        return None
    except Exception as error:
        unskip(error)
        return None


def _sizes_of(trace: Trace) -> list[int]:
    """The extents of all tensors of a trace, concatenated."""
    leaves = pytree.tree_leaves((trace.args, trace.kwargs))
    return [size for x in leaves if isinstance(x, torch.Tensor) for size in x.shape]


def _conditions_hold(module: torch.nn.Module, trace: Trace, traced: Sequence[int], least: Sequence[int]) -> bool:
    """Whether conditions on sizes in the module's own code hold for the sizes `least` as they did for `traced`. True if
    the module cannot be run for this test. (PyTorch's own operators assume that unknown sizes are not 1.)"""
    sizes = {a: b for a, b in zip(traced, least, strict=True) if a != b}
    if not sizes:
        return True
    env = ShapeEnv()
    try:
        with (
            evaluating(module),
            quietly(),
            torch.no_grad(),
            symbolic_config.patch(backed_size_oblivious=True),
            _fake(env) as mode,
        ):

            def symbolic(x: torch.Tensor) -> torch.Tensor:
                kinds = [DimDynamic.DYNAMIC if size in sizes else DimDynamic.STATIC for size in x.shape]
                return mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(kinds))

            args, kwargs = pytree.tree_map_only(torch.Tensor, symbolic, (trace.args, trace.kwargs))
            module(*args, **kwargs)
    except Exception as error:  # the module's own code, which ran before
        unskip(error)
        return True
    return holds(own_guards(env), {s: sizes[int(n)] for s, n in traced_sizes(env).items() if int(n) in sizes})


def _agree(program: ExportedProgram, module: torch.nn.Module, trace: Trace) -> bool:
    """Whether a program and its module compute the same numbers for random inputs of a trace's shapes. True if the
    module cannot be run within TIMEOUT_S seconds."""
    generator = torch.Generator().manual_seed(0)

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(x.shape, generator=generator).to(x) if x.is_floating_point() else x.clone()

    arguments = pytree.tree_map_only(torch.Tensor, drawn, (trace.args, trace.kwargs))
    results: list[list[Any]] = []
    try:
        with evaluating(module), quietly(), torch.no_grad(), torch.random.fork_rng([]), _time_limit(TIMEOUT_S):
            for run in (module, program.module(check_guards=False)):
                torch.default_generator.manual_seed(0)  # not those of other devices, which are not restored
                args, kwargs = pytree.tree_map_only(torch.Tensor, torch.clone, arguments)
                results.append(pytree.tree_leaves(run(*args, **kwargs)))
    except _GaveUp:
        return True
    except Exception as error:  # the module's own code
        unskip(error)
        return True
    pairs = [(a, b) for a, b in zip(*results, strict=True) if isinstance(a, torch.Tensor)]
    return all(torch.allclose(a, b.to(a), rtol=1e-3, atol=1e-3, equal_nan=True) for a, b in pairs)


def _at_one(size: Any) -> int:
    """A symbolic size evaluated with every symbol equal to 1."""
    if isinstance(size, int):
        return size
    e = size.node.expr
    return int(e.subs(dict.fromkeys(e.free_symbols, 1)))


def simplified(program: ExportedProgram, separate: Collection[Any] = ()) -> ExportedProgram:
    """The program with operators that have no rule decomposed, as far as PyTorch can. `separate`: operators that are
    decomposed although they have rules."""
    graphs = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = (n for g in graphs for n in g.graph.nodes if n.op == "call_function")
    if not separate and all(registry.handles(n) for n in nodes):
        return program
    for graph in graphs:
        _refuse_writes_to_windows(graph.graph)
    with quietly(), opaque_operators(separate), torch.no_grad(), guards_of_operators(program):
        table = torch.export.default_decompositions()
        for operator in registry.operators():
            table.pop(operator, None)
        table.update({operator: decomposition(operator) for operator in separate})
        before = _open_sizes(program)
        try:
            result = program.run_decompositions(table)
        except Exception as error:  # PyTorch's own passes, and functions that make several operators of one
            what = f"PyTorch cannot say the program in other operators: {_reason(error, most=3)}"
            raise _of_any_size(what) from error
    if _open_sizes(result) != before:
        named = ", ".join(str(operator) for operator in separate)
        raise _of_any_size(f"PyTorch decomposes operators for one size alone: {named}", hint="dynamic=None")
    return result


def _of_any_size(what: str, hint: str | None = None) -> UnsupportedError:
    """An error for what PyTorch's passes refuse. A program that they refused is not imported again for other least
    sizes: the passes may already have fixed its symbols to numbers."""
    error = UnsupportedError(what, hint=hint)
    error.any_size = True
    return error


def _refuse_writes_to_windows(graph: torch.fx.Graph) -> None:
    """Raise UnsupportedError if a graph writes through windows (`x.unfold`) that leave elements out: PyTorch writes
    zeros there when it makes the graph functional (2.13)."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.unfold.default):
        x, dim, size, step = node.args
        extent = x.meta["val"].shape[dim] if x.meta["val"].dim() else 1
        if (not isinstance(extent, int) or step != size or extent % step) and _is_written(node):
            what = "writes through windows (Tensor.unfold) that leave elements out are not supported"
            raise UnsupportedError(what, where=node.name, hint="write to x itself, or through reshape or slices of it")


def _is_written(node: torch.fx.Node) -> bool:
    """Whether an operator changes a tensor in place, itself or through views of it."""
    for user in node.users:
        if user.target is getitem and _is_written(user):  # one of several views
            return True
        schema = getattr(user.target, "_schema", None)
        arguments = [] if schema is None else schema.arguments
        for k, argument in enumerate(arguments):
            value = user.args[k] if k < len(user.args) else user.kwargs.get(argument.name)
            alias = argument.alias_info
            if alias is not None and node in (value if isinstance(value, list | tuple) else [value]):
                if alias.is_write or _is_written(user):
                    return True
    return False


def _open_sizes(program: ExportedProgram) -> int:
    """The number of input extents that are symbolic; PyTorch's passes may make some constant."""
    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    sizes = [d for v in values if isinstance(v, torch.Tensor) for d in v.shape]
    return sum(isinstance(d, torch.SymInt) and d.node.maybe_as_int() is None for d in sizes)


def is_composite(target: Any) -> bool:
    """Whether PyTorch can decompose an operator into others."""
    return isinstance(target, torch._ops.OpOverload) and decomposition(target) is not None


def decomposition(operator: Any) -> Any:
    """The decomposition that PyTorch's exporter has for an operator, or else its compiler; None for neither."""
    result = torch.export.default_decompositions()
    return result[operator] if operator in result else decomposition_table.get(operator)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within the context, suppress PyTorch's warnings and log lines; problems are raised as errors."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        # Where a trace fails, PyTorch prints the whole graph before it raises.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Within the context, the module is in evaluation mode; afterwards each submodule has its own mode, buffers and
    values of these again, whatever its code did to them. Exported modules have no modes, and their `eval` raises."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = [
        (part, name, x, x.detach().clone(), _writes(x))
        for part in module.modules()
        for name, x in part._buffers.items()
        if x is not None
    ]
    with contextlib.suppress(NotImplementedError):
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        with torch.no_grad():
            for part, name, x, before, writes in buffers:
                if part._buffers.get(name) is not x:
                    part._buffers[name] = x
                if _writes(x) != writes:
                    x.copy_(before)


def _writes(x: torch.Tensor) -> int:
    """The number of in-place writes to a tensor; 0 for tensors of inference mode, which cannot be written to outside of
    it."""
    return 0 if x.is_inference() else x._version


# What PyTorch adds to its reasons that is of no use here.
_CHATTER = re.compile(
    r"For more information, run with TORCH_LOGS.*|If you're using mark_dynamic.*|The error above occ.*"
)


def _place(error: Exception) -> str:
    """The last line of user code that PyTorch's error names, as "file:line: code"; else the error's first line."""
    match = re.search(r'File "([^"]+)", line (\d+), in \w+\n\s*(.+)', str(error).partition("raised this error")[2])
    return f"{match[1]}:{match[2]}: {match[3].strip()}" if match else str(error).partition("\n")[0]


def _reason(error: Exception, most: int = 12) -> str:
    lines = dict.fromkeys(_CHATTER.sub("", line).rstrip() for line in str(error).strip().splitlines())
    retained = [line for line in lines if line.strip()]
    text = "\n".join(retained[:most]) + ("\n..." if len(retained) > most else "")
    name = type(error).__name__
    return text if name in ("UserError", "ConstraintViolationError") else f"{name}: {text}"
