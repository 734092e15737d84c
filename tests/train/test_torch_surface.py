"""`tw.compile_step` as callers meet it: losses as they have them, errors in their words, weights for their module."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip
from torch.nn import functional as F  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.train import SGD, Adam, losses  # noqa: E402

X, CLASS = torch.linspace(-2, 2, 32).reshape(8, 4), torch.arange(8) % 3
VALUES = torch.linspace(1, -1, 24).reshape(8, 3)
SHARES = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))


def own(output: Any, target: Any) -> Any:
    return (output - target).abs().mean()


LOSSES: dict[str, tuple[Any, Any]] = {
    "cross entropy": (nn.CrossEntropyLoss(), CLASS),
    "weighted and smoothed": (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1), CLASS),
    "cross entropy as a function": (F.cross_entropy, CLASS),
    "of the library": (losses.mse, VALUES),
    "mean square": (nn.MSELoss(), VALUES),
    "huber": (nn.HuberLoss(delta=0.5), VALUES),
    "smooth l1": (nn.SmoothL1Loss(), VALUES),
    "binary": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0])), SHARES),
    "divergence": (nn.KLDivLoss(reduction="batchmean"), SHARES),
    "poisson": (nn.PoissonNLLLoss(), SHARES),
    "margin": (nn.MultiMarginLoss(), CLASS),
    "one's own": (own, VALUES),
    "one's own as a lambda": (lambda output, target: (output * target).mean(), VALUES),
}


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_an_output_and_a_target(name: str) -> None:
    loss, target = LOSSES[name]
    module, eager = model(), model()
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    step = tw.compile_step(module, loss, SGD(0.1), example=(X, target))
    for _ in range(2):
        optimizer.zero_grad()
        expected = loss(eager(X), target)
        expected.backward()
        optimizer.step()
        np.testing.assert_allclose(step(X, target)["loss"], expected.item(), rtol=1e-5)
    assert module.load_state_dict(step.state_dict()) is not None
    for candidate, wanted in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(candidate, wanted, rtol=1e-4, atol=1e-6)


def test_several_inputs_and_a_target() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 3)

        def forward(self, left: Any, right: Any) -> Any:
            return self.one(left) * right

    two = Two()
    step = tw.compile_step(two, nn.MSELoss(), SGD(0.1), example=(X, VALUES, SHARES))
    np.testing.assert_allclose(step(X, VALUES, SHARES)["loss"], F.mse_loss(two(X, VALUES), SHARES).item(), rtol=1e-5)
    with pytest.raises(tw.errors.CallError, match=r"left: f32\[8, 4\], right: f32\[8, 3\], target: f32\[8, 3\], got 2"):
        step(X, VALUES)


class Learnt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: Any, target: Any) -> Any:
        return F.mse_loss(output * self.scale, target)


@pytest.mark.parametrize(("loss", "message"), [
    (Learnt(), "parameters of its own: got scale"),
    (nn.MSELoss, r"expected MSELoss\(\), got class MSELoss"),
    (3, "a function of the model and a batch, a loss module, or several Stage, got 3"),
    ([own], "a function of the model and a batch, a loss module, or several Stage"),
])  # fmt: skip
def test_what_is_no_loss(loss: Any, message: str) -> None:
    with pytest.raises(tw.errors.ModelError, match=message):
        tw.compile_step(model(), loss, SGD(0.1), example=(X, VALUES))


def test_errors_name_the_arrays_as_the_caller_does() -> None:
    """The caller of a step knows nothing of the arrays that it hands on."""
    step = tw.compile_step(model(), lambda m, obs, target: F.mse_loss(m(obs), target), Adam(), example=(X, VALUES))
    for batch, message in {
        (X,): r"batch: expected obs: f32\[8, 4\], target: f32\[8, 3\], got 1",
        (X, VALUES, X): r"obs: f32\[8, 4\], target: f32\[8, 3\], got 3",
        (X, VALUES[:4]): "target",
        (X.double(), VALUES): "obs",
        (X, "text"): "target",
    }.items():
        with pytest.raises(tw.errors.CallError, match=message) as error:
            step(*batch)
        assert not any(word in str(error.value) for word in ("arena", "scalars", "batch_"))


def test_arrays_by_their_names() -> None:
    def steps() -> list[Any]:
        loss = lambda m, obs, aim: F.mse_loss(m(obs), aim)  # noqa: E731
        more = {"accumulate": 2}, {}
        whole = [tw.compile_step(model(), loss, SGD(0.1), example=(X, VALUES), **options) for options in more]
        return [*whole, tw.compile_step(model(), loss, SGD(0.1), example=(X, VALUES), reduce=lambda _: None)]

    for ordered, named in zip(steps(), steps(), strict=True):
        want = ordered(X, VALUES), ordered(X, 2 * VALUES)
        assert (named(X, aim=VALUES), named(aim=2 * VALUES, obs=X)) == want
        with pytest.raises(tw.errors.CallError) as error:
            named(X, target=VALUES)
        assert "expected obs: f32[8, 4], aim: f32[8, 3], got 1 in order, target" in str(error.value)
        for batch, names in (
            ((X,), {"obs": X}),
            ((X, VALUES), {"aim": VALUES}),
            ((), {"obs": X}),
            ((X,), {"arena": X}),
        ):
            with pytest.raises(tw.errors.CallError, match="the names are not those of the batch"):
                named(*batch, **names)
    step = tw.compile_step(model(), nn.MSELoss(), SGD(0.1), example=(X, VALUES))
    np.testing.assert_allclose(step(X, target=VALUES)["loss"], F.mse_loss(model()(X), VALUES).item(), rtol=1e-6)


def test_arrays_may_have_the_names_of_a_step() -> None:
    def loss(m: Any, arena: Any, scalars: Any) -> Any:
        return F.mse_loss(m(arena), scalars)

    module = model()
    step = tw.compile_step(module, loss, SGD(0.1), example=(X, VALUES), accumulate=2)
    np.testing.assert_allclose(step(X, VALUES)["loss"], loss(module, X, VALUES).item(), rtol=1e-5)


def test_arrays_that_the_loss_does_not_read() -> None:
    step = tw.compile_step(model(), lambda m, x, y, unused: F.mse_loss(m(x), y), SGD(0.1), example=(X, VALUES, CLASS))
    assert step(X, VALUES, CLASS)["loss"] > 0


def test_weights_load_whole() -> None:
    """Buffers, counts of batches, parameters that stay and tied ones are in a step's dictionary, strictly."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 3))
    module[2].weight = module[0].weight
    module[3].bias.requires_grad_(False)
    module.register_buffer("table", torch.arange(5))
    eager = copy.deepcopy(module)
    step = tw.compile_step(module, nn.MSELoss(), SGD(0.1), example=(X, VALUES))
    step(X, VALUES)
    state = step.state_dict()
    assert [k for k, v in state.items() if not isinstance(v, torch.Tensor)] == []
    module.load_state_dict(state)
    F.mse_loss(eager(X), VALUES).backward()
    torch.optim.SGD([p for p in eager.parameters() if p.requires_grad], 0.1).step()
    torch.testing.assert_close(dict(module.state_dict()), dict(eager.state_dict()), rtol=1e-4, atol=1e-5)


def test_optimisers_of_pytorch_are_refused_by_name() -> None:
    for wrong in (torch.optim.Adam(model().parameters()), Adam):
        with pytest.raises(tw.errors.ModelError, match=r"no optimiser of a step: got (class )?Adam"):
            tw.compile_step(model(), nn.MSELoss(), wrong, example=(X, VALUES))
