"""The deterministic part of a policy as a module of its own, to be compiled under the policy's own names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tilewright.runtime.model import Model

if TYPE_CHECKING:
    from tilewright.ir.selection import Precision

Tensors = Mapping[str, torch.Tensor]


class Part(nn.Module):
    """A function of tensors as a module, with the parameters of the module that it belongs to.

    The owner's dictionaries are shared, not copied: weights have the names that the owner's `state_dict()` gives them,
    and the owner is not touched. It is compiled in evaluation mode, if the owner is in it.

    Args:
        owner: the module whose parameters the function reads.
        inputs: names of the tensors that the function takes, which become those of the inputs.
        function: a dict of tensors in, a dict of tensors out, whose keys become the names of the outputs.
    """

    def __init__(self, owner: nn.Module, inputs: Iterable[str], function: Callable[[Tensors], Tensors]) -> None:
        super().__init__()
        for name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[name] = getattr(owner, name)
        self.training = owner.training
        names = list(inputs)

        def forward(*args: torch.Tensor, **kwargs: torch.Tensor) -> Tensors:
            return function(dict(zip(names, args, strict=False)) | kwargs)

        # The arguments have names, which export asks for; they are this object's, not the class's.
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


def compile_part(part: Part, examples: Tensors, *, name: str, threads: int = 1, precision: Precision = "fp32") -> Model:
    """Compile the module `part`, called `name`, whose inputs (of which `examples` has one array each, by name) and
    outputs have the batch in front, of any size, for `threads` threads. `precision`: as for `tw.compile`; codes and
    scales of weights are computed again with each version."""
    from tilewright.compiler import compile_program  # workers that only read a store do without

    dims = {key: {0: "batch"} for key in examples}
    with torch.no_grad():
        program = compile_program(part, dict(examples), dynamic=dims, name=name, threads=threads, precision=precision)
    return Model(program, threads=threads)


def weights_of(owner: nn.Module, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
    """The present weights of `owner` called `names` (None: all), in CPU memory. They are to be read before it trains
    on."""
    state: dict[str, Any] = owner.state_dict()
    return {name: state[name].detach().cpu() for name in (state if names is None else names)}


class Watch:
    """Tells whether a module's weights have changed, from the version counters that PyTorch keeps for its tensors.

    Every write in place moves a counter, and an object that was put in a tensor's place is another object. Fused
    optimizers move none: the optimizers' own steps count too. Other writes through `.data` are not noticed.

    Args:
        owner: the module.
        optimizers: those that change it.
    """

    def __init__(self, owner: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        self._owner = owner
        self._slots: list[tuple[dict[str, Any], str, Any]] = []
        self._sum = 0
        self._stepped = False
        self._handles = [optimizer.register_step_post_hook(self._step) for optimizer in optimizers]
        self.look()

    def look(self) -> None:
        """Remember the present tensors of the owner and their version counters, with which `changed` compares later
        ones."""
        tables = [t for m in self._owner.modules() for t in (m._parameters, m._buffers)]
        self._slots = [
            (table, name, tensor) for table in tables for name, tensor in table.items() if tensor is not None
        ]
        self._sum = self._now()
        self._stepped = False

    def recheck(self) -> None:
        """Do what `look` does without walking the modules, unless tensors were replaced since."""
        self._sum = self._now()
        self._stepped = False
        if self._sum < 0:
            self.look()

    def changed(self) -> bool:
        """Whether one of the owner's weights was written to or replaced, or an optimizer has run, since the last `look`
        or `recheck`."""
        return self._stepped or self._now() != self._sum

    def close(self) -> None:
        """Remove the hooks from the optimizers, whose steps are not noticed afterwards. Does nothing the second
        time."""
        for handle in self._handles:
            handle.remove()

    def _step(self, *_: Any) -> None:
        self._stepped = True

    def _now(self) -> int:
        # Counters only grow, and so does their sum.
        total = 0
        for table, name, tensor in self._slots:
            if table[name] is not tensor:
                return -1
            total += tensor._version
        return total
