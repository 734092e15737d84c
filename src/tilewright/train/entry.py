"""`tw.compile_step`: a learning step as one native call.

step = tw.compile_step(model, loss, tw.train.Adam(3e-4), example=(x, y), clip=0.5)
for x, y in batches:
    print(step(x, y)["loss"])
model.load_state_dict(step.state_dict())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from tilewright.compiler import compile_program, import_model
from tilewright.frontend.common.finish import Imported
from tilewright.ir.graph import Graph
from tilewright.runtime.model import Model
from tilewright.support.errors import ModelError
from tilewright.targets.target import Target
from tilewright.train.optimizers import Adam, Optimizer
from tilewright.train.program import Group, Objective, StepPlan, layout_of, reached, step_graph
from tilewright.train.schedules import Schedule
from tilewright.train.step import OnNonfinite, Step


def compile_step(
    model: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer | None = None,
    example: Sequence[Any] = (),
    *,
    clip: float | None = None,
    trained: Sequence[str] | None = None,
    groups: Mapping[str, Optimizer] | None = None,
    accumulate: int = 1,
    schedule: Schedule | None = None,
    seed: int = 0,
    fast: str = "f4",
    precision: Literal["fp32", "bf16"] = "fp32",
    symbolic: bool = False,
    memory: str | int | None = None,
    threads: int = 1,
    target: Target | str | None = None,
    on_nonfinite: OnNonfinite = "raise",
) -> Step:
    """Compile a learning step: loss, gradients, clipping and update in one native call.

    Args:
        model: a `torch.nn.Module`, or a `(Graph, weights)` pair whose first output is the loss and the others metrics.
            Each part of a module is traced in its own mode: in training, dropout draws, and batch norm takes the
            batch's statistics and moves its running ones.
        loss: of a module: `loss(model, *batch)` in PyTorch gives the loss as one number, or a dict with "loss" and
            metrics beside it. It is traced once.
        optimizer: of `tilewright.train.optimizers`; Adam if None.
        example: a batch, whose shapes and types every batch has.
        clip: the largest norm of all gradients together, as `torch.nn.utils.clip_grad_norm_`.
        trained: the parameters that move; None: of a module those that require gradients, of a graph all of f32.
            Parameters that the loss does not depend on stay.
        groups: other optimisers of the same kind for parameters whose names match a pattern ("*.bias"); the first that
            matches counts.
        accumulate: how many batches make one update, by the mean of their gradients.
        schedule: what the learning rates are multiplied by, from the number of updates so far (`tw.train.schedules`).
        seed: what the random numbers of dropout depend on, beside the number of the step.
        fast: which algorithms with fewer multiplications may be taken, as for `tw.compile`: by default those that keep
            a layer within 1e-5 of its largest output; "exact" for none.
        precision: "bf16" multiplies matrices in bf16 and sums in f32, forward and backward; parameters, gradients and
            what the optimiser keeps stay f32.
        symbolic: whether one step serves batches of any size: of a module, the first dimension of the example's arrays.
        memory: bytes that a step's temporaries may take, or a share of what they take otherwise ("0.5x"): activations
            are computed again on the way back rather than kept, with the same bits. `step.show("memory")` tells the
            plan's peak. Not for symbolic batches.
        threads, target: as for `tw.compile`.
        on_nonfinite: what becomes of a step whose loss or gradient is NaN or infinite: "raise" an error or "skip" it,
            both with parameters as they were, or "keep" it.

    Raises ModelError listing what is wrong with the model, UnsupportedError with all operators without a gradient.
    """
    optimizer = optimizer or Adam()
    if on_nonfinite not in get_args(OnNonfinite):
        raise ModelError("on_nonfinite is not known", expected=" or ".join(get_args(OnNonfinite)), got=on_nonfinite)
    if precision not in ("fp32", "bf16"):
        raise ModelError("no such precision of a learning step", expected="fp32 or bf16", got=repr(precision))
    if accumulate < 1:
        raise ModelError("an update takes at least one batch", where="accumulate", got=accumulate)
    objective = _objective(model, loss, example, symbolic)
    chosen = list(objective.movable) if trained is None else list(trained)
    unknown = sorted(set(chosen) - {v.name for v in objective.graph.params})
    if unknown:
        known = ", ".join(v.name for v in objective.graph.params)
        raise ModelError("no parameter has this name", expected=known, got=", ".join(unknown))
    plan = StepPlan(_groups(reached(objective, chosen), optimizer, groups or {}), clip, accumulate)
    layout = layout_of(objective, plan)

    def compiled(graph: Graph) -> Model:
        kept = {v.name: objective.weights[v.name] for v in graph.params}
        program = compile_program(
            Imported(graph, kept),
            threads=threads,
            target=target,
            precision=precision,
            fast=fast,
            products="all",
            memory=memory,
        )
        return Model(program, threads=threads)

    whole = compiled(step_graph(objective, plan, layout))
    gather = compiled(step_graph(objective, plan, layout, gathers=True)) if accumulate > 1 else None
    return Step(whole, gather, objective, plan, layout, on_nonfinite, schedule, seed)


def _objective(model: Any, loss: Callable[..., Any] | None, example: Sequence[Any], symbolic: bool) -> Objective:
    if not isinstance(model, tuple):
        from tilewright.train.torch_loss import traced

        return traced(model, loss, example, symbolic)
    read = import_model(model)
    metrics = ("loss", *(v.name for v in read.graph.outputs[1:]))
    movable = tuple(v.name for v in read.graph.params if v.dtype.name == "f32")
    return Objective(read.graph, read.weights, metrics, movable)


def _groups(names: Sequence[str], optimizer: Optimizer, groups: Mapping[str, Optimizer]) -> tuple[Group, ...]:
    """The parameters by the first pattern that they match; first those that match none."""
    found: dict[str | None, list[str]] = {None: [], **{pattern: [] for pattern in groups}}
    for name in names:
        found[next((p for p in groups if fnmatchcase(name, p)), None)].append(name)
    empty = [pattern for pattern in groups if not found[pattern]]
    if empty:
        raise ModelError("no parameter matches", where="groups", expected=", ".join(names), got=", ".join(empty))
    return tuple(
        Group(optimizer if pattern is None else groups[pattern], tuple(members)) for pattern, members in found.items()
    )


__all__ = ["compile_step"]
