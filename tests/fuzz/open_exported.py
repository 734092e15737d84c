"""Random modules of PyTorch that its ONNX exporter writes with open axes, read as ONNX files and compared with eager
PyTorch at several sizes."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

import tilewright as tw
from tests.fuzz import open_torch
from tests.fuzz.compared import differs

text = open_torch.chain_text


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the module of a seed at sizes n and m, compared with eager PyTorch's where that takes them. ModelError
    where it is refused."""
    chain, width, names = open_torch.drawn(seed)
    if "averages" in names or "size if long" in names or "strided" in names[1:]:
        # The exporter writes the first two for the size of the example, and the third by places among the elements in
        # order, where PyTorch's are those in the memory of a view.
        raise tw.Error("no such module")
    example = torch.randn(6, width), torch.tensor([0, 2, 1, 0, 3])
    axes = {0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}
    ONNXRegistry.from_torchlib = staticmethod(_registry)  # type: ignore[method-assign]
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            exported = torch.export.export(chain, example, dynamic_shapes=axes)
            program = torch.onnx.export(exported, dynamo=True, verbose=False, optimize=seed % 2 == 0)
            proto = program.model_proto
    except Exception as error:  # PyTorch exports no such module
        raise tw.Error(str(error)) from None
    finally:
        logging.disable(before)
    model = tw.compile(proto, threads=threads, fallback="never")
    names = [spec.name for spec in model.inputs]
    last: dict[tuple[int, int], tuple[dict[str, Any], Any]] = {}

    def call(n: int, m: int) -> Any:
        first = (n, m) not in last
        if first:
            rng = np.random.default_rng(n)
            x = rng.standard_normal((n, width)).astype(np.float32)
            ids = rng.integers(0, max(n, 1), m)
            last.clear()
            last[n, m] = {"x": x, "ids": ids}, None
            with contextlib.suppress(Exception):
                last[n, m] = {"x": x, "ids": ids}, chain(torch.from_numpy(x.copy()), torch.from_numpy(ids.copy()))
        feeds, want = last[n, m]
        got = model(*(feeds[name] for name in names))
        got = list(got) if isinstance(got, tuple | list) else [got]
        for k, (a, b) in enumerate(zip(got, want or (), strict=want is not None) if first else ()):
            expected = b.detach().numpy()
            said = differs(np.asarray(a), expected, 2e-5 if expected.dtype.kind == "f" else None)
            assert not said or _is_onnx(proto, feeds, k, np.asarray(a)), f"result {k} at n = {n}, m = {m}: {said}"
        return got

    return call


def _is_onnx(proto: Any, feeds: dict[str, Any], k: int, got: Any) -> bool:
    """Whether ONNX Runtime gives the same as ours, so that the exporter wrote something else than the module."""
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {spec.name for spec in session.get_inputs()}
    want = session.run(None, {name: a for name, a in feeds.items() if name in wanted})[k]
    return not differs(got, want, 2e-5 if want.dtype.kind == "f" else None)


_registry = functools.cache(ONNXRegistry.from_torchlib)
"""The exporter's table of operators, which it builds anew for each module: half of its time."""
