"""`tw.compile_step`: a learning step as one native call.

step = tw.compile_step(model, loss, tw.train.Adam(3e-4), example=(x, y), clip=0.5)
for x, y in batches:
    print(step(x, y)["loss"])
model.load_state_dict(step.state_dict())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

from tilewright.compiler import compile_program, passed
from tilewright.frontend.read import from_torch, import_model
from tilewright.ir.dtype import f32
from tilewright.ir.graph import Graph
from tilewright.ir.interface import Imported
from tilewright.runtime.model import Model
from tilewright.runtime.threads import check_threads
from tilewright.support.collection import uncollected
from tilewright.support.errors import ModelError
from tilewright.support.options import check_choice, check_option, check_several
from tilewright.targets.target import Target
from tilewright.train.optimizers import Adam, Optimizer
from tilewright.train.plan import Group, Objective, StagePlan, StepPlan, check_trained, layout_of
from tilewright.train.program import reached, step_graph
from tilewright.train.reduced import BUCKET, Compiler, Reduce, Update
from tilewright.train.rewritten import rewritten
from tilewright.train.schedules import Schedule
from tilewright.train.stages import Average, Stage
from tilewright.train.step import OnNonfinite, Step
from tilewright.transform.graph.options import Options


@uncollected
def compile_step(
    model: Any,
    loss: Callable[..., Any] | Sequence[Stage] | None = None,
    optimizer: Optimizer | None = None,
    example: Sequence[Any] = (),
    *,
    clip: float | None = None,
    trained: Sequence[str] | None = None,
    groups: Mapping[str, Optimizer] | None = None,
    averages: Sequence[Average] = (),
    accumulate: int = 1,
    reduce: Reduce | None = None,
    bucket: int = BUCKET,
    schedule: Schedule | None = None,
    seed: int = 0,
    fast: str = "f4",
    precision: Literal["fp32", "bf16"] = "fp32",
    symbolic: bool = False,
    memory: str | int | None = "auto",
    threads: int = 1,
    target: Target | str | None = None,
    on_nonfinite: OnNonfinite = "raise",
) -> Step:
    """Compile a learning step: loss, gradients, clipping and update in one native call.

    Args:
        model: a `torch.nn.Module`; a tree of arrays of JAX or NumPy, with a loss in JAX; or a graph whose first output
            is the loss and whose other outputs are metrics: a `(Graph, weights)` pair, or ONNX (a path, bytes, a
            `ModelProto`). Each submodule is traced in its own mode: in training mode, dropout draws random numbers, and
            batch norm uses the batch's statistics and updates its running ones.
        loss: for a module, `loss(model, *batch)` in PyTorch, which returns the loss as one number, or a dict with
            "loss" and metrics; or a loss of an output and a target, such as `torch.nn.CrossEntropyLoss()`, which is
            called with the model's output for all arrays of the batch but the last, and with the last. For a tree,
            `loss(tree, *batch)` in JAX. It is traced once. Or several `Stage`s, which run one after the other within
            the step; each has its own loss, parameters and optimizer.
        optimizer: one of `tilewright.train.optimizers`; Adam if None.
        example: a batch, whose shapes and types every batch has.
        clip: the largest norm of all gradients together, as in `torch.nn.utils.clip_grad_norm_`.
        trained: the names of the parameters to update; None: those of a module that require gradients, else all of f32.
            The arithmetic of updates is f32, or f64 where any of them is; those of 16 bits are rounded after each.
            Names in a tree are paths joined by points. Parameters on which the loss does not depend are not changed.
        groups: other optimizers of the same kind for parameters whose names match a pattern ("*.bias"); the first match
            counts.
        averages: parameters that are moving averages of others (`Average`), as in target networks.
        accumulate: the number of batches whose mean gradient makes one update.
        reduce: a function that changes gradients before the update, such as `tw.train.averaged()` where several
            processes train on parts of a batch. It is called with each bucket of the gradients, a vector of f32 that it
            changes in place, as soon as the bucket is complete in the backward pass. If it returns an object with a
            method `wait`, that is called after the last bucket, so that reductions overlap with the backward pass. With
            `accumulate`, it is only called in steps that update parameters; with several stages, before the update of
            each. Whether a step is finite is decided by the norm of the reduced gradients, so that all processes decide
            alike. A process whose batch does not fit passes NaN, so that the others do not wait for it. If reducing
            fails because another process has ended, the step raises CallError once all reductions that began have
            ended, and changes nothing.
        bucket: the least bytes of a bucket, which consists of whole parameters of one group. Each bucket is a native
            call, which stores the values that later ones read.
        schedule: a function from the number of updates so far to a factor of the learning rates (`tw.train.schedules`).
        seed: of the random numbers of dropout, which also depend on the number of the step.
        fast: which algorithms with fewer multiplications are allowed, as for `tw.compile`: by default those whose error
            is at most 1e-5 of a layer's largest output; "exact" for none.
        precision: "bf16" multiplies matrices in bf16 and adds in f32, forward and backward; parameters, gradients and
            optimizer states stay f32.
        symbolic: whether one step accepts batches of any size from 2 on: for a module, the first dimension of the
            example's arrays.
        memory: the most bytes of a step's temporaries, or a share of what they take otherwise ("0.5x"): to save memory,
            activations are computed again in the backward pass, with the same bits. "auto": as far as the estimated
            time grows by at most a hundredth; None: not at all. `step.show("memory")` shows the plan's peak. Not for
            symbolic batches.
        threads, target: as for `tw.compile`.
        on_nonfinite: what happens if the loss or a gradient is NaN or infinite: "raise" an error or "skip" the step,
            both with parameters as they were, or "keep" the result.

    Raises ModelError listing what is wrong with the model, UnsupportedError with all operators without a gradient.
    """
    check_choice("on_nonfinite", on_nonfinite, get_args(OnNonfinite))
    check_choice("precision", precision, ("fp32", "bf16"))
    if trained is not None:
        check_several("trained", trained, "names of parameters")
        trained = list(trained)
        check_option("trained", next((n for n in trained if not isinstance(n, str)), ""), str, "names of parameters")
    check_option("groups", groups, (Mapping, NoneType), "optimisers by patterns of names")
    check_several("averages", averages, "several Average")
    for each in averages:
        check_option("averages", each, Average, "several Average")
    check_option("example", example, (list, tuple), "a batch: a tuple of arrays")
    check_option("seed", seed, int, "a whole number")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ModelError("an update takes at least one batch", where="accumulate", got=accumulate)
    if loss is not None and not callable(loss):
        check_several("loss", loss, "a function of the model and a batch, a loss module, or several Stage")
        for stage in loss:
            check_option("loss", stage, Stage, "a function of the model and a batch, a loss module, or several Stage")
    if schedule is not None and not callable(schedule):
        check_option("schedule", schedule, NoneType, "a function of tilewright.train.schedules")
    if reduce is not None and not callable(reduce):
        check_option("reduce", reduce, NoneType, "a function, as tilewright.train.averaged()")
    if loss is None or callable(loss):
        objective = _objective(model, loss, example, symbolic)
        stages = [_plan(objective, trained, Adam() if optimizer is None else optimizer, clip, groups or {})]
    else:
        attributes = {"optimizer": optimizer, "clip": clip, "trained": trained, "groups": groups}
        stages = _staged(model, loss, example, symbolic, [n for n, value in attributes.items() if value is not None])
    plan = StepPlan(tuple(stages), tuple(averages), accumulate)
    if accumulate > 1 and len(plan.stages) > 1:
        raise ModelError("gradients of several stages are not gathered", where="accumulate", expected=1, got=accumulate)
    layout = layout_of(plan)
    weights = {name: value for stage in stages for name, value in stage.objective.weights.items()}

    machine = Target.parse(target) if isinstance(target, str) else target or Target.host()
    machine = replace(machine, threads=check_threads(threads))
    options = Options(precision, fast, "all", memory)

    def compiled(graph: Graph) -> Model:
        retained = {v.name: weights[v.name] for v in graph.params}
        program = compile_program(
            Imported(graph, retained),
            threads=threads,
            target=machine,
            precision=precision,
            fast=fast,
            products="all",
            memory=memory,
        )
        return Model(program, threads=threads)

    first = next(plan.kinds())
    if reduce is not None and layout.arena.dtype is not f32:
        raise ModelError("gradients of f64 are not reduced", where="reduce", got=layout.arena.dtype.name)
    if reduce is not None:
        compiler = Compiler(lambda graph: passed(graph, machine, options), compiled)
        update = Update.of(plan, layout, compiler, reduce, bucket)
        main = update.stages[0].back.sections[0].model
        return Step({first: main}, None, plan, layout, on_nonfinite, schedule, seed, update)
    models = {active: compiled(step_graph(plan, layout, active)) for active in plan.kinds()}
    gather = compiled(step_graph(plan, layout, first, True)) if accumulate > 1 else None
    return Step(models, gather, plan, layout, on_nonfinite, schedule, seed)


def _plan(
    objective: Objective,
    trained: Sequence[str] | None,
    optimizer: Optimizer,
    clip: float | None,
    groups: Mapping[str, Optimizer],
) -> StagePlan:
    chosen = list(objective.movable) if trained is None else list(trained)
    unknown = sorted(set(chosen) - {v.name for v in objective.graph.params})
    if unknown:
        known = ", ".join(v.name for v in objective.graph.params)
        raise ModelError("no parameter has this name", expected=known, got=", ".join(unknown))
    for each in (optimizer, *groups.values()):
        if isinstance(each, type) or not hasattr(each, "scalars"):
            hint = "tilewright.train has SGD, Adam, AdamW, RMSprop and Lion"
            got = f"class {each.__name__}" if isinstance(each, type) else type(each).__qualname__
            raise ModelError("no optimiser of a step", got=got, hint=hint)
    check_option("clip", clip, (int, float, NoneType), "the largest norm of the gradients")
    if clip is not None and not clip >= 0:
        raise ModelError("no length that gradients could be clipped to", where="clip", got=clip)
    check_trained(objective.graph, set(chosen))
    sources = [v for v in objective.graph.params if v.name in set(chosen)]
    objective = replace(objective, graph=rewritten(objective.graph, sources))
    moved = reached(objective, chosen)
    if not moved:
        raise ModelError("the loss depends on nothing that is trained", got=", ".join(chosen) or "no parameters")
    return StagePlan(objective, _groups(moved, optimizer, groups), clip)


def _staged(
    model: Any, stages: Sequence[Stage], example: Sequence[Any], symbolic: bool, arguments: Sequence[str]
) -> list[StagePlan]:
    """The plans of several stages, whose losses are traced with the batch `example`, with symbolic sizes if `symbolic`.
    Raises ModelError for `arguments` of the step that belong to stages, for names that are not unique, and for patterns
    that match no parameter."""
    if arguments:
        raise ModelError("stands with each stage", got=", ".join(arguments))
    if not stages or len({stage.name for stage in stages}) < len(stages):
        raise ModelError("stages have names of their own", got=", ".join(stage.name for stage in stages) or "no stage")
    if min(stage.every for stage in stages) != 1:
        raise ModelError("a stage takes part in every update", got=", ".join(str(stage.every) for stage in stages))
    results = []
    for stage in stages:
        objective = _objective(model, stage.loss, example, symbolic)
        names = [n for n in objective.movable if any(fnmatchcase(n, pattern) for pattern in stage.trained)]
        if not names:
            expected, got = ", ".join(objective.movable), ", ".join(stage.trained)
            raise ModelError("no parameter matches", where=f"stage {stage.name}", expected=expected, got=got)
        objective = replace(objective, metrics=(f"{stage.name}_loss", *objective.metrics[1:]))
        plan = _plan(objective, names, stage.optimizer, stage.clip, stage.groups)
        results.append(replace(plan, norm=f"{stage.name}_gradient_norm", every=stage.every))
    return results


def _objective(model: Any, loss: Callable[..., Any] | None, example: Sequence[Any], symbolic: bool) -> Objective:
    if from_torch(model) or not (callable(loss) or _has_loss(model)):
        from tilewright.train.torch_loss import traced

        return traced(model, loss, example, symbolic)
    if symbolic:
        raise ModelError("batches of any size are for modules", where="symbolic", got=type(model).__name__)
    if callable(loss):
        from tilewright.train import jax_loss

        return jax_loss.traced(model, loss, example)
    read = import_model(model)
    metrics = ("loss", *(v.name for v in read.graph.outputs[1:]))
    movable = tuple(v.name for v in read.graph.params if v.dtype.name == "f32")
    return Objective(read.graph, read.weights, metrics, movable)


def _has_loss(model: Any) -> bool:
    """Whether a model can compute its loss itself: it is a graph with weights, or ONNX."""
    return isinstance(model, tuple | str | bytes | Path) or type(model).__module__.partition(".")[0] == "onnx"


def _groups(names: Sequence[str], optimizer: Optimizer, groups: Mapping[str, Optimizer]) -> tuple[Group, ...]:
    """The parameters `names` grouped by the first pattern in `groups` that they match; the first group, with the step's
    own optimiser, has those that match none. Raises ModelError for patterns without a match."""
    result: dict[str | None, list[str]] = {None: [], **{pattern: [] for pattern in groups}}
    for name in names:
        result[next((p for p in groups if fnmatchcase(name, p)), None)].append(name)
    empty = [pattern for pattern in groups if not result[pattern]]
    if empty:
        raise ModelError("no parameter matches", where="groups", expected=", ".join(names), got=", ".join(empty))
    return tuple(
        Group(optimizer if pattern is None else groups[pattern], tuple(members)) for pattern, members in result.items()
    )


__all__ = ["compile_step"]
