"""Random modules of PyTorch that its ONNX exporter writes with open axes, read as ONNX files and compared with eager
PyTorch at several sizes."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tilewright as tw
from tests.fuzz import open_torch
from tests.fuzz.compared import differs

text = open_torch.text


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the module of a seed at sizes n and m, compared with eager PyTorch's where that takes them. ModelError
    where it is refused."""
    chain, width, names = open_torch.drawn(seed)
    if "averages" in names or "strided" in names[1:]:
        # The exporter writes the first for the size of the example, and the second by places among the elements in
        # order, where PyTorch's are those in the memory of a view.
        raise tw.Error("no such module")
    example = torch.randn(6, width), torch.tensor([0, 2, 1, 0, 3])
    axes = {0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(chain, example, dynamo=True, dynamic_shapes=axes, verbose=False)
            proto = program.model_proto
    except Exception as error:  # PyTorch exports no such module
        raise tw.Error(str(error)) from None
    finally:
        logging.disable(before)
    model = tw.compile(proto, threads=threads, fallback="never")
    names = [spec.name for spec in model.inputs]

    def call(n: int, m: int) -> Any:
        rng = np.random.default_rng(n)
        x = rng.standard_normal((n, width)).astype(np.float32)
        ids = rng.integers(0, max(n, 1), m)
        feeds = dict(zip(("x", "ids"), (x, ids), strict=True))
        want = None
        with contextlib.suppress(Exception):
            want = chain(torch.from_numpy(x), torch.from_numpy(ids))
        got = model(*(feeds[name] for name in names))
        got = list(got) if isinstance(got, tuple | list) else [got]
        for k, (a, b) in enumerate(zip(got, want or (), strict=want is not None)):
            expected = b.detach().numpy()
            said = differs(np.asarray(a), expected, 2e-5 if expected.dtype.kind == "f" else None)
            assert not said, f"result {k} at n = {n}, m = {m}: {said}"
        return got

    return call
