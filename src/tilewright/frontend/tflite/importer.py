"""TFLite models: a file, or its bytes, to a graph and its weights.

Numbers of operators on 8 bits are those of TFLite's reference kernels, bit for bit, but for SOFTMAX, LOGISTIC and TANH,
which are computed in f32 and rounded to the nearest code. Maps of images have their channels last, as in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontend.common.finish import MALFORMED, finished, located, reason
from tilewright.frontend.tflite.call import Call
from tilewright.frontend.tflite.rules import RULES
from tilewright.frontend.tflite.schema import File, parse
from tilewright.ir.dim import DimSizes
from tilewright.ir.expr import const
from tilewright.ir.graph import GraphBuilder, TensorType, Value
from tilewright.ir.interface import Imported
from tilewright.support.errors import Error, ModelError, Problems, UnsupportedError

WEIGHT_RANK = 2
"""f32 constants of at least this many dimensions are weights, which updates may replace."""


def import_tflite(model: bytes | str | Path, dims: DimSizes | None = None, example: Any = None) -> Imported:
    """The graph of a TFLite file with its weights: constants of f32 with two dimensions or more; all others belong to
    the program.

    Raises ModelError for a damaged file, UnsupportedError listing every operator that is not read.
    """
    where = "model" if isinstance(model, bytes | bytearray) else str(model)
    if example is not None or dims:
        raise ModelError("a TFLite file has the sizes that it states", where=where, got="an example, or sizes")
    try:
        data = bytes(model) if isinstance(model, bytes | bytearray) else Path(model).read_bytes()
    except OSError as error:
        raise ModelError(f"cannot be read: {error}", where=where) from None
    try:
        return _imported(parse(data), Path(where).stem)
    except Error as error:
        raise located(error, where) from None


def _imported(file: File, name: str) -> Imported:
    unknown = sorted({o.name for o in file.operators if o.name not in RULES})
    if unknown:
        raise UnsupportedError("operators that are not read", expected=" ".join(sorted(RULES)), got=", ".join(unknown))
    builder = GraphBuilder(name)
    weights: dict[str, Any] = {}
    values: dict[int, Value] = {}
    for k in file.inputs:
        t = file.tensors[k]
        values[k] = builder.input(t.name or f"input{k}", TensorType(t.dtype, tuple(const(d) for d in t.shape)))
    for k, t in enumerate(file.tensors):
        if t.array is not None and t.dtype.name == "f32" and len(t.shape) >= WEIGHT_RANK:
            values[k] = builder.param(t.name or f"weight{k}", TensorType(t.dtype, tuple(const(d) for d in t.shape)))
            weights[values[k].name] = np.array(t.array)
    problems = Problems()
    for index, operator in enumerate(file.operators):
        label = f"operator {index} ({operator.name})"
        try:
            hint = file.tensors[operator.outputs[0]].name
            result = RULES[operator.name](Call(builder, weights, hint, file, operator, values))
        except Error as error:
            problems.add(located(error, label))
            break  # what follows reads it
        except MALFORMED as error:
            problems.add(ModelError(f"makes no sense: {reason(error)}", where=label))
            break
        values[operator.outputs[0]] = result
    problems.raise_if_any("the model cannot be read")
    missing = [file.tensors[k].name for k in file.outputs if k not in values]
    if missing:
        raise ModelError("nothing computes an output", got=", ".join(missing))
    outputs = [(file.tensors[k].name or f"output{k}", values[k]) for k in file.outputs]
    return finished(builder, outputs, weights)
