"""The first phase of an audit: layers compiled, their kernels' estimates noted."""

from __future__ import annotations

from benchmarks.audit.records import Compiled, Estimated, Records
from benchmarks.random_layers import Layer, lowered
from tilewright.compiler import compile_program
from tilewright.plans import plan
from tilewright.runtime.program import Program
from tilewright.support.errors import Error
from tilewright.targets.target import Target


def compile_layer(number: int, layer: Layer, target: Target, records: Records) -> None:
    """Compile a layer as users do ("auto") and with exact algorithms only, and keep the programs."""
    try:
        row = _compiled(number, layer, target, records)
    except Error as error:
        row = Compiled(number, layer.kind, layer.name, error=f"{type(error).__name__}: {error}")
    records.add(row)


def _compiled(number: int, layer: Layer, target: Target, records: Records) -> Compiled:
    weights = layer.weights()
    auto, exact = (compile_program((layer.graph, weights), target=target, fast=fast) for fast in ("auto", "exact"))
    differs = _kernels(auto) != _kernels(exact)
    auto.save(records.program(number, "auto"), texts=())
    if differs:
        exact.save(records.program(number, "exact"), texts=())
    return Compiled(number, layer.kind, layer.name, _estimates(layer, auto, target), differs)


def _kernels(program: Program) -> list[tuple[str, str]]:
    return [(step.kernel, step.label) for step in program.manifest.run_steps]


def _estimates(layer: Layer, program: Program, target: Target) -> tuple[Estimated, ...]:
    """The estimates of a call's kernels; none where the compiler groups them in another way, as for views."""
    run, _ = lowered(layer, target)
    if [k.label for k in run] != [label for _, label in _kernels(program)]:
        return ()
    results = []
    for kernel in run:
        planned = plan(kernel.func, target)
        cost = planned.chosen.cost or planned.least
        seconds = cost.cycles / target.frequency / 1e9
        results.append(Estimated(kernel.label, planned.plan, planned.chosen.label, cost.bound, seconds))
    return tuple(results)
