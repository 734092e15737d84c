"""`tw.compile_step`: a learning step as one native call.

    step = tw.compile_step(model, loss, tw.train.Adam(3e-4), example=(x, y), clip=0.5)
    for x, y in batches:
        print(step(x, y)["loss"])
    model.load_state_dict(step.state_dict())

The parameters, what the optimiser keeps and the new values of both are two arenas that take turns: a step reads one and
writes the other. A batch that gives NaN or infinity leaves no trace if the step is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tilewright.compiler import compile_program, import_model
from tilewright.frontend.common.finish import Imported
from tilewright.runtime.model import Model
from tilewright.support.errors import CallError, ModelError
from tilewright.targets.target import Target
from tilewright.train.optimizers import Optimizer
from tilewright.train.program import step_graph

Array = np.ndarray[Any, Any]
OnNonfinite = Literal["raise", "skip", "keep"]


class Step:
    """A compiled learning step. `count` is the number of steps taken, `lr` the learning rate of the next one."""

    def __init__(
        self, model: Model, arena: Any, optimizer: Optimizer, metrics: Sequence[str], on_nonfinite: OnNonfinite
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.metrics = tuple(metrics)
        self.on_nonfinite = on_nonfinite
        self.count = 0
        self.lr: float = optimizer.lr
        self._arena = arena
        self._memory = [arena.empty(), arena.empty()]
        self._scalars = np.zeros(len(optimizer.scalars(1, self.lr)), np.float32)
        self._results = [np.zeros([int(d) for d in s.shape], np.float32) for s in model.outputs[:-1]]

    def __call__(self, *batch: Any) -> dict[str, float]:
        """Take a step on a batch: arrays in the order of the example. Gives the loss, the metrics, and
        `gradient_norm`, the norm of all gradients together before they were clipped.

        Raises CallError for arrays that do not fit, and with `on_nonfinite="raise"` where the loss or a gradient is
        NaN or infinite; parameters are then as they were.
        """
        now, after = self._memory
        self._scalars[:] = self.optimizer.scalars(self.count + 1, self.lr)
        self.model(*batch, now, self._scalars, out=(*self._results, after))
        found = {name: float(r.reshape(-1)[0]) for name, r in zip(self.metrics, self._results, strict=True)}
        if self.on_nonfinite != "keep" and not (math.isfinite(found["loss"]) and math.isfinite(found["gradient_norm"])):
            if self.on_nonfinite == "raise":
                got = f"loss {found['loss']}, norm of the gradients {found['gradient_norm']}"
                raise CallError("the step is not finite; parameters are as they were", where="step", got=got)
            return found
        self._memory.reverse()
        self.count += 1
        return found

    @property
    def parameters(self) -> dict[str, Array]:
        """The parameters by name, in the arena's memory: they hold until the next step."""
        found: dict[str, Array] = self._arena.views(self._memory[0])
        return found

    def state_dict(self) -> dict[str, Array]:
        """Copies of the parameters by name."""
        return {name: array.copy() for name, array in self.parameters.items()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Take other parameters; what the optimiser keeps stays.

        Raises ModelError, before anything has changed, if names or shapes are others.
        """
        self._arena.fill(self._memory[0], {name: _array(value) for name, value in values.items()})

    def save(self, path: str | Path) -> None:
        """Write parameters, the optimiser's state and the number of steps to a safetensors file."""
        from safetensors.numpy import save_file

        arrays = {
            f"{part}/{name}": array.copy()
            for k, part in enumerate(("parameter", *self._arena.state))
            for name, array in self._arena.views(self._memory[0], k).items()
        }
        save_file(arrays, path, {"count": str(self.count), "lr": repr(self.lr)})

    def load(self, path: str | Path) -> None:
        """Go on where `save` was called: the next steps are the same, bit by bit.

        Raises ModelError, before anything has changed, for a file of another step.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no dictionary
                facts = file.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise ModelError("the file of a step cannot be read", where=str(path), got=str(error)) from None
        parts = ("parameter", *self._arena.state)
        expected = {f"{part}/{name}" for part in parts for name in self._arena.names}
        if arrays.keys() != expected or not facts.get("count", "").isdecimal():
            wrong = ", ".join(sorted(arrays.keys() ^ expected)) or "no count"
            raise ModelError("the file is of another step", where=str(path), got=wrong)
        memory = self._arena.empty()
        for k, part in enumerate(parts):
            self._arena.fill(memory, {name: arrays[f"{part}/{name}"] for name in self._arena.names}, k)
        try:
            lr = float(facts.get("lr", ""))
        except ValueError:
            raise ModelError("the file is of another step", where=str(path), got="no learning rate") from None
        self._memory[0], self.count, self.lr = memory, int(facts["count"]), lr

    def show(self, stage: str) -> str:
        """As `Model.show`."""
        return self.model.show(stage)


def compile_step(
    model: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer | None = None,
    example: Sequence[Any] = (),
    *,
    clip: float | None = None,
    trained: Sequence[str] | None = None,
    threads: int = 1,
    target: Target | str | None = None,
    on_nonfinite: OnNonfinite = "raise",
) -> Step:
    """Compile a learning step: loss, gradients, clipping and update in one native call.

    Args:
        model: a `torch.nn.Module`, or a `(Graph, weights)` pair whose first output is the loss and the others metrics.
        loss: of a module: `loss(model, *batch)` in PyTorch gives the loss as one number, or a dict with "loss" and
            metrics beside it. It is traced once, in evaluation mode.
        optimizer: of `tilewright.train.optimizers`; Adam if None.
        example: a batch, whose shapes and types every batch has.
        clip: the largest norm of all gradients together, as `torch.nn.utils.clip_grad_norm_`.
        trained: the parameters that move; None: of a module those that require gradients, of a graph all of f32.
        threads, target: as for `tw.compile`.
        on_nonfinite: what becomes of a step whose loss or gradient is NaN or infinite: "raise" an error or "skip" it,
            both with parameters as they were, or "keep" it.

    Raises ModelError listing what is wrong with the model, UnsupportedError with all operators without a gradient.
    """
    from tilewright.train.optimizers import Adam

    optimizer = optimizer or Adam()
    if on_nonfinite not in get_args(OnNonfinite):
        raise ModelError("on_nonfinite is not known", expected=" or ".join(get_args(OnNonfinite)), got=on_nonfinite)
    if isinstance(model, tuple):
        read = import_model(model)
        metrics: Sequence[str] = ("loss", *(v.name for v in read.graph.outputs[1:]))
        movable = [v.name for v in read.graph.params if v.dtype.name == "f32"]
    else:
        from tilewright.train.torch_loss import traced

        read, metrics, movable = traced(model, loss, example)
    chosen = movable if trained is None else list(trained)
    unknown = sorted(set(chosen) - {v.name for v in read.graph.params})
    if unknown:
        known = ", ".join(v.name for v in read.graph.params)
        raise ModelError("no parameter has this name", expected=known, got=", ".join(unknown))
    made = step_graph(read.graph, chosen, optimizer, clip)
    kept = {v.name: read.weights[v.name] for v in made.graph.params}
    # Winograd's and Strassen's transforms of weights that change each call cost what they save.
    program = compile_program(Imported(made.graph, kept), threads=threads, target=target, fast="exact")
    step = Step(Model(program, threads=threads), made.arena, optimizer, (*metrics, "gradient_norm"), on_nonfinite)
    step.load_state_dict({name: read.weights[name] for name in made.arena.names})
    return step


def _array(value: Any) -> Array:
    """An array of a tensor of any framework."""
    detach = getattr(value, "detach", None)
    return np.asarray(value if detach is None else detach().cpu())


__all__ = ["Step", "compile_step"]
