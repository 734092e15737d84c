"""Modules in training mode: running statistics and counts of batches against eager PyTorch, the law of dropout."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip
from torch.nn import functional as F  # noqa: E402

import tilewright as tw  # noqa: E402
from benchmarks.torch_vision import BasicBlock, ResNet  # noqa: E402
from tilewright.train.entry import compile_step  # noqa: E402
from tilewright.train.optimizers import SGD, Adam  # noqa: E402

STEPS = 12


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x), y)


class Residual(nn.Module):
    """Two of ResNet's blocks with their stem and head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.one = self.block(8, 8, 1)
        self.two = self.block(8, 16, 2)
        self.way = nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 3)

    @staticmethod
    def block(inputs: int, outputs: int, stride: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs, momentum=0.3, eps=1e-3),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = torch.relu(x + self.one(x))
        return self.head(torch.relu(self.way(x) + self.two(x)).mean((2, 3)))


class Functions(nn.Module):  # type: ignore[misc,name-defined]
    """Norms as functions, which change buffers and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(15, 3)
        for name in ("mean", "mean_of_instances"):
            self.register_buffer(name, torch.zeros(3))
        for name in ("var", "var_of_instances"):
            self.register_buffer(name, torch.ones(3))

    def forward(self, x: Any) -> Any:
        x = nn.functional.batch_norm(x, self.mean, self.var, training=self.training)
        x = nn.functional.instance_norm(
            x + self.mean[:, None], self.mean_of_instances, self.var_of_instances, use_input_stats=self.training
        )
        return self.head(x.flatten(1))


class Moments(Functions):
    """The statistics of norms are read, which have no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        _, mean, deviation = torch.native_layer_norm(x, (5,), None, None, 1e-5)
        _, group, _ = torch.native_group_norm(x, None, None, len(x), 3, 5, 1, 1e-5)
        means = mean * deviation + group[:, :, None]
        x = nn.functional.batch_norm(x, self.mean, self.var, training=self.training)
        x = x * self.var[:, None] + self.mean[:, None]
        running = self.mean_of_instances, self.var_of_instances
        x = nn.functional.instance_norm(x + means, *running, use_input_stats=self.training)
        return self.head((x * self.var_of_instances[:, None] + self.mean_of_instances[:, None] + means).flatten(1))


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "1d": (lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)), (9, 5)),
    "3d": (
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2, affine=False), nn.Flatten(), nn.Linear(16, 3)),
        (4, 1, 3, 3, 3),
    ),
    "residual": (Residual, (5, 3, 9, 7)),
    "without statistics": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7, track_running_stats=False), nn.Linear(7, 3)),
        (9, 5),
    ),
    "instances": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 2),
            nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (4, 2, 5),
    ),
    "as functions": (Functions, (4, 3, 5)),
    "moments": (Moments, (4, 3, 5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_batch_norm(name: str) -> None:
    """The state of a module after some steps, running statistics and counts too, is that of eager PyTorch."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    module = make().train()
    batches = [(torch.randn(shape), torch.randint(3, (shape[0],))) for _ in range(4)]
    step = compile_step(module, loss_of, SGD(0.05), batches[0])
    eager = torch.optim.SGD(module.parameters(), 0.05)
    for k in range(STEPS):
        x, y = batches[k % 4]
        result = step(x, y)
        eager.zero_grad()
        loss = loss_of(module, x, y)
        loss.backward()
        eager.step()
        assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
    ours, theirs = step.state_dict(), module.state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_allclose(ours[key], value, rtol=1e-5, atol=1e-5, err_msg=key)
    repeated = make()
    repeated.load_state_dict({n: torch.as_tensor(a) for n, a in ours.items()})
    x, _ = batches[0]
    torch.testing.assert_close(repeated.eval()(x), module.eval()(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_half_of_resnet18() -> None:
    """Three steps on images of 32x32 are as near to eager PyTorch in f64 as eager PyTorch in f32 is: the last stage
    normalises by eight pixels a channel, which makes much of rounding."""
    torch.manual_seed(0)
    single, double = ResNet(BasicBlock, [1, 1, 1, 1]).train(), ResNet(BasicBlock, [1, 1, 1, 1]).train().double()
    double.load_state_dict(single.state_dict())
    batches = [(torch.randn(8, 3, 32, 32), torch.randint(1000, (8,))) for _ in range(3)]
    step = compile_step(single, loss_of, SGD(1e-3, momentum=0.9), batches[0])
    optimizers = [torch.optim.SGD(m.parameters(), 1e-3, 0.9) for m in (single, double)]
    for x, y in batches:
        result = step(x, y)["loss"]
        losses = []
        for model, optimizer, case in zip((single, double), optimizers, (x, x.double()), strict=True):
            optimizer.zero_grad()
            loss = loss_of(model, case, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert abs(result - losses[1]) <= 3 * abs(losses[0] - losses[1]) + 1e-6 * losses[1]
    ours = step.state_dict()
    for name, exact in double.state_dict().items():
        scale = exact.double().abs().max().item()
        ours_off = np.abs(ours[name] - exact.numpy()).max()
        eager_off = (single.state_dict()[name].double() - exact).abs().max().item()
        assert ours_off <= 3 * eager_off + 1e-6 * scale, name


@pytest.mark.parametrize("name", ["1d", "perceptron", "convolutions"])
def test_batches_of_any_size(name: str) -> None:
    """One step for all sizes: losses and parameters are those of eager PyTorch."""
    torch.manual_seed(0)
    others: dict[str, tuple[Any, tuple[int, ...]]] = {
        "perceptron": (lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)), (4, 5)),
        "convolutions": (
            lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
            (4, 2, 6, 6),
        ),
    }
    make, (_, *shape) = (MODELS | others)[name]
    module = make().train()

    def batch(rows: int) -> tuple[Any, Any]:
        return torch.randn(rows, *shape), torch.randint(3, (rows,))

    step = compile_step(module, loss_of, SGD(0.05), batch(4), symbolic=True)
    eager = torch.optim.SGD(module.parameters(), 0.05)
    for rows in (4, 2, 33, 7):
        x, y = batch(rows)
        result = step(x, y)
        eager.zero_grad()
        loss = loss_of(module, x, y)
        loss.backward()
        eager.step()
        assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
    ours = step.state_dict()
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(ours[key], value, rtol=1e-5, atol=1e-5, err_msg=key)


def test_in_evaluation_mode_statistics_stay() -> None:
    torch.manual_seed(0)
    module = MODELS["1d"][0]().eval()
    x, y = torch.randn(9, 5), torch.randint(3, (9,))
    step = compile_step(module, loss_of, SGD(0.05), (x, y))
    expected = loss_of(module, x, y).item()
    assert step(x, y)["loss"] == pytest.approx(expected, rel=1e-5)
    assert step.buffers == {}


class Masked(nn.Module):
    """A module whose gradient is dropout's mask, scaled."""

    def __init__(self, dropout: Any, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*shape))
        self.dropout = dropout

    def forward(self, x: Any) -> Any:
        return (self.dropout(self.weight + x)).sum()


def masks(step: Any, x: Any, steps: int) -> list[Any]:
    """The mask of each step, as its gradient says, times its scale."""
    results = []
    for _ in range(steps):
        before = step.state_dict()["weight"].numpy().copy()
        loss = step(x)["loss"]
        results.append(before - step.state_dict()["weight"].numpy())
        # Forward and backward have the same mask: the loss is the sum of what the gradient says was kept.
        assert loss == pytest.approx(((before + x.numpy()) * results[-1]).sum(), rel=1e-4)
    return results


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_law_of_dropout(p: float) -> None:
    shape = (64, 33)
    x = torch.ones(shape)
    step = compile_step(Masked(nn.Dropout(p), *shape), None, SGD(1.0), (x,), seed=7)
    result = masks(step, x, 8)
    for mask in result:
        retained = mask != 0
        np.testing.assert_allclose(mask[retained], 1 / (1 - p), rtol=2e-5)  # scaling, through differences of weights
        share, deviation = retained.mean(), np.sqrt(p * (1 - p) / retained.size)
        assert abs(share - (1 - p)) < 4.5 * deviation
    flat = np.array([(mask != 0).ravel() for mask in result], float)
    between = np.corrcoef(flat)[~np.eye(len(flat), dtype=bool)]
    assert np.abs(between).max() < 4.5 / np.sqrt(flat.shape[1])  # the masks of different steps are independent


def test_dropout_is_reproducible() -> None:
    x = torch.ones(5, 19)

    def drawn(seed: int) -> list[Any]:
        step = compile_step(Masked(nn.Dropout(0.4), 5, 19), None, SGD(1.0), (x,), seed=seed)
        return masks(step, x, 3)

    np.testing.assert_array_equal(drawn(3), drawn(3))
    assert (np.array(drawn(3)) != np.array(drawn(4))).mean() > 0.2


def test_dropout_goes_on_after_a_save(tmp_path: Any) -> None:
    x = torch.ones(5, 19)
    whole, first, second = (
        compile_step(Masked(nn.Dropout(0.4), 5, 19), None, SGD(1.0), (x,), seed=s) for s in (1, 1, 2)
    )
    expected = masks(whole, x, 4)
    masks(first, x, 2)
    first.save(tmp_path / "step.safetensors")
    second.load(tmp_path / "step.safetensors")
    np.testing.assert_array_equal(masks(second, x, 2), expected[2:])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last, self.scale = nn.BatchNorm1d(5), nn.Linear(5, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Any) -> Any:
        return self.scale * self.last(self.norm(x))


def test_counts_and_numbers_alone_are_saved(tmp_path: Any) -> None:
    """Batch norm counts its steps in an array without dimensions."""
    torch.manual_seed(0)
    module, batches = Scaled(), [torch.randn(7, 5) for _ in range(4)]
    whole, first, second = (
        compile_step(copy.deepcopy(module), lambda m, x: m(x).square().mean(), Adam(0.1), batches[:1]) for _ in range(3)
    )
    for k, x in enumerate(batches):
        whole(x)
        if k < 2:
            first(x)
    first.save(tmp_path / "step.safetensors")
    second.load(tmp_path / "step.safetensors")
    for x in batches[2:]:
        second(x)
    expected, result = whole.state_dict(), second.state_dict()
    assert result.keys() == expected.keys() == module.state_dict().keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(result[name], value)
        assert result[name].shape == tuple(module.state_dict()[name].shape)


def test_batches_and_parameters_that_no_step_takes() -> None:
    x = torch.randn(4, 5)
    with pytest.raises(tw.Error, match="a batch is made of arrays"):
        compile_step(nn.Linear(5, 2), lambda m, x, y: m(x).sum(), SGD(0.1), (x, None))
    with pytest.raises(tw.Error, match="a batch is made of arrays"):
        tw.differentiable(nn.Linear(5, 2), ({"x": x},))
    with pytest.raises(tw.Error, match="the loss must be one number"):
        compile_step(nn.Linear(5, 2), lambda m, x: m(x).sum().long(), SGD(0.1), (x,))


def test_kinds_of_dropout() -> None:
    x = torch.ones(6, 5, 4, 3)
    step = compile_step(Masked(nn.Dropout2d(0.5), 6, 5, 4, 3), None, SGD(1.0), (x,))
    (mask,) = masks(step, x, 1)
    assert (mask == mask[:, :, :1, :1]).all() and 0 < (mask[:, :, 0, 0] != 0).mean() < 1
    x = torch.ones(40, 50)
    step = compile_step(Masked(nn.AlphaDropout(0.3), 40, 50), None, SGD(1.0), (x,))
    before = step.state_dict()["weight"].numpy().copy()
    step(x)
    moved = before - step.state_dict()["weight"].numpy()
    saturated = 1.7580993408473766
    scale = 1 / np.sqrt(0.7 * (1 + 0.3 * saturated**2))
    np.testing.assert_allclose(moved[moved != 0], scale, rtol=1e-5)
    assert abs((moved != 0).mean() - 0.7) < 0.05


def test_dropout_between_recurrent_layers() -> None:
    """Losses differ from step to step where parameters stay, and do not without dropout."""

    class Sequence(nn.Module):
        def __init__(self, p: float) -> None:
            super().__init__()
            self.layers = nn.LSTM(4, 8, num_layers=2, dropout=p)

        def forward(self, x: Any) -> Any:
            return self.layers(x)[0].square().mean()

    x = torch.randn(5, 3, 4)
    for p, kinds in ((0.5, 4), (0.0, 1)):
        step = compile_step(Sequence(p), None, SGD(0.0), (x,))
        assert len({step(x)["loss"] for _ in range(4)}) == kinds


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.width = nn.Parameter(torch.zeros(4000)), nn.Parameter(torch.ones(4000))

    def forward(self, x: Any) -> Any:
        drawn = self.mean + self.width * torch.randn_like(x)
        also = torch.rand(x.shape) + torch.bernoulli(torch.full_like(x, 0.25)) + torch.normal(x, 2.0)
        return {"loss": drawn.sum(), "also": also.mean(), "square": (torch.normal(x, 2.0) ** 2).mean()}


def test_random_numbers() -> None:
    """Reparametrised samples: gradients go through mean and width; normal numbers have mean 0 and variance 1."""
    x = torch.zeros(4000)
    step = compile_step(Drawing(), None, SGD(1.0), (x,))
    result = step(x)
    numbers = 1 - step.parameters["width"]
    np.testing.assert_array_equal(step.parameters["mean"], -1)
    assert result["loss"] == pytest.approx(numbers.sum(), rel=1e-4)
    assert abs(numbers.mean()) < 0.07 and abs(numbers.std() - 1) < 0.05
    assert abs((numbers**4).mean() - 3) < 0.6
    assert abs(result["also"] - 0.75) < 0.15 and abs(result["square"] - 4) < 0.4


def test_attention_with_dropout() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(96, 3)).train()
    x, y = torch.randn(8, 6, 16), torch.randint(3, (8,))
    step = compile_step(model, loss_of, Adam(1e-2), (x, y))
    losses = [step(x, y)["loss"] for _ in range(60)]
    assert len(set(losses)) == 60 and np.mean(losses[-10:]) < 0.3 * losses[0]


def test_models_that_are_not_trained_do_not_draw() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x)

    with pytest.raises(tw.Error, match="randn_like is not supported"):
        tw.compile_program(Noisy(), (torch.ones(3),))


def test_buffers_of_ones_own() -> None:
    """A buffer that forward changes is state; one of integers that something reads is refused."""

    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.seen.mul_(0.9).add_(0.1 * x.mean(0))
            return ((x - self.seen) * self.weight).square().mean()

    module = Average()
    x = torch.randn(5, 3)
    step = compile_step(module, None, SGD(0.1), (x,))
    for _ in range(3):
        assert step(x)["loss"] == pytest.approx(step_of(module, x), rel=1e-5)
    np.testing.assert_allclose(step.buffers["seen"], module.seen, rtol=1e-6)


def step_of(module: Any, x: Any) -> float:
    loss = module(x)
    (gradient,) = torch.autograd.grad(loss, module.weight)
    module.weight.data -= 0.1 * gradient
    return loss.item()
