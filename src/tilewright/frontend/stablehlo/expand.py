"""CHLO operations decomposed to StableHLO, one at a time, by the pass that comes with StableHLO.

Operations that have rules are not decomposed, so that CHLO's `erf` becomes the operator `erf` and not a polynomial.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilewright.frontend.common.finish import first_line
from tilewright.frontend.stablehlo.module import Function, Operation
from tilewright.frontend.stablehlo.read import context, read_module
from tilewright.ir.dtype import DType
from tilewright.ir.graph import TensorType
from tilewright.support.errors import UnsupportedError


def expanded(op: Operation, types: Sequence[TensorType]) -> Function:
    """An elementwise CHLO operation as a StableHLO function of scalars, for operands of these element types."""
    return _expanded(op.name, tuple(_mlir(t.dtype) for t in types), op.types[0].element)


@lru_cache(maxsize=64)
def _expanded(name: str, operands: tuple[str, ...], result: str) -> Function:
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import stablehlo

    inputs = ", ".join(f"%x{k}" for k in range(len(operands)))
    arguments = ", ".join(f"%x{k}: tensor<{t}>" for k, t in enumerate(operands))
    kinds = ", ".join(f"tensor<{t}>" for t in operands)
    text = (
        f"func.func @main({arguments}) -> tensor<{result}> {{\n"
        f'  %y = "{name}"({inputs}) : ({kinds}) -> tensor<{result}>\n  return %y : tensor<{result}>\n}}'
    )
    stablehlo.register_stablehlo_passes()
    created = context()
    try:
        with created:
            parsed = ir.Module.parse(text, created)
            manager = passmanager.PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))")
            manager.run(parsed.operation)
        (function,) = read_module(parsed).functions.values()
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise UnsupportedError(f"the operation {name} is not supported", got=first_line(error)) from None
    if any(o.name == name for o in function.body.walk()):
        raise UnsupportedError(f"the operation {name} is not supported")
    return function


def _mlir(t: DType) -> str:
    return "i1" if t.kind == "bool" else f"ui{t.bits}" if t.kind == "uint" else t.name
