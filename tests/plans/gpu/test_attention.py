"""Attention as one kernel with a running softmax: emulator, grid interpreter and what was not scheduled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.ptx.cases import H100, ROWS, arguments, check, emit, function, lowered, tensor
from tests.plans.gpu.test_races import without
from tilewright import plans
from tilewright.codegen.interpret.grid import interpret_grid
from tilewright.codegen.interpret.interpreter import InterpretError, interpret
from tilewright.codegen.ptx.emit import emit_module
from tilewright.compiler import compile_program
from tilewright.ir.expr import Var
from tilewright.ir.graph import GraphBuilder
from tilewright.ir.loops import Barrier, Intrinsic, PrimFunc
from tilewright.ir.rewrite import walk
from tilewright.ops.lowered.attention import ORDERS
from tilewright.plans.gpu import attention as plan
from tilewright.targets.target import Target

TF32 = 2e-2
EARLIER = Var("earlier", lo=0, hi=4096)


def attention(
    rows: int | Var,
    keys: int | Var,
    *,
    heads: tuple[int, int] = (2, 2),
    depth: tuple[int, int] = (16, 16),
    batch: int = 1,
    t: str = "f32",
    order: str = "ssss",
    mask: tuple[str, tuple[Any, ...]] | None = None,
    past: int | Var | None = None,
    substitute: bool = False,
    **scores: Any,
) -> PrimFunc:
    """Attention of these sizes: query heads and heads of keys, depths of both products, type and shape of the mask."""

    def build(b: Any) -> Any:
        sizes = ((rows, heads[0], depth[0]), (keys, heads[1], depth[0]), (keys, heads[1], depth[1]))
        inputs = []
        for name, o, (length, h, d) in zip("qkv", order, sizes, strict=False):
            point = (batch, length, h, d)
            inputs.append(b.input(name, tensor(*(point[k] for k in ORDERS[o]), t=t)))
        inputs.append(None if mask is None else b.input("mask", tensor(*mask[1], t=mask[0])))
        inputs += [None, b.input("substitute", tensor(1, t=t)) if substitute else None]
        if past is not None:
            inputs += [b.input(f"past_{d}", tensor(batch, heads[1], past, d, t=t)) for d in depth]
        attrs: dict[str, Any] = {"first": (0, 0, 0), "scale": 0.25, "causal": False, "fill": -1e9, "guard": False}
        attrs |= {"order": order, "heads": heads[0], "groups": heads[1]}
        return (emit(b, "lowered.attention", *inputs, **attrs | scores),)

    return function(build)


CASES = {
    "f32 of other depths": (attention(20, 24, depth=(12, 20)), TF32),
    "open lengths": (attention(ROWS, ROWS, t="bf16"), 2e-2),
    "causal, heads share keys": (attention(ROWS, ROWS, heads=(4, 2), t="f16", causal=True), 2e-3),
    "causal, f32, a batch": (attention(19, 35, batch=2, causal=True, heads=(1, 1)), TF32),
    "rows without a key": (attention(20, 4, t="f16", causal=True, guard=True), 2e-3),
    "an added mask": (attention(18, 20, t="f16", batch=2, mask=("f16", (2, 1, 1, 20))), 2e-3),
    "a mask that selects": (attention(18, ROWS, mask=("bool", (18, ROWS)), heads=(1, 1)), TF32),
    "a cache": (attention(3, 3, t="f16", heads=(4, 2), order="hhhs", causal=True, past=EARLIER), 2e-3),
    "single elements": (attention(17, 19, t="f16", depth=(7, 9), order="tths", heads=(1, 1)), 2e-3),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "WARPS", (2,))
    monkeypatch.setattr(plan, "KEYS", (16,))


@pytest.mark.costly(6)
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step over the keys or several, one tile of rows or two, without races."""
    monkeypatch.setattr(plan, "WARPS", (1 + list(CASES).index(name) % 2,))
    func, tolerance = CASES[name]
    flat = check(func, "gpu attention", rows=21, tolerance=tolerance, loops=False)
    arrays = arguments(flat, dict.fromkeys(func.symbols, 21))
    wanted = [a.copy() for a in arrays[: len(func.params)]]
    interpret(func, wanted)
    interpret_grid(flat, arrays)
    # Shares of 16 bits are rounded, so that each result is what a sum of 21 rounded numbers may be off.
    exact = 1e-5 if func.params[0].dtype.bits == 32 else tolerance
    for got, expected in zip(arrays, wanted, strict=False):
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=exact, atol=exact)


def test_the_barrier_is_needed() -> None:
    """Keys of the next step are copied while the values of this one are read: one barrier a step."""
    func, _ = CASES["f32 of other depths"]
    flat = lowered(func, "gpu attention")
    assert sum(isinstance(s, Barrier) for s in walk(flat.body)) == 1
    bare = without(flat)
    with pytest.raises(InterpretError, match="a race on"):
        interpret_grid(bare, arguments(bare, {}))


@pytest.mark.costly(6)
@pytest.mark.parametrize(("t", "depth"), [("f32", 128), ("f16", 256), ("bf16", 64)])
@pytest.mark.parametrize("cpu", ["sm_80", "sm_90a"])
def test_large_heads_fit(t: str, depth: int, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the depth, tiles fit in shared memory."""
    monkeypatch.undo()
    target = Target.parse(f"nvidia-{cpu}")
    flat = lowered(attention(2048, 2048, t=t, depth=(depth, depth)), "gpu attention", target)
    (launch,) = emit_module(flat, target).launches
    assert launch.shared + launch.stated <= (target.gpu.shared if target.gpu else 0)


def test_what_it_leaves_to_others() -> None:
    """A share for rows without keys is summed over all keys."""
    planned = plans.plan(attention(20, 24, substitute=True, guard=True, causal=True), H100)
    assert planned.plan != "gpu attention"


def test_models_attend_in_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and a softmax between, of open lengths, as exporters write them."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    b = GraphBuilder("model")
    q, k, v = (b.input(n, tensor(2, 4, ROWS, 16, t="f16")) for n in "qkv")
    shares = emit(b, "softmax", emit(b, "matmul", q, k, transpose_b=True), axis=-1)
    program = compile_program((b.finish((emit(b, "matmul", shares, v),)), {}), target="nvidia-sm_90")
    (step,) = program.manifest.run_steps
    assert step.label == "attention"
    text = str(program.texts["asm"]())  # type: ignore[operator]
    assert text.count(".entry") == 1 and "mma.sync" in text


def test_shares_stay_in_registers() -> None:
    """The second product takes them from where the first one and the softmax have left them."""
    func, _ = CASES["causal, heads share keys"]
    flat = lowered(func, "gpu attention")
    names = {s.name for s in walk(flat.body) if isinstance(s, Intrinsic)}
    assert names == {"copy_async_f16", "mma_f16", "mma_held_f16", "quad_larger_f32", "quad_add_f32"}
