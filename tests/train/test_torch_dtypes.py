"""Steps of modules whose parameters are f64, bf16, f16 or mixed, against eager PyTorch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")
from torch import nn  # noqa: E402  after what may skip

import tilewright as tw  # noqa: E402


class As(nn.Module):  # type: ignore[misc,name-defined]
    """A conversion to a type."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Any) -> Any:
        return x.to(self.kind)


def layers() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))


def mixed(*kinds: Any) -> Any:
    """A layer of each type, one after the other."""
    torch.manual_seed(0)
    return nn.Sequential(*(m for kind in kinds for m in (As(kind), nn.Linear(5, 5, dtype=kind), nn.Tanh())))


def batches(count: int, *shape: int, kind: Any) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, *shape, generator=generator).to(kind) for _ in range(count)]


def loss_of(model: Any, x: Any) -> Any:
    return (model(x) ** 2).mean()


def eager(
    model: Any, optimizer: Any, several: list[Any], clip: float | None = None, accumulate: int = 1
) -> list[float]:
    losses = []
    for k, x in enumerate(several):
        loss = loss_of(model, x)
        (loss / accumulate).backward()
        losses.append(loss.item())
        if (k + 1) % accumulate == 0:
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("options", [{}, {"clip": 0.1}, {"accumulate": 2}], ids=str)
def test_steps_of_f64(options: dict[str, Any], tmp_path: Path) -> None:
    """Within roundings of f64, with running statistics, and in files."""
    model = layers().double()
    several = batches(4, 2, 8, 8, kind=torch.float64)
    step = tw.compile_step(model, loss_of, tw.train.SGD(0.1, momentum=0.9), example=several[:1], **options)
    losses = [step(x)["loss"] for x in several]
    want = eager(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), several, **options)
    np.testing.assert_allclose(losses, want, rtol=1e-13)
    result = step.state_dict()
    for name, value in model.state_dict().items():
        assert result[name].dtype == value.dtype
        torch.testing.assert_close(result[name], value, rtol=1e-12, atol=1e-14)
    step.save(tmp_path / "step.safetensors")
    step.load_state_dict({name: value * 0 for name, value in result.items()})
    step.load(tmp_path / "step.safetensors")
    assert all(torch.equal(value, result[name]) for name, value in step.state_dict().items())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_steps_of_16_bits(kind: Any) -> None:
    """Losses and parameters within roundings of these types, in which the parameters are."""
    model = layers().to(kind)
    unit = torch.finfo(kind).eps
    several = batches(3, 2, 8, 8, kind=kind)
    step = tw.compile_step(model, loss_of, tw.train.SGD(0.1), example=several[:1])
    losses = [step(x)["loss"] for x in several]
    want = eager(model, torch.optim.SGD(model.parameters(), 0.1), several)
    np.testing.assert_allclose(losses, want, rtol=4 * unit)
    result = step.state_dict()
    for name, value in model.state_dict().items():
        assert result[name].dtype == value.dtype
        torch.testing.assert_close(result[name], value, rtol=4 * unit, atol=unit / 4)
    for name, array in step.parameters.items():
        np.testing.assert_array_equal(torch.from_numpy(array).to(kind).float().numpy(), array, err_msg=name)
    step.load_state_dict(model.state_dict())
    assert all(torch.equal(value, step.state_dict()[name]) for name, value in model.state_dict().items())


def test_gradients_of_bf16_are_eager_pytorchs() -> None:
    """One step with a rate of 1 from zeros is the gradient, rounded once more."""
    model = nn.Linear(16, 3, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.zero_()
    (x,) = batches(1, 16, kind=torch.bfloat16)
    loss = lambda m, x: (m(x) - 1).pow(2).mean()  # noqa: E731
    step = tw.compile_step(model, loss, tw.train.SGD(1.0), example=(x,))
    step(x)
    loss(model, x).backward()
    torch.testing.assert_close(step.state_dict()["weight"], -model.weight.grad, rtol=2**-7, atol=2**-9)


def test_steps_too_small_for_the_type_vanish() -> None:
    model = nn.Linear(4, 4).bfloat16()
    before = copy.deepcopy(model.state_dict())
    (x,) = batches(1, 4, kind=torch.bfloat16)
    step = tw.compile_step(model, loss_of, tw.train.SGD(1e-7), example=(x,))
    for _ in range(3):
        step(x)
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict().items())


def test_parameters_of_several_types() -> None:
    kinds = (torch.float32, torch.bfloat16, torch.float64, torch.float32)
    model = mixed(*kinds)
    several = batches(3, 5, kind=torch.float32)
    step = tw.compile_step(model, loss_of, tw.train.SGD(0.1), example=several[:1])
    losses = [step(x)["loss"] for x in several]
    want = eager(model, torch.optim.SGD(model.parameters(), 0.1), several)
    np.testing.assert_allclose(losses, want, rtol=2**-6)
    for name, value in model.state_dict().items():
        assert step.state_dict()[name].dtype == value.dtype
        torch.testing.assert_close(step.state_dict()[name], value, rtol=2**-6, atol=2**-9)


@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_parameters_that_are_loaded_are_rounded(source: Any, tmp_path: Path) -> None:
    """PyTorch rounds them so; those of a file of a step of a wider type, too. Updates begin there."""
    model, wide = nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4).to(source)
    (x,) = batches(1, 4, kind=torch.bfloat16)
    step, other = (
        tw.compile_step(m, loss_of, tw.train.SGD(1e-4), example=(v,)) for m, v in ((model, x), (wide, x.to(source)))
    )
    step.load_state_dict(wide.state_dict())
    model.load_state_dict(wide.state_dict())
    before = {name: value.float().numpy() for name, value in model.state_dict().items()}
    for name, array in step.parameters.items():
        np.testing.assert_array_equal(array, before[name])
    other.save(tmp_path / "step.safetensors")
    step.load_state_dict({name: value * 0 for name, value in before.items()})
    step.load(tmp_path / "step.safetensors")
    for name, array in step.parameters.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_views_but_for_narrow_types(kind: Any) -> None:
    """Steps train 16 bits in f32, so that the parameters in their own type are rounded copies."""
    model = nn.Linear(4, 4).to(kind)
    (x,) = batches(1, 4, kind=kind)
    step = tw.compile_step(model, loss_of, tw.train.SGD(0.1), example=(x,))
    for name, array in step.parameters.items():
        assert np.shares_memory(step.weights[name], array) == (kind is torch.float32)
        assert torch.equal(step.state_dict()[name].float(), torch.tensor(array).to(kind).float())
