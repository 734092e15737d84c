"""Random functions under `torch.compile(backend="tilewright")`: what they give is what eager PyTorch gives.

A function is a list of steps on a pool of tensors: operators that are compiled, operators that PyTorch must run between
them, views, changes in place, reductions to numbers. `make fuzz` runs TILEWRIGHT_FUZZ_DYNAMO (300) of them.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ_DYNAMO", "300")) if LONG else 4
LIMIT_S = 120.0
ROWS = 6

Step = Callable[[list[Any]], Any]
UNARY = (
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.abs,
    torch.sin,
    torch.nn.functional.gelu,
    lambda x: x.softmax(-1),
    lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    lambda x: x.cumsum(-1),
    lambda x: x.flip(-1),
    lambda x: x.roll(1, 0),
    lambda x: x.sort(-1).values,
    lambda x: x.to(torch.float64).mul(0.5).to(torch.float32),
    lambda x: x.clamp(-0.5, 0.5),
    lambda x: torch.special.bessel_j0(x),  # PyTorch's
    lambda x: torch.linalg.pinv(x.reshape(-1, x.shape[-1])).mT.reshape(x.shape),  # PyTorch's
    lambda x: x.argmax(-1, keepdim=True).to(torch.float32) + x,
)
VIEWS = (
    lambda x: x.transpose(0, -1),
    lambda x: x.reshape(-1),
    lambda x: x[1:],
    lambda x: x[::2],
    lambda x: x[..., :1],
    lambda x: x.unsqueeze(0),
    lambda x: x.expand(2, *x.shape),
    lambda x: x.split(2, 0)[0],
)
BINARY = (
    torch.add,
    torch.mul,
    torch.maximum,
    torch.sub,
    lambda a, b: torch.where(a > b, a, b * 0.5),
    lambda a, b: torch.cat([a, b], -1),
    lambda a, b: a @ b.mT,
)
CHANGES = (
    lambda x: x.mul_(0.5),
    lambda x: x.add_(1.0),
    lambda x: x[..., 0].zero_(),
    lambda x: x.copy_(x.flip(0)),
)
"""In place, of tensors that the function has made: what they give is not kept."""


def step(rng: random.Random, count: int) -> Step:
    """One step on a pool of so many tensors; gives a new tensor, or None."""
    a, b = rng.randrange(count), rng.randrange(count)
    match rng.randrange(8):
        case 0 | 1 | 2:
            unary = rng.choice(UNARY)
            return lambda pool: unary(pool[a])
        case 3 | 4:
            binary = rng.choice(BINARY)
            return lambda pool: binary(pool[a], pool[b])
        case 5:
            view = rng.choice(VIEWS)
            return lambda pool: view(pool[a])
        case 6:
            change = rng.choice(CHANGES)
            return lambda pool: (change(pool[a]), None)[1]
        case _:
            return lambda pool: pool[a].sum(0, keepdim=True)


def drawn(seed: int) -> tuple[Callable[..., Any], list[Any]]:
    """A function that eager PyTorch runs, and its arguments."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    inputs = [torch.randn(ROWS, rng.choice((1, 4, 5))) for _ in range(rng.randint(1, 3))]
    pool, steps = [x * 1.0 for x in inputs], list[Step]()
    wanted = rng.randint(3, 14)
    for _ in range(10 * wanted):
        if len(steps) == wanted:
            break
        chosen = step(rng, len(pool))
        try:
            created = chosen([x.clone() for x in pool])
        except (RuntimeError, IndexError):  # shapes that do not fit
            continue
        if created is not None and (created.numel() > 10_000 or not created.numel() or not created.isfinite().all()):
            continue
        before = [x._version for x in pool]
        try:
            created = chosen(pool)
        except RuntimeError:  # a change of what is expanded
            continue
        # Not all such changes are refused; what they do PyTorch's own graphs (`aot_eager`) do otherwise.
        changed = [x for x, version in zip(pool, before, strict=True) if x._version != version]
        if any(torch._debug_has_internal_overlap(x) for x in changed):
            continue
        steps.append(chosen)
        pool += [] if created is None else [created]
    retained = rng.sample(range(len(pool)), min(len(pool), rng.randint(1, 4)))

    def function(*arguments: Any) -> Any:
        values = [x * 1.0 for x in arguments]
        for s in steps:
            result = s(values)
            if result is not None:
                values.append(result)
        return tuple(values[k] for k in retained)

    return function, inputs


def check(seed: int, dynamic: bool | None) -> None:
    function, inputs = drawn(seed)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tilewright", dynamic=dynamic)
    for scale in (1.0, -0.5):
        arguments = [x * scale for x in inputs]
        want, got = function(*arguments), compiled(*arguments)
        for w, g in zip(want, got, strict=True):
            assert g.stride() == w.stride() or w.numel() < 2, f"seed {seed}: strides {g.stride()} for {w.stride()}"
            torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-4, msg=lambda m: f"seed {seed}: {m}")


def test_random_functions() -> None:
    failures = {}
    for seed in range(FIRST, FIRST + COUNT):
        started = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(seed, dynamic=True if seed % 4 == 3 else None)
        except BaseException as error:
            failures[seed] = f"{type(error).__name__}: {str(error)[:300]}"
            if isinstance(error, KeyboardInterrupt):
                raise
        assert time.monotonic() - started < LIMIT_S, f"seed {seed} takes too long"
    assert not failures, "\n".join(f"seed {k}: {v}" for k, v in failures.items())
