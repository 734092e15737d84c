"""Checks whether a model can be batched over agents, and computes the layout of its ring."""

from __future__ import annotations

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.live.broker.ring import MAX_ROWS, RingSpec, RingTensor, shape_of
from tilewright.live.broker.structs import MAX_SLOTS
from tilewright.runtime.interop import Array
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.runner import Runner
from tilewright.runtime.specs import InputSpec, OutputSpec
from tilewright.support.errors import BrokerError, Problems

MAX_LANES = 32
"""Batches that a broker may compute at the same time."""
_TOLERANCE = 1e-2
"""The tolerance for rows of a batch. Independent rows only differ by rounding, which is a thousand times smaller."""


def ring_spec(manifest: Manifest, agents: int, rows: int, max_batch: int) -> RingSpec:
    """The layout of the shared ring through which `agents` agents, with `rows` rows each, call the program of
    `manifest` as one batch. Raises BrokerError, which lists everything that prevents batching."""
    where = f"program {manifest.name!r}"
    if len(manifest.symbols) != 1:
        names = [s.name for s in manifest.symbols]
        hint = "compile the model with a symbolic batch dimension and no other"
        raise BrokerError("cannot be batched", where=where, expected="one symbolic dimension", got=names, hint=hint)
    symbol, problems = manifest.symbols[0], Problems()
    if symbol.lo > 1 or symbol.multiple != 1 or symbol.hi < max_batch:
        wanted = f"{symbol.name} from 1 to {max_batch}"
        got = f"{symbol.lo} to {symbol.hi} by {symbol.multiple}"
        problems.add(BrokerError("the batch is restricted", where=where, expected=wanted, got=got))
    specs: tuple[InputSpec | OutputSpec, ...] = (*manifest.inputs, *manifest.outputs)
    for tensor in specs:
        kind = "input" if isinstance(tensor, InputSpec) else "output"
        place = f"{where}: {kind} {tensor.name!r}"
        if [d for d in tensor.shape if isinstance(d, str)] != [symbol.name]:
            shape = f"[{', '.join(map(str, tensor.shape))}]"
            problems.add(BrokerError("is not one row of a batch for each agent", where=place, got=shape))
        if isinstance(tensor, InputSpec) and tensor.written:
            problems.add(BrokerError("is written to by the program", where=place))
    problems.raise_if_any("the program cannot be batched over agents", kind=BrokerError)
    spec = RingSpec(
        manifest.name,
        manifest.structure_key,
        tuple(RingTensor(i.name, i.dtype, i.shape) for i in manifest.inputs),
        tuple(RingTensor(o.name, o.dtype, o.shape) for o in manifest.outputs),
        agents,
        rows,
    )
    spec.check(where)
    return spec


def check_rows(model: Runner, spec: RingSpec, max_batch: int) -> None:
    """Run some rows as one batch and each alone. Raises BrokerError unless each row's result is the same and has the
    stated shape. Integer inputs other than bytes are zeros, as they may be indices; integer outputs are not compared,
    as an argmax may differ by rounding."""
    count = min(3, max_batch)
    for n in {count, max_batch}:
        outputs = model.empty_outputs(*[np.zeros(shape_of(t, n), BY_NAME[t.dtype].numpy) for t in spec.inputs])
        for t in spec.outputs:
            if outputs[t.name].shape != shape_of(t, n):
                got = f"{list(outputs[t.name].shape)} for {n} rows"
                raise BrokerError("is not one row of a batch for each agent", where=f"output {t.name!r}", got=got)
    random = np.random.default_rng(20)
    inputs = {t.name: _example(random, t, count) for t in spec.inputs}
    together = model.run(inputs)
    for row in range(count):
        alone = model.run({t.name: np.ascontiguousarray(_row(inputs[t.name], t, row)) for t in spec.inputs})
        for t in spec.outputs:
            if not _agree(_row(together[t.name], t, row), alone[t.name]):
                what = "a row's answer depends on the other rows"
                raise BrokerError(what, where=f"program {spec.name!r}: output {t.name!r}", got=f"row {row} of {count}")


def _example(random: np.random.Generator, tensor: RingTensor, rows: int) -> Array:
    dtype, shape = BY_NAME[tensor.dtype], shape_of(tensor, rows)
    if dtype.is_float:
        return random.random(shape, np.float32).astype(dtype.numpy)
    high = 256 if dtype.name == "u8" else 1
    return random.integers(0, high, shape).astype(dtype.numpy)


def _row(array: Array, tensor: RingTensor, row: int) -> Array:
    return np.take(array, [row], axis=tensor.axis)


def _agree(a: Array, b: Array) -> bool:
    if a.dtype.kind not in "fV" or not a.size:
        return True
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    scale = float(np.abs(a[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore"):  # infinities, which have no difference
        agrees = np.abs(a - b) <= _TOLERANCE * scale
    return bool(np.all(agrees | (a == b) | (np.isnan(a) & np.isnan(b))))


def check_options(max_batch: int, max_wait: float, agents: int, rows: int, lanes: int) -> None:
    """Raise BrokerError, which lists all invalid options of a broker: counts (`max_batch`, `agents`, `rows`, `lanes`)
    out of range, `max_wait` outside 0 to 10 seconds, or more `rows` than `max_batch`."""
    problems = Problems()
    for name, value, most in (
        ("max_batch", max_batch, MAX_ROWS), ("agents", agents, MAX_SLOTS), ("rows", rows, MAX_ROWS),
        ("lanes", lanes, MAX_LANES),
    ):  # fmt: skip
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 1 <= value <= most:
            problems.add(BrokerError("cannot be had", where=name, expected=f"1 to {most}", got=repr(value)))
    if not isinstance(max_wait, (int, float)) or not 0 <= max_wait <= 10:
        problems.add(BrokerError("cannot be had", where="max_wait", expected="0 to 10 seconds", got=repr(max_wait)))
    if not len(problems) and rows > max_batch:
        problems.add(BrokerError("does not fit into a batch", where="rows", expected=f"at most {max_batch}", got=rows))
    problems.raise_if_any("the broker cannot be made", kind=BrokerError)
