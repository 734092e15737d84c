"""Random functions under `torch.compile`, whose indices are an argument, a closure's tensor or a buffer, and may lie
outside. Where eager PyTorch takes them, results are compared."""

from __future__ import annotations

import contextlib
import functools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import tilewright as tw
from tests.fuzz import guarded, open_torch
from tests.fuzz.guards import Enough
from tilewright.dynamo import backend
from tilewright.dynamo.weights import Packed

text = open_torch.chain_text


class Held(nn.Module):
    """A function whose second argument is held by a module."""

    def __init__(self, chain: nn.Module) -> None:
        super().__init__()
        self.chain = chain
        self.register_buffer("ids", torch.tensor([0]))

    def forward(self, x: torch.Tensor) -> Any:
        return self.chain(x, self.ids)


TRACES = 3
"""Traces of sizes that eager PyTorch refuses, after which such sizes are left out: each costs as much as a program."""
PROGRAMS = 5
"""Programs that a function is compiled to at most."""
SPECIAL = (0, 1)
"""The sizes that TorchDynamo compiles a program of their own for."""


def pairs(rng: random.Random) -> list[tuple[int, int]]:
    """Pairs of sizes, the general ones first: one program serves them all. Of the special ones two kinds."""
    general = [s for s in (*guarded.SIZES, rng.randint(10, 200), rng.randint(10, 200)) if s not in SPECIAL]
    count = guarded.PAIRS - 6
    result = list(zip((general * 3)[:count], rng.choices(general, k=count), strict=True))
    kinds = [(n, m) for n in (*SPECIAL, None) for m in (*SPECIAL, None) if n is not None or m is not None]
    for n, m in rng.sample(kinds, 2):
        result += [tuple(rng.choice(general) if s is None else s for s in (n, m)) for _ in range(3)]
    return list(dict.fromkeys(result))


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the function of a seed at sizes n and m."""
    Packed._watching = lambda self, watched: self._repeat  # type: ignore[method-assign]  # all calls are guarded
    backend.decompositions = _decompositions  # type: ignore[attr-defined]  # the same for all programs
    chain, width, _ = open_torch.drawn(seed)
    torch._dynamo.reset()
    options = {"threads": threads, "min_block_size": 1}
    way = random.Random(seed).choice(("argument", "closure", "buffer"))
    held = Held(chain)
    cell = [torch.tensor([0])]

    def closed(x: torch.Tensor) -> Any:
        return chain(x, cell[0])

    function = {"argument": chain, "closure": closed, "buffer": held}[way]
    compiled = torch.compile(function, backend="tilewright", dynamic=True, options=options)
    last: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
    traced, traces = 0, _frames()
    # The sizes of a buffer are symbols only with these.
    open_buffers = {"force_nn_module_property_static_shapes": False, "force_parameter_static_shapes": way != "buffer"}

    def call(n: int, m: int) -> Any:
        nonlocal traced
        first = (n, m) not in last
        if first:
            last.clear()
            last[n, m] = _reference(chain, width, n, m)
        x, ids, want = last[n, m]
        if _frames() - traces > PROGRAMS + TRACES:
            raise Enough
        if want is None and traced >= TRACES and _reference_of(chain, x, torch.zeros_like(ids)) is None:
            raise tw.Error("sizes that eager PyTorch refuses")
        held.ids, cell[0] = ids, ids
        before = _frames()
        try:
            with warnings.catch_warnings(), torch._dynamo.config.patch(**open_buffers):
                warnings.simplefilter("ignore")
                got = compiled(x.clone(), ids) if way == "argument" else compiled(x.clone())
        except (RuntimeError, IndexError, ValueError) as error:  # PyTorch's
            traced += _frames() > before
            assert want is None, f"not taken at n = {n}, m = {m}: {error}"
            raise tw.Error(str(error)) from None
        for k, (a, b) in enumerate(zip(got, want or (), strict=want is not None) if first else ()):
            assert a.shape == b.shape and a.dtype == b.dtype, f"result {k} at n = {n}, m = {m}: {a.shape} for {b.shape}"
            step = max(2e-5, 2e-6 * float(b.abs().nan_to_num(0, 0, 0).max())) if b.numel() else 0  # sums may vanish
            close = torch.allclose(a, b, rtol=2e-5, atol=step, equal_nan=True)
            assert close or _is_rounding(chain, x, ids, k, a, b), (
                f"result {k} at n = {n}, m = {m}: {a.ravel()[:8]} for {b.ravel()[:8]}"
            )
        return [y.detach().numpy() for y in got]

    return call


_decompositions = functools.cache(backend.decompositions)


def _frames() -> int:
    """The functions that TorchDynamo has traced."""
    return int(torch._dynamo.utils.counters["frames"]["total"])


def _reference(chain: nn.Module, width: int, n: int, m: int) -> tuple[Any, Any, Any]:
    """Inputs at sizes n and m, and what eager PyTorch makes of them; None if it does not take them."""
    rng = np.random.default_rng(n)
    most = (max(n, 1), max(n, 1), 1 << 40)[m % 3]
    least = 0 if m % 3 == 0 else -most
    x = torch.from_numpy(rng.standard_normal((n, width)).astype(np.float32))
    ids = torch.from_numpy(rng.integers(least, most, m))
    return x, ids, _reference_of(chain, x, ids)


def _is_rounding(chain: nn.Module, x: torch.Tensor, ids: torch.Tensor, k: int, got: Any, want: Any) -> bool:
    """Whether result k differs from eager PyTorch's by no more than 32 times what f32 costs eager PyTorch itself, as
    where numbers that are equal but for rounding are normalised."""
    exact = _reference_of(chain, x.double(), ids)
    return exact is not None and bool((got - want).abs().max() <= 32 * (want - exact[k]).abs().max())


def _reference_of(chain: nn.Module, x: torch.Tensor, ids: torch.Tensor) -> Any:
    with contextlib.suppress(Exception):
        return chain(x.clone(), ids.clone())
    return None
