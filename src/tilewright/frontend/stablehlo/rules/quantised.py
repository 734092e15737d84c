"""Rules for operations that only quantised types have; the importer rounds their results like all others
(`quantised.py`)."""

from __future__ import annotations

from tilewright.frontend.stablehlo.call import Call
from tilewright.frontend.stablehlo.quantised import quantised_type
from tilewright.frontend.stablehlo.registry import rule
from tilewright.frontend.stablehlo.scope import Item
from tilewright.ir.graph import Value
from tilewright.support.errors import ModelError


@rule("quant.uniform_quantize", "quant.uniform_dequantize")
def quantize(call: Call) -> Item:
    """The operand itself; the importer rounds it to the result's quantised type."""
    return call.item(0)


@rule("quant.constant")
def constant(call: Call) -> Value:
    """The codes of a quantised constant."""
    t = quantised_type(call.op.types[0].element)
    if t is None or "value" not in call.op.attributes:
        raise ModelError("a constant of codes has no value")
    return call.constant(call.as_array(call.op.attributes["value"]), t.storage)
