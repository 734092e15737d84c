#!/usr/bin/env bash
# ai-edge-litert 2.3.0: the same 8-bit numbers as a fully connected layer and as a 1x1 convolution differ by one step in
# places, with the reference kernels of one runtime.
#
# CONV_2D multiplies a sum by the scales' quotient as a fixed-point number and rounds twice, first to 31 bits, then to the
# result; FULLY_CONNECTED rounds once. Where a sum times the quotient is near a half the two are not equal: with a quotient
# of 1/512, where halves are exact, in 0.1 % of the results. A bound of half a step against real numbers holds for the one
# alone, and bits that were read from one operator say nothing about the other.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet ai-edge-litert==2.3.0 flatbuffers==25.12.19 numpy
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import importlib.metadata
import sys

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

ROWS, DEPTH, COLUMNS = 2000, 16, 32
rng = np.random.default_rng(0)
X = rng.integers(-128, 128, (ROWS, DEPTH)).astype(np.int8)
W = rng.integers(-127, 128, (COLUMNS, DEPTH)).astype(np.int8)


def tensor(buffers, shape, kind, scale, data=None):
    made = schema.TensorT()
    made.shape, made.type, made.name = list(shape), kind, b"t%d" % len(buffers)
    made.quantization = schema.QuantizationParametersT()
    made.quantization.scale, made.quantization.zeroPoint = [scale], [0]
    made.buffer = len(buffers)
    buffer = schema.BufferT()
    buffer.data = None if data is None else np.frombuffer(data.tobytes(), np.uint8)
    buffers.append(buffer)
    return made


def model(convolution):
    front = (1, 1, ROWS) if convolution else (ROWS,)
    buffers = [schema.BufferT()]
    graph = schema.SubGraphT()
    int8, int32 = schema.TensorType.INT8, schema.TensorType.INT32
    graph.tensors = [
        tensor(buffers, (*front, DEPTH), int8, 1.0),
        tensor(buffers, (COLUMNS, 1, 1, DEPTH) if convolution else W.shape, int8, 1.0, W),
        tensor(buffers, (COLUMNS,), int32, 1.0, np.zeros(COLUMNS, np.int32)),
        tensor(buffers, (*front, COLUMNS), int8, 512.0),
    ]
    node = schema.OperatorT()
    node.inputs, node.outputs = [0, 1, 2], [3]
    code = schema.OperatorCodeT()
    if convolution:
        node.builtinOptionsType, node.builtinOptions = schema.BuiltinOptions.Conv2DOptions, schema.Conv2DOptionsT()
        node.builtinOptions.strideW = node.builtinOptions.strideH = 1
        node.builtinOptions.padding = schema.Padding.VALID
        code.builtinCode, code.version = schema.BuiltinOperator.CONV_2D, 3
    else:
        node.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
        node.builtinOptions = schema.FullyConnectedOptionsT()
        code.builtinCode, code.version = schema.BuiltinOperator.FULLY_CONNECTED, 4
    code.deprecatedBuiltinCode = code.builtinCode
    graph.operators, graph.inputs, graph.outputs = [node], [0], [3]
    whole = schema.ModelT()
    whole.version, whole.operatorCodes, whole.subgraphs, whole.buffers = 3, [code], [graph], buffers
    builder = flatbuffers.Builder(0)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def results(convolution):
    interpreter = Interpreter(
        model_content=model(convolution), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, X.reshape(1, 1, ROWS, DEPTH) if convolution else X)
    interpreter.invoke()
    return interpreter.get_tensor(3).reshape(ROWS, COLUMNS).astype(int)


print("ai-edge-litert", importlib.metadata.version("ai-edge-litert"))
connected, convolved = results(False), results(True)
sums = X.astype(int) @ W.T.astype(int)
once = np.clip(np.sign(sums) * ((2 * np.abs(sums) + 512) // 1024), -128, 127)  # half away from zero
differ = np.abs(connected - convolved)
print("fully connected and convolution differ in", int((differ > 0).sum()), "of", differ.size, "by at most", int(differ.max()))
print("not rounded once:", int((connected != once).sum()), "(fully connected),", int((convolved != once).sum()), "(convolution)")
places = np.argwhere(differ)[:3]
print("such sums, of 512:", [int(sums[i, j]) for i, j in places], "->", [(int(connected[i, j]), int(convolved[i, j])) for i, j in places])
sys.exit(not (0 < (differ > 0).sum() < 200 and differ.max() == 1 and (connected == once).all()))
PYTHON
