"""The positions of operands and stages in a function that computes attention."""

from __future__ import annotations

from tilewright.ir.expr import Buffer, Const, Expr, Load
from tilewright.ir.loops import Store
from tilewright.ir.rewrite import walk
from tilewright.ops.loopnest import zero_index
from tilewright.ops.lowered.attention import ATTENTION, AttentionAttrs
from tilewright.plans.framework.analysis import Stage, Structure
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Operands:
    """The parameters of a function by their roles for the operator (see its type rule), and its attributes; `scale` and
    `substitute` are elements, or numbers."""

    attrs: AttentionAttrs
    q: Buffer
    k: Buffer
    v: Buffer
    y: Buffer
    mask: Buffer | None = None
    scale: Expr | None = None
    substitute: Expr | None = None
    past_k: Buffer | None = None
    past_v: Buffer | None = None
    starts: Buffer | None = None


def operands(structure: Structure) -> Operands | None:
    """The operands, found by the names of the operator's stages, if the function computes attention and nothing else;
    else None."""
    result = structure.operator(ATTENTION)
    if result is None:
        return None
    numbers = {s.writes[0]: number for s in structure.stages if (number := _number(s)) is not None}
    if len(result.stages) + len(numbers) != len(structure.stages):
        return None
    stages = {stage.origin.stage: stage for stage in result.stages if stage.origin is not None}
    params = structure.func.params

    def array(name: str) -> Buffer | None:
        return next((b for b in stages[name].reads if b in params), None) if name in stages else None

    def single(name: str) -> Expr | None:
        buffer = array(name)
        if name not in stages or buffer is not None:
            return None if buffer is None else Load(buffer, zero_index(buffer))
        return next((numbers[b] for b in stages[name].reads if b in numbers), None)

    q, k, v = (array(name) for name in ("queries", "keys", "values"))
    mask, scale, substitute = array("mask"), single("scale"), single("substitute")
    (y,) = stages["y"].writes
    arguments = (("mask", mask), ("scale", scale), ("substitute", substitute))
    if q is None or k is None or v is None or y not in params or any(n in stages and e is None for n, e in arguments):
        return None
    return Operands(
        result.attrs, q, k, v, y, mask, scale, substitute, array("past_keys"), array("past_values"), array("starts")
    )


def _number(stage: Stage) -> Const | None:
    """The number that a stage computes, if it is a constant of one element."""
    if stage.origin is None or stage.origin.op != "constant":
        return None
    values = [s.value for s in walk(stage.block.body) if isinstance(s, Store)]
    return values[0] if len(values) == 1 and isinstance(values[0], Const) else None
