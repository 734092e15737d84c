"""Random functions under `torch.compile`, whose indices are an argument, a closure's tensor or a buffer, and may lie
outside. Where eager PyTorch takes them, results are compared."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import tilewright as tw
from tests.fuzz import open_torch
from tilewright.dynamo.weights import Packed

text = open_torch.text


class Held(nn.Module):
    """A function whose second argument is held by a module."""

    def __init__(self, chain: nn.Module) -> None:
        super().__init__()
        self.chain = chain
        self.register_buffer("ids", torch.tensor([0]))

    def forward(self, x: torch.Tensor) -> Any:
        return self.chain(x, self.ids)


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the function of a seed at sizes n and m."""
    Packed._watching = lambda self, watched: self._repeat  # type: ignore[method-assign]  # all calls are guarded
    chain, width, _ = open_torch.drawn(seed)
    torch._dynamo.reset()
    options = {"threads": threads}
    way = random.Random(seed).choice(("argument", "closure", "buffer"))
    held = Held(chain)
    cell = [torch.tensor([0])]

    def closed(x: torch.Tensor) -> Any:
        return chain(x, cell[0])

    function = {"argument": chain, "closure": closed, "buffer": held}[way]
    compiled = torch.compile(function, backend="tilewright", dynamic=True, options=options)

    def call(n: int, m: int) -> Any:
        rng = np.random.default_rng(n)
        most = (max(n, 1), max(n, 1), 1 << 40)[m % 3]
        least = 0 if m % 3 == 0 else -most
        x = torch.from_numpy(rng.standard_normal((n, width)).astype(np.float32))
        ids = torch.from_numpy(rng.integers(least, most, m))
        held.ids, cell[0] = ids, ids
        want = None
        with contextlib.suppress(Exception):
            want = chain(x.clone(), ids)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got = compiled(x, ids) if way == "argument" else compiled(x)
        except (RuntimeError, IndexError, ValueError) as error:  # PyTorch's
            assert want is None, f"not taken at n = {n}, m = {m}: {error}"
            raise tw.Error(str(error)) from None
        for k, (a, b) in enumerate(zip(got, want or (), strict=want is not None)):
            assert a.shape == b.shape and a.dtype == b.dtype, f"result {k} at n = {n}, m = {m}: {a.shape} for {b.shape}"
            close = torch.allclose(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)
            assert close, f"result {k} at n = {n}, m = {m}: {a.ravel()[:8]} for {b.ravel()[:8]}"
        return [y.numpy() for y in got]

    return call
