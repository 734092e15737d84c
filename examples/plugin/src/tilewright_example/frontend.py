"""A reader of `.chain` files: the shape of the input, then one operator a line, each working on the result before it.

input 4 256
soft_clip 1.5
neg
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.frontend.common.finish import finished
from tilewright.frontend.registry import Frontend
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ir.interface import Imported
from tilewright.ops import emit1
from tilewright.support.errors import ModelError
from tilewright_example.operator import NAME

POINTWISE = ("abs", "exp", "neg", "relu", "sigmoid", "tanh")
"""Operators without attributes that may stand in a line."""


def reads(model: Any) -> bool:
    return isinstance(model, str | Path) and Path(model).suffix == ".chain"


def load(model: Any, dims: Mapping[str, int], example: Any) -> Imported:
    path = Path(model)
    lines = path.read_text().splitlines()
    builder = GraphBuilder(path.stem)
    value = None
    for number, line in enumerate(lines, 1):
        match line.split():
            case []:
                continue
            case ["input", *sizes] if value is None and all(size.isdecimal() for size in sizes):
                value = builder.input("x", TensorType(f32, tuple(as_expr(int(size)) for size in sizes)))
            case ["soft_clip", limit] if value is not None:
                value = emit1(builder, NAME, value, limit=float(limit))
            case [op] if value is not None and op in POINTWISE:
                value = emit1(builder, op, value)
            case _:
                raise ModelError("the line makes no sense", where=f"{path}:{number}", got=repr(line))
    if value is None:
        raise ModelError("there is no input", where=str(path))
    return finished(builder, [("y", value)], {})


CHAIN = Frontend("chain", reads, load)
