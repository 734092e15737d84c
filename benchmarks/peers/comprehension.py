"""The peers that compute a function of `comprehension_suite.py`: ours, its loops as C, `opt_einsum` over NumPy, PyTorch
eagerly and through Inductor."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comprehension_suite import named
from tilewright.measure.contender import Prepared


def own(case: str) -> Prepared:
    """Ours, from text to code without measuring."""
    import tilewright as tw

    c = named(case)
    x = c.arrays()
    model = tw.comprehension(c.text).compiled(*x)
    return Prepared(lambda: model(*x), lambda: {"y": np.asarray(model(*x))})


def naive(case: str) -> Prepared:
    """The loops that `explain` prints as C, by `cc -O3 -march=native`."""
    c = named(case)
    x = c.arrays()
    text, result = _c_text(case)
    folder = Path(tempfile.mkdtemp())
    (folder / "f.c").write_text(text)
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(folder / "f.so"), str(folder / "f.c"), "-lm"]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(folder / "f.so")).naive
    spaces = [np.empty(int(size), np.uint8) for size in re.findall(r"a workspace of (\d+) bytes", text)]
    arrays = [*x, result, *spaces]
    places = [ctypes.c_void_p(a.ctypes.data) for a in arrays]

    def outputs() -> dict[str, Any]:
        return {"y": arrays[len(x)]}  # all of them live as long as this

    return Prepared(lambda: function(*places), outputs)


def _c_text(case: str) -> tuple[str, np.ndarray[Any, Any]]:
    """The C text of a comprehension's loops as they stand, and an array for its result."""
    import tilewright as tw
    from tilewright import te
    from tilewright.formulas.lowering import lower
    from tilewright.formulas.ranges import Scope
    from tilewright.ir.dtype import dtype
    from tilewright.ir.expr import as_expr
    from tilewright.ir.graph import TensorType

    c = named(case)
    types = [TensorType(dtype(a.dtype), tuple(map(as_expr, a.shape))) for a in c.arrays()]
    f = tw.comprehension(c.text)
    program = f.bind(types)
    inputs = {n: te.placeholder(t.shape, t.dtype, n) for n, t in zip(f.inputs, types, strict=True)}
    tensors = dict(inputs)
    for bound in program.bounds:
        scope = Scope(program.nests.source, program.sizes, {n: t.shape for n, t in tensors.items()})
        tensors[bound.nest.target] = lower(bound.nest, bound.extents, tensors, scope)
    created = tensors[f.outputs[-1]]
    built = tw.build(te.create_schedule(created), [*inputs.values(), created], name="naive")
    shape = tuple(int(str(d)) for d in created.shape)
    return built.source("c"), np.empty(shape, created.dtype.numpy)


def einsum(case: str) -> Prepared:
    """`opt_einsum` over NumPy's BLAS, its path found before."""
    import opt_einsum

    c = named(case)
    x = c.arrays()
    operands = c.einsum.split("->")[0].split(",")
    x += x[: len(operands) - len(x)]
    call = opt_einsum.contract_expression(c.einsum, *(a.shape for a in x))
    return Prepared(lambda: call(*x), lambda: {"y": call(*x)})


def eager(case: str) -> Prepared:
    """PyTorch as it is."""
    import torch

    torch.set_num_threads(1)
    c = named(case)
    x = [torch.from_numpy(a) for a in c.arrays()]
    return Prepared(lambda: c.torch(torch, *x), lambda: {"y": c.torch(torch, *x).numpy()})


def inductor(case: str) -> Prepared:
    """PyTorch through `torch.compile`."""
    import torch

    torch.set_num_threads(1)
    torch._dynamo.reset()  # a process that compiles many functions would give up after a few of them
    c = named(case)
    x = [torch.from_numpy(a) for a in c.arrays()]
    f = torch.compile(lambda *a: c.torch(torch, *a), dynamic=False)
    return Prepared(lambda: f(*x), lambda: {"y": f(*x).numpy()})
