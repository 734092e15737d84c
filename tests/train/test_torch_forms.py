"""Forms of training against eager PyTorch: loss, gradients and one step of an optimiser, where operators have arguments
that act in the backward pass alone, where elements are equal or stand at a corner, and where code says what has a
gradient.

What acts on gradients and is not traced is refused by its name (`test_hooks`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip
from torch.nn import functional as F  # noqa: E402

import tilewright as tw  # noqa: E402

T = torch.tensor
NAN, INF = float("nan"), float("inf")
W = T([[1.0, 2.0, 3.0], [0.0, -1.0, 2.0], [3.0, 3.0, -3.0]])
X = T([[1.0, 1.0, 3.0], [0.0, -1.0, 2.5], [3.0, 2.0, -3.0]])
TIED = T([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0], [-1.0, 3.0, 3.0]])
CORNERS = T([[0.0, -0.0, 1.0], [6.0, -3.0, 3.0], [-1.0, 0.5, -0.5]])
ROWS = T([[0.0, 0.0, 0.0], [3.0, 3.0, -3.0], [1.0, 0.0, 2.0]])
FLAT = T([[1.0, 1.0, 1.0], [2.0, 2.0, 2.5], [0.0, 0.0, 0.0]])
MAPS = T([[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 5.0, 4.0], [3.0, 2.0, 5.0, 5.0]])
TABLE = torch.randn(9, 3, generator=torch.Generator().manual_seed(1))
INDEX = T([[0, 1, 2, 1], [3, 0, 8, 8], [2, 2, 1, 0]])
CLASSES = T([0, -100, 1])
PLACES = T([[0, 0, 1], [1, 1, 1], [2, 2, 0]])
SHARES = T([1.0, 2.0, 0.5])
FORMS: dict[str, tuple[Callable[[Any, Any], Any], Any, Any]] = {}


def form(name: str, function: Callable[[Any, Any], Any], w: Any = W, x: Any = X) -> None:
    FORMS[name] = (function, w, x)


class Form(nn.Module):
    """A function of a parameter and an input as a loss, in which each element of the result counts differently."""

    def __init__(self, function: Callable[[Any, Any], Any], w: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(w.clone())
        self.function = function

    def forward(self, x: Any) -> Any:
        y = self.function(self.w, x)
        return (y * torch.linspace(0.5, 1.7, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()


# --- equal elements and corners -------------------------------------------------------------------------------------

form("clamp by tensors, lower", lambda w, x: torch.clamp(w, min=x))
form("clamp by tensors, upper", lambda w, x: torch.clamp(w, max=x))
form("clamp by tensors, both", lambda w, x: torch.clamp(w, x - 1, x))
form("clamp by tensors that are equal", lambda w, x: torch.clamp(w, x, x))
form("clamp by tensors that cross", lambda w, x: torch.clamp(w, x + 1, x))
form("clamp's lower and upper bound", lambda w, x: torch.clamp(x, w, w + 1))
form("clamp's upper bound", lambda w, x: torch.clamp(x, max=w))
form("clamp's equal bounds", lambda w, x: torch.clamp(x, w, w))
form("clamp by a tensor that is broadcast", lambda w, x: torch.clamp(x, min=w[0]))
form("clamp by numbers", lambda w, x: torch.clamp(w, 1.0, 3.0))
form("clamp by one number", lambda w, x: torch.clamp(w, min=1.0) + torch.clamp(w, max=3.0))
form("clamp by a size", lambda w, x: torch.clamp(w, 0, x.shape[0]))
form("clamp of NaN by numbers", lambda w, x: torch.clamp(torch.where(w == 2, NAN, w), 1.0, 3.0))
form("clamp of NaN by a tensor", lambda w, x: torch.clamp(torch.where(w == 2, NAN, w), min=x))
form("clamp by NaN", lambda w, x: torch.clamp(x, torch.where(w == 2, NAN, w), w * torch.where(w == 3, NAN, w)))
form("clamp of NaN", lambda w, x: torch.clamp(torch.where(w == 2, NAN, w), x, x + 1))
form("clamp_max", lambda w, x: torch.clamp_max(w, x))
form("maximum", torch.maximum)
form("minimum", torch.minimum)
form("fmax", torch.fmax)
form("fmin of the other", lambda w, x: torch.fmin(x, w))
form("fmax of NaN", lambda w, x: torch.fmax(torch.where(w == 2, NAN, w), torch.where(x == 1, NAN, x)))
form("amax", lambda w, x: w.amax(1), TIED)
form("amin of all", lambda w, x: w.amin((0, 1)), TIED)
form("max of a dimension", lambda w, x: w.max(1).values, TIED)
form("min of a dimension that is kept", lambda w, x: w.min(0, keepdim=True).values, TIED)
form("max of all", lambda w, x: w.max(), TIED)
form("aminmax", lambda w, x: torch.stack(torch.aminmax(w, dim=1)), TIED)
form("median", lambda w, x: w.median())
form("median of a dimension", lambda w, x: w.median(1).values, TIED)
form("nanmedian", lambda w, x: torch.where(w == 1, NAN, w).nanmedian())
form("mode", lambda w, x: torch.mode(w, 1).values, TIED)
form("sort", lambda w, x: torch.sort(w, dim=1, descending=True, stable=True).values, TIED)
form("topk", lambda w, x: torch.topk(w, 2, 1).values, TIED)
form("cummax", lambda w, x: torch.cummax(w, 1).values, TIED)
form("cummin", lambda w, x: torch.cummin(w, 1).values, TIED)
form("max_pool2d", lambda w, x: F.max_pool2d(w[None, None], 3, 1, 1), MAPS)
form("adaptive_max_pool2d", lambda w, x: F.adaptive_max_pool2d(w[None, None], 3), MAPS)
form("adaptive_max_pool2d to one", lambda w, x: F.adaptive_max_pool2d(w[None, None], 1), MAPS)
form("adaptive_max_pool1d", lambda w, x: F.adaptive_max_pool1d(w[None], 3), MAPS)
form("where", lambda w, x: torch.where(w > 0, w.log(), w))
form("prod with zeros", lambda w, x: w.prod(1), T([[0.0, 2.0, 3.0], [0.0, 0.0, 4.0], [1.0, 2.0, 3.0]]))
form("cumprod with zeros", lambda w, x: w.cumprod(1), T([[1.0, 0.0, 3.0], [0.0, 0.0, 4.0], [1.0, 2.0, 3.0]]))
form("scatter_reduce amax", lambda w, x: torch.zeros(3, 3).scatter_reduce(1, PLACES, w, "amax"), TIED)
form("scatter_reduce prod", lambda w, x: torch.ones(3, 3).scatter_reduce(1, PLACES, w, "prod"), TIED)
for _end in ("amax", "amin"):
    form(f"scatter_reduce {_end} without itself",
         lambda w, x, r=_end: w.scatter_reduce(1, PLACES, w * w - 1, r, include_self=False), TIED)  # fmt: skip
form("root of a sum of squares", lambda w, x: (w * w).sum(1).sqrt(), X)
for _name in "relu relu6 hardtanh hardswish hardsigmoid leaky_relu elu celu selu softshrink hardshrink".split():
    form(f"{_name} at its corners", lambda w, x, name=_name: getattr(F, name)(w), CORNERS)
form("hardtanh of NaN", lambda w, x: F.hardtanh(torch.where(w == 2, NAN, w), 1, 3))
form("threshold", lambda w, x: F.threshold(w, 1.0, 5.0), CORNERS)
form("abs", lambda w, x: w.abs(), CORNERS)
form("sqrt at zero", lambda w, x: w.abs().sqrt(), CORNERS)
form("powers at zero", lambda w, x: w.abs() ** 1.5 + w**2 + w**0 + w.abs() ** T([0.0, 1.0, 2.0]), CORNERS)
form("entropy at zero", lambda w, x: torch.special.entr(w), T([[0.0, 0.5, 1.0], [2.0, -0.0, 0.25]]))
form("sinc at zero", lambda w, x: torch.sinc(w), CORNERS)
form("atan2 at the origin", lambda w, x: torch.atan2(w, torch.zeros(3)) + torch.atan2(w, w), CORNERS)
form("atan2 of vanishing numbers", lambda w, x: torch.atan2(w, w * 2) + torch.atan2(T([1.0, 0.0, 1e-30]), w),
     T([[1e-30, 0.0, -1e-25], [1e-15, 2.0, 0.5]]))  # fmt: skip
form("remainder", lambda w, x: torch.remainder(w, 1.0) + torch.fmod(w, 2.0), CORNERS)
for _order in (0.5, 1, 1.5, 2, 3, INF, -INF):
    form(f"norm of order {_order} at zero", lambda w, x, p=_order: torch.linalg.vector_norm(w, p, dim=1), ROWS)
form("norm whose order is a size", lambda w, x: torch.linalg.vector_norm(w, x.shape[0], dim=1), ROWS)
form("norm of all zeros", lambda w, x: torch.norm(w), ROWS * 0)
form("cosine similarity of zeros", lambda w, x: F.cosine_similarity(w, x, dim=1), ROWS)
form("pairwise distance of equals", lambda w, x: F.pairwise_distance(w, x), X)
form("distances of equals", lambda w, x: torch.cdist(w, w), ROWS)
form("std of constants", lambda w, x: w.std(1), FLAT)
form("std_mean of constants", lambda w, x: torch.stack(torch.std_mean(w, 1, correction=0)), FLAT)
form("var of constants", lambda w, x: w.var(1), FLAT)

# --- arguments that act in the backward pass ------------------------------------------------------------------------

for _options in (
    {"padding_idx": 0},
    {"padding_idx": -1},
    {"scale_grad_by_freq": True},
    {"padding_idx": 1, "scale_grad_by_freq": True},
    {"sparse": True, "padding_idx": 2},
):
    form(f"embedding {_options}", lambda w, x, k=_options: torch.tanh(F.embedding(INDEX, w, **k)), TABLE)
for _mode in ("sum", "mean", "max"):
    form(f"bags {_mode}", lambda w, x, m=_mode: torch.tanh(F.embedding_bag(INDEX, w, mode=m, padding_idx=0)), TABLE)
form("bags' weights", lambda w, x: F.embedding_bag(INDEX, TABLE, mode="sum", per_sample_weights=w, padding_idx=0),
     torch.linspace(0.1, 1, 12).reshape(3, 4))  # fmt: skip
form("cross entropy that ignores", lambda w, x: F.cross_entropy(w, CLASSES))
form("cross entropy, smoothed and weighted",
     lambda w, x: F.cross_entropy(w, CLASSES, weight=SHARES, label_smoothing=0.1))  # fmt: skip
form("nll that ignores a class", lambda w, x: F.nll_loss(F.log_softmax(w, 1), T([0, 2, 1]), SHARES, ignore_index=2))
form("binary cross entropy at 0 and 1", lambda w, x: F.binary_cross_entropy(w.clamp(0, 1), x.clamp(0, 1)))
form("binary cross entropy, saturated", lambda w, x: F.binary_cross_entropy(w.sigmoid(), x.clamp(0, 1), SHARES),
     T([[0.0, 150.0, -150.0], [200.0, -200.0, 0.0], [0.0, 0.0, 0.0]]))  # fmt: skip
form("binary cross entropy's target", lambda w, x: F.binary_cross_entropy(x.sigmoid(), w.clamp(0, 1), reduction="none"))
form("multilabel margin", lambda w, x: F.multilabel_margin_loss(w, T([[0, 1, -1], [2, -1, 0], [1, 0, -1]])))
form("multi margin at its corner", lambda w, x: F.multi_margin_loss(w, T([0, 2, 1]), margin=2.0))
form("multi margin of squares, weighted",
     lambda w, x: F.multi_margin_loss(w, T([0, 2, 1]), 2, 1.0, SHARES, reduction="none"))  # fmt: skip
form("huber at its corner", lambda w, x: F.huber_loss(w, x), W, W - 1)
form("smooth l1 at its corner", lambda w, x: F.smooth_l1_loss(w, x, beta=1.0), W, W + 1)
form("hinge embedding at its corner", lambda w, x: F.hinge_embedding_loss(w, T([-1.0, -1.0, 1.0])))
form("margin ranking at its corner", lambda w, x: F.margin_ranking_loss(w, x, torch.sign(x - 2), reduction="none"))
form("Gaussian likelihood", lambda w, x: F.gaussian_nll_loss(w, x, w.square(), full=True, eps=0.5))
form("Gaussian likelihood of rows", lambda w, x: F.gaussian_nll_loss(x, w, w.square().sum(1), reduction="none"))
form("Gaussian likelihood of one variance", lambda w, x: F.gaussian_nll_loss(w, x, 0.25, reduction="sum"))
form("max_unpool", lambda w, x: F.max_unpool2d(*F.max_pool2d(w[None, None], 2, return_indices=True), 2), MAPS)
form("average that divides otherwise", lambda w, x: F.avg_pool2d(w[None, None], 2, divisor_override=3), MAPS)
form("grid_sample at its border", lambda w, x: F.grid_sample(
    w[None, None], torch.linspace(-1.0, 1.0, 32).reshape(1, 4, 4, 2), "bilinear", "border", True), MAPS)  # fmt: skip

# --- what code says has a gradient -----------------------------------------------------------------------------------


def without(w: Any, x: Any) -> Any:
    with torch.no_grad():
        a = w * 2
        with torch.enable_grad():
            b = w * 3
    return a * w + b


def in_place(w: Any, x: Any) -> Any:
    a = w * 2
    a = a.mul_(3).clone()
    a[0] = 1.0
    a[:, 1] += x[0]
    return a.detach_() * w


def checkpointed(w: Any, x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda a: torch.tanh(a) * a, w, use_reentrant=False)


form("repetitions whose number is said", lambda w, x: w.repeat_interleave(T([1, 0, 2]), 0, output_size=3))
form("no_grad and enable_grad", without)
form("detach", lambda w, x: w.detach() * w)
form("in place", in_place)
form("straight through", lambda w, x: w + (w.round() - w).detach())
form("requires_grad_ of an intermediate", lambda w, x: (w * 2).detach().requires_grad_(True) * w)
form("requires_grad_(False) of an input", lambda w, x: (x * 2).requires_grad_(False) * w)
form("checkpoint", checkpointed)
form("autograd.grad inside", lambda w, x: torch.autograd.grad((w**3).sum(), w, create_graph=True)[0] * w)

DOORS = ("compile_step", "differentiable")


def stepped(door: str, module: Any, x: Any) -> tuple[float, Any, Any]:
    """The loss, the gradient and the parameter after a step of SGD, by one of the doors."""
    before = module.w.detach().clone()
    if door == "differentiable":
        optimizer = torch.optim.SGD(module.parameters(), 0.5)
        loss = tw.differentiable(module, (x,))(x)
        loss.backward()
        gradient = module.w.grad.clone()
        optimizer.step()
        return loss.item(), gradient.numpy(), module.w.detach().numpy()
    step = tw.compile_step(module, None, tw.train.SGD(0.5), example=(x,), on_nonfinite="keep")
    loss = step(x)["loss"]
    after = step.parameters["w"].copy()
    return loss, (before.numpy() - after) / 0.5, after


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("door", DOORS)
def test_form(door: str, name: str) -> None:
    """A step is eager PyTorch's."""
    function, w, x = FORMS[name]
    eager = Form(function, w)
    module = copy.deepcopy(eager)
    optimizer = torch.optim.SGD(eager.parameters(), 0.5)
    expected = eager(x)
    expected.backward()
    gradient = torch.zeros_like(w) + (eager.w.grad.to_dense() if eager.w.grad.is_sparse else eager.w.grad)
    optimizer.step()
    loss, result, after = stepped(door, module, x)
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5, atol=1e-5)
    infinite = ~np.isfinite(gradient.numpy())
    np.testing.assert_allclose(result[~infinite], gradient.numpy()[~infinite], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(after, eager.w.detach().numpy(), rtol=2e-4, atol=2e-5)


LAWS: dict[str, Callable[[Any, Any], Any]] = {
    "categorical": lambda w, x: torch.distributions.Categorical(logits=w).log_prob(T([0, 2, 1])),
    "entropy": lambda w, x: torch.distributions.Categorical(logits=w).entropy(),
    "normal": lambda w, x: torch.distributions.Normal(w, w.exp()).log_prob(x),
    "divergence": lambda w, x: torch.distributions.kl_divergence(
        torch.distributions.Normal(w, 1.0), torch.distributions.Normal(x, w.exp())
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_distributions_that_check_their_numbers(name: str) -> None:
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(True)
    try:
        eager = Form(LAWS[name], W)
        loss, gradient, _ = stepped("compile_step", copy.deepcopy(eager), X)
        assert torch.distributions.Distribution._validate_args
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)
    expected = eager(X)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, eager.w.grad.numpy(), rtol=2e-4, atol=2e-5)


def test_negative_variances_have_no_likelihood() -> None:
    """Eager PyTorch raises; a step has no branch for it. The loss is NaN, and nothing learns from it."""
    module = Form(lambda w, x: F.gaussian_nll_loss(w, x, x), W)
    step = tw.compile_step(module, None, tw.train.SGD(0.5), example=(X.abs(),), on_nonfinite="keep")
    function = tw.differentiable(module, (X.abs(),))
    with pytest.raises(ValueError, match="negative"):
        module(X)
    loss = function(X)
    loss.backward()
    assert loss.isnan() and not module.w.grad.any()
    assert np.isnan(step(X)["loss"]) and np.array_equal(step.parameters["w"], W)


# --- what is refused -------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, inside: Callable[[Any], Any] = lambda h: h) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)
        self.inside = inside

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.a(x))
        result = self.inside(h)
        return self.b(h if result is None else result).pow(2).sum()


def penalty(model: Any, x: Any) -> Any:
    x = x.detach().requires_grad_(True)
    (flow,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (flow.norm() - 1) ** 2


def squared_gradients(model: Any, x: Any) -> Any:
    flows = torch.autograd.grad(model(x).sum(), list(model.parameters()), create_graph=True)
    return sum(flow.pow(2).sum() for flow in flows)


def backward_within(model: Any, x: Any) -> Any:
    loss = model(x).sum()
    loss.backward(create_graph=True)
    return loss + sum(p.grad.pow(2).sum() for p in model.parameters())


INNER: list[Callable[[Any, Any], Any]] = [
    penalty,
    squared_gradients,
    backward_within,
    lambda model, x: torch.func.grad(lambda v: model(v).sum())(x).pow(2).sum(),
    lambda model, x: torch.func.jacrev(lambda v: model(v).sum())(x).pow(2).sum(),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("loss", INNER)
def test_gradients_within_a_loss_are_refused_by_name(loss: Callable[[Any, Any], Any], door: str) -> None:
    """Gradient penalties: whatever was tried, the module has its parameters, without gradients."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.ones(3, 4)
    with pytest.raises(tw.errors.UnsupportedError, match="gradients within what is traced"):
        if door == "compile_step":
            tw.compile_step(model, loss, tw.train.SGD(0.5), example=(x,))
        else:
            tw.differentiable(Applied(model, loss), (x,))
    for p, value in zip(model.parameters(), before, strict=True):
        assert type(p) is nn.Parameter and p.requires_grad and p.grad is None and torch.equal(p, value)
    assert torch.is_grad_enabled() and x.grad is None


class Applied(nn.Module):
    """A function of a model and its input as one module."""

    def __init__(self, model: Any, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x: Any) -> Any:
        return self.function(self.model, x)


def saved(h: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.round(), lambda x: x):
        return torch.tanh(h)


def inferred(h: Any) -> Any:
    with torch.inference_mode():
        retained = h.detach() * 2
    return retained.clone() * h


INSIDE = {
    "Tensor.register_hook": lambda h: h.register_hook(lambda g: g * 0.5) and None,
    "grad_fn.register_hook": lambda h: h.grad_fn.register_hook(lambda a, b: None) and None,
    "grad_fn.register_prehook": lambda h: h.grad_fn.register_prehook(lambda b: None) and None,
    "torch.autograd.graph.register_multi_grad_hook": lambda h: (
        torch.autograd.graph.register_multi_grad_hook((h,), lambda g: None) and None
    ),
    "torch.autograd.graph.saved_tensors_hooks": saved,
    "torch.inference_mode": inferred,
}
OUTSIDE: dict[str, Callable[[Any], Any]] = {
    "register_full_backward_hook of model.b": lambda m: m.b.register_full_backward_hook(lambda m, i, o: (i[0] * 0.5,)),
    "register_full_backward_pre_hook of model.b": lambda m: m.b.register_full_backward_pre_hook(lambda m, o: None),
    "register_hook of the parameter model.a.weight": lambda m: m.a.weight.register_hook(lambda g: g * 0.5),
    "register_post_accumulate_grad_hook of the parameter model.a.weight": (
        lambda m: m.a.weight.register_post_accumulate_grad_hook(lambda p: None)
    ),
}
ROW = torch.linspace(-1, 1, 20).reshape(5, 4)


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("door", DOORS)
def test_hooks(door: str, name: str) -> None:
    """A hook that code registers on the way is refused by its name, and PyTorch is left as it was."""
    model = Model(INSIDE[name])
    functions = [torch.Tensor.register_hook, torch.autograd.graph.register_multi_grad_hook]
    with pytest.raises(tw.errors.UnsupportedError, match="acts on gradients alone") as error:
        if door == "compile_step":
            tw.compile_step(model, lambda m, x: m(x), tw.train.SGD(1.0), example=(ROW,))
        else:
            tw.differentiable(model, (ROW,))
    assert name in str(error.value)
    assert [torch.Tensor.register_hook, torch.autograd.graph.register_multi_grad_hook] == functions


@pytest.mark.parametrize("name", OUTSIDE)
def test_hooks_of_modules_and_parameters(name: str) -> None:
    model = Model()
    OUTSIDE[name](model)
    with pytest.raises(tw.errors.UnsupportedError) as error:
        tw.compile_step(model, lambda m, x: m(x), tw.train.SGD(1.0), example=(ROW,))
    assert name in str(error.value)


def test_hooks_of_parameters_act_in_autograd() -> None:
    """Parameters of a module in autograd are PyTorch's, and so are their hooks."""
    eager, model, seen = Model(), Model(), []
    for m in (eager, model):
        m.a.weight.register_hook(lambda g: g * 0.5)
        m.b.weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.shape)))
    eager(ROW).backward()
    tw.differentiable(model, (ROW,))(ROW).backward()
    torch.testing.assert_close(model.a.weight.grad, eager.a.weight.grad)
    assert seen == [(1, 4), (1, 4)]


@pytest.mark.parametrize("make", [
    lambda: nn.Embedding(9, 3, max_norm=1.0), lambda: nn.EmbeddingBag(9, 3, scale_grad_by_freq=True),
])  # fmt: skip
@pytest.mark.parametrize("door", DOORS)
def test_tables_that_are_refused(door: str, make: Any) -> None:
    """`max_norm` changes a parameter in the forward pass; bags by frequency divide by other rows' numbers in
    PyTorch."""
    model = nn.Sequential(make(), nn.Flatten(), nn.LazyLinear(1))
    model(INDEX)
    with pytest.raises(tw.Error, match=r"parameters of the module|scale_grad_by_freq"):
        if door == "compile_step":
            tw.compile_step(model, lambda m, x: m(x).sum(), tw.train.SGD(1.0), example=(INDEX,))
        else:
            tw.differentiable(model, (INDEX,))


@pytest.mark.parametrize("door", DOORS)
def test_sizes_that_nothing_bounds(door: str) -> None:
    """How many rows there are, only data says: refused by name when the step is made, not by its first call."""
    module = Form(lambda w, x: torch.repeat_interleave(w, T([1, 0, 2]), 0), W)
    with pytest.raises(tw.errors.UnsupportedError, match="repeat_interleave"):
        stepped(door, module, X)


WRITERS: dict[str, Callable[[Any], None]] = {
    "in place": lambda weight: weight.data.clamp_(max=0.1),
    "other memory": lambda weight: setattr(weight, "data", weight.data.clamp(max=0.1)),
}


class Writer(nn.Module):
    """A module that changes its weight in `forward` without autograd's knowledge, and cannot be compiled besides."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer = way, nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        WRITERS[self.way](self.layer.weight)
        return self.layer(x) if x.sum() > 0 else x


@pytest.mark.parametrize("way", WRITERS)
@pytest.mark.parametrize("door", ["compile", "compile_step", "differentiable"])
def test_a_refusal_leaves_parameters_that_forward_writes_to(door: str, way: str) -> None:
    model, x = Writer(way), torch.ones(3, 4)
    weight = model.layer.weight
    before, place = weight.detach().clone(), weight.data_ptr()
    with pytest.raises(tw.errors.Error):
        if door == "compile":
            tw.compile(model, (x,))
        elif door == "compile_step":
            tw.compile_step(model, lambda m, x: m(x).sum(), tw.train.SGD(0.5), example=(x,))
        else:
            tw.differentiable(model, (x,))
    assert model.layer.weight is weight and weight.data_ptr() == place and weight.device.type == "cpu"
    assert torch.equal(weight, before) and model(x).shape == (3, 4)


def test_forms_that_are_not_trained_are_refused_by_name() -> None:
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    (x,) = (torch.randn(6, 4),)
    with pytest.raises(tw.errors.UnsupportedError, match="1: a step does not compute the cumulative average"):
        tw.compile_step(norm, lambda m, x: m(x).pow(2).mean(), tw.train.SGD(0.1), example=(x,))
    norm[1].eval()
    tw.compile_step(norm, lambda m, x: m(x).pow(2).mean(), tw.train.SGD(0.1), example=(x,))(x)

    lengths, targets = torch.tensor([6, 6]), torch.randint(1, 4, (2, 2))

    def ctc(model: Any, x: Any) -> Any:
        return nn.functional.ctc_loss(model(x).log_softmax(-1), targets, lengths, lengths // 3)

    with pytest.raises(tw.errors.UnsupportedError, match="the gradient of ctc_loss"):
        tw.compile_step(nn.Linear(4, 4), ctc, tw.train.SGD(0.1), example=(torch.randn(6, 2, 4),))
