"""Weights under `torch.compile`: however they are changed, the very next call uses what they are then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.dynamo.torch_backend import assert_same, compiled
from tilewright.runtime.native import native

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
nn = torch.nn

OPTIMISERS = {
    "sgd": lambda params, **way: torch.optim.SGD(params, lr=0.1, momentum=0.9, **way),
    "adam": lambda params, **way: torch.optim.Adam(params, lr=0.01, **way),
    "adamw": lambda params, **way: torch.optim.AdamW(params, lr=0.01, **way),
}
WAYS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "plain": {"foreach": False, "fused": False},
}


def model() -> Any:
    """Packed weights of a product and of a convolution, a folded batch norm, a bias that is read where it is."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 16), nn.Tanh(),
        nn.Linear(16, 3),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Callable[[Any], Any]]:
    module = model()
    return module, compiled(module)


def follows(module: Any, f: Callable[[Any], Any], change: Callable[[], object]) -> None:
    """A change is seen by the call after it, and changes something."""
    x = torch.randn(16, 2, 5, 5, generator=torch.Generator().manual_seed(7))  # every unit is active in one of them
    with torch.no_grad():
        before = f(x)
        assert_same(before, module(x), rtol=2e-5, atol=2e-5)
    change()
    with torch.no_grad():
        after = f(x)
        assert_same(after, module(x), rtol=2e-5, atol=2e-5)
    assert not torch.equal(before, after)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_optimisers(pair: Any, optimiser: str, way: str) -> None:
    module, f = pair
    steps = OPTIMISERS[optimiser](module.parameters(), **WAYS[way])

    def step() -> None:
        steps.zero_grad()
        module(torch.randn(4, 2, 5, 5)).square().sum().backward()
        steps.step()

    for _ in range(3):
        follows(module, f, step)


def _first(module: Any) -> Any:
    return module[4].weight


CHANGES: dict[str, Callable[[Any], object]] = {
    "polyak": lambda m: _first(m).data.mul_(0.9),
    "one number": lambda m: _first(m).data[3, 5].add_(0.5),
    "a sign": lambda m: _first(m).data[7, 1].neg_(),
    "all signs": lambda m: _first(m).data.neg_(),
    "two rows change places": lambda m: _first(m).data.copy_(_first(m).data.flip(0).clone()),
    "data replaced": lambda m: setattr(_first(m), "data", torch.randn(16, 100)),
    "load_state_dict": lambda m: m.load_state_dict({k: v + 0.1 for k, v in m.state_dict().items()}),
    "load_state_dict, assigned": lambda m: m.load_state_dict(
        {k: v * 2 for k, v in m.state_dict().items()}, assign=True
    ),
    "a buffer": lambda m: m[1].running_mean.add_(0.3),
    "through NumPy": lambda m: np.copyto(m[0].weight.detach().numpy(), 0.25),
    "a bias": lambda m: m[6].bias.data.add_(1),
    "copied under no_grad": lambda m: torch.no_grad()(_first(m).copy_)(torch.randn(16, 100)),
    "inference mode": lambda m: torch.inference_mode()(_first(m).mul_)(1.25) if not _first(m).is_inference() else None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_writes(pair: Any, change: str) -> None:
    module, f = pair
    follows(module, f, lambda: CHANGES[change](module))


def test_versions_do_not_tell() -> None:
    """Why version counters are not asked: PyTorch's fused optimisers leave them as they are."""
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    before = p._version
    torch.optim.Adam([p], fused=True).step()
    p.data.mul_(2)
    assert p._version == before


def test_frozen_weights_are_those_of_the_first_call() -> None:
    module = model()
    f, x = compiled(module, freeze=True), torch.randn(2, 2, 5, 5)
    with torch.no_grad():
        first = f(x)
        for p in module.parameters():
            p.data.mul_(1.5)
        assert_same(f(x), first)
        assert not torch.allclose(module(x), first)
        module.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)  # elsewhere: other weights
        assert_same(f(x), module(x), rtol=2e-5, atol=2e-5)


def test_weights_that_are_not_aligned() -> None:
    module = model()
    flat = torch.randn(1 + 1600)
    module[4].weight = nn.Parameter(flat[1:].view(16, 100))
    f = compiled(module)
    follows(module, f, lambda: flat.mul_(0.5))
    follows(module, f, lambda: flat[-1].add_(1))


@pytest.mark.parametrize("nbytes", [1, 7, 63, 64, 65, 128, 200, 4096 + 13])
def test_the_digest_sees_every_bit(nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes + 1, np.uint8)[1:]  # not aligned
    digest = native().digest
    first = digest(data.ctypes.data, nbytes)
    assert digest(data.copy().ctypes.data, nbytes) == first
    seen = {first}
    for bit in range(min(8 * nbytes, 2048)):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(digest(data.ctypes.data, nbytes))
        data[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 1 + min(8 * nbytes, 2048)
    if nbytes > 1:
        assert digest(data.ctypes.data, nbytes - 1) != first


def test_digests_are_the_same_for_every_processor() -> None:
    from ctypes import c_int64, c_void_p

    from tilewright.native.link import Library, compile_text, host_triple, missing_features
    from tilewright.runtime.layout import function
    from tilewright.runtime.watch import DIGESTS, digest_code, digests

    data = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
    able = [name for name in digests(host_triple()) if not missing_features(DIGESTS[name])]
    linked = [(Library({name: compile_text(digest_code(name), cache=False)}, [name]), name) for name in able]
    result = {function(code[name], c_int64, c_void_p, c_int64)(data.ctypes.data, 1000) for code, name in linked}
    assert result == {native().digest(data.ctypes.data, 1000)}
