"""`Stage` and `Average`: the parts of a learning step with several losses.

    stages = [tw.train.Stage("critic", critic_loss, ["critic.*"]), tw.train.Stage("actor", actor_loss, ["actor.*"])]
    step = tw.compile_step(model, stages, example=batch, averages=[tw.train.Average("target.", "critic.", 0.005)])

Stages run one after another within a step, and each reads the parameters as updated by those before it. Losses whose
parameters shall be updated simultaneously are one stage with the sum of the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.support.options import check_option, check_several, described
from tilewright.train.optimizers import Adam, Optimizer, check_numbers


@dataclass(frozen=True, slots=True)
class Stage:
    """A loss and the parameters that its gradient updates.

    name       of its metrics: `NAME_loss` and `NAME_gradient_norm`
    loss       `loss(model, *batch)` in PyTorch, as of `compile_step`: one number, or a dict with "loss" and metrics
    trained    patterns of the names of its parameters ("critic.*"); no parameter belongs to two stages
    optimizer  of `tilewright.train.optimizers`; all of a step keep the same state
    clip       the largest norm of its gradients together; None: any
    groups     other optimisers for parameters whose names match a pattern
    every      it takes part in every n-th update: the n-th, the 2n-th, ...
    """

    name: str
    loss: Callable[..., Any]
    trained: Sequence[str]
    optimizer: Optimizer = field(default_factory=Adam)
    clip: float | None = None
    groups: Mapping[str, Optimizer] = field(default_factory=dict)
    every: int = 1

    def __post_init__(self) -> None:
        check_option("Stage.name", self.name, str, "a name")
        if not callable(self.loss):
            expected, got = "a function: loss(model, *batch)", described(self.loss)
            raise ModelError("the argument makes no sense", where="Stage.loss", expected=expected, got=got)
        check_several("Stage.trained", self.trained, "patterns of names of parameters")
        _check_every("Stage", self.every, 1)


@dataclass(frozen=True, slots=True)
class Average:
    """Parameters that are moving averages of others (Polyak): target = (1 - tau) target + tau source, after the last
    stage.

    target, source  the prefixes of the names of averages and of their sources ("critic_target.", "critic.")
    tau             the share of the new; 1 copies
    every           it takes part in every n-th update; 0 in none: the caller updates the averages
    """

    target: str
    source: str
    tau: float = 0.005
    every: int = 1

    def __post_init__(self) -> None:
        for name in ("target", "source"):
            check_option(f"Average.{name}", getattr(self, name), str, "how names begin")
        check_numbers("Average", tau=self.tau)
        if self.tau > 1:
            raise ModelError("the argument makes no sense", where="Average.tau", expected="0 to 1", got=self.tau)
        _check_every("Average", self.every, 0)


def _check_every(where: str, every: Any, least: int) -> None:
    if not isinstance(every, int) or isinstance(every, bool) or every < least:
        expected = f"a whole number from {least} on"
        raise ModelError("the argument makes no sense", where=f"{where}.every", expected=expected, got=described(every))
