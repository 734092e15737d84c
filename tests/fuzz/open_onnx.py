"""Random ONNX models of open sizes: chains of operators on matrices whose attributes, weights and data may not fit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

Random = random.Random


class Chain:
    """A graph that is being made, of inputs x and y: f32[n, c] (or [c, n]), and `ids`: i64[m]."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.axis = 0 if rng.random() < 0.7 else 1
        self.width = rng.choice((1, 3, 4, 8, 17))
        self.count = 0

    def node(self, op: str, *inputs: str, outputs: int = 1, take: int = 0, **attributes: Any) -> str:
        self.count += 1
        names = [f"v{self.count}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[take]

    def numbers(self, *values: int) -> str:
        return self.array(np.array(values, np.int64))

    def array(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def number(self, value: float = 0.0) -> str:
        return self.array(np.array(value, np.float32))

    def shape_of(self, x: str, axis: int) -> str:
        return self.node("Gather", self.node("Shape", x), self.numbers(axis), axis=0)

    def ids(self, x: str, axis: int) -> str:
        """Data that are places in x, perhaps."""
        return self.rng.choice(("ids", self.node("Mod", "ids", self.shape_of(x, axis))))


Step = Callable[[Chain, str], str]


def _axis(g: Chain) -> int:
    return g.axis if g.rng.random() < 0.7 else 1 - g.axis


def _slice(g: Chain, x: str) -> str:
    begin, end = g.rng.randint(-6, 6), g.rng.choice([1, 2, 5, -1, -3, 2**31, 2**63 - 1, -(2**63)])
    steps = g.numbers(g.rng.choice([1, 2, 3, -1, -2, 2**62, -(2**62)]))
    return g.node("Slice", x, g.numbers(begin), g.numbers(end), g.numbers(_axis(g)), steps)


def _slice_data(g: Chain, x: str) -> str:
    """Ends that data says."""
    one, two = (g.node("Gather", "ids", g.numbers(g.rng.choice((0, -1))), axis=0) for _ in range(2))
    return g.node("Slice", x, one, two, g.numbers(_axis(g)))


def _gather(g: Chain, x: str) -> str:
    places = [g.rng.randint(-4, 4) for _ in range(g.rng.randint(1, 3))]
    return g.node("Gather", x, g.numbers(*places), axis=_axis(g))


def _gather_data(g: Chain, x: str) -> str:
    axis = _axis(g)
    return g.node("Gather", x, g.ids(x, axis), axis=axis)


def _gather_elements(g: Chain, x: str) -> str:
    axis = _axis(g)
    places = g.node("Unsqueeze", g.ids(x, axis), g.numbers(1 - axis))
    return g.node("GatherElements", x, places, axis=axis)


def _gather_nd(g: Chain, x: str) -> str:
    return g.node("GatherND", x, g.node("Unsqueeze", g.ids(x, 0), g.numbers(1)))


def _scatter(g: Chain, x: str) -> str:
    axis = _axis(g)
    places = g.node("Unsqueeze", g.ids(x, axis), g.numbers(1 - axis))
    values = g.node("Cast", places, to=TensorProto.FLOAT)
    reduction = g.rng.choice(("none", "add", "max"))
    return g.node("ScatterElements", x, places, values, axis=axis, reduction=reduction)


def _scatter_nd(g: Chain, x: str) -> str:
    places = g.ids(x, 0)
    values = g.node("Expand", g.number(2), g.node("Concat", g.node("Shape", places), g.shape_of(x, 1), axis=0))
    return g.node(
        "ScatterND", x, g.node("Unsqueeze", places, g.numbers(1)), values, reduction=g.rng.choice(("none", "add"))
    )


def _pad(g: Chain, x: str) -> str:
    mode, axis = g.rng.choice(["constant", "edge", "reflect", "wrap"]), _axis(g)
    pads = [0, 0, 0, 0]
    pads[axis], pads[2 + axis] = g.rng.randint(-1, 3), g.rng.randint(-1, 3)
    return g.node("Pad", x, g.numbers(*pads), mode=mode)


def _reduce(g: Chain, x: str) -> str:
    op = g.rng.choice(
        ["ReduceMax", "ReduceSum", "ReduceMean", "ReduceMin", "ReduceL2", "ReduceLogSumExp", "ReduceProd"]
    )
    return g.node(op, x, g.numbers(_axis(g)), keepdims=1)


def _arg(g: Chain, x: str) -> str:
    places = g.node(
        g.rng.choice(("ArgMax", "ArgMin")), x, axis=_axis(g), keepdims=1, select_last_index=g.rng.randint(0, 1)
    )
    return g.node("Cast", places, to=TensorProto.FLOAT)


def _split(g: Chain, x: str) -> str:
    if g.rng.random() < 0.5:
        return g.node("Split", x, outputs=2, take=g.rng.randint(0, 1), axis=_axis(g), num_outputs=2)
    return g.node("Split", x, g.numbers(g.rng.randint(0, 3), g.rng.randint(0, 3)), outputs=2, axis=_axis(g))


def _topk(g: Chain, x: str) -> str:
    return g.node("TopK", x, g.numbers(g.rng.randint(0, 3)), outputs=2, axis=_axis(g), largest=g.rng.randint(0, 1))


def _reshape(g: Chain, x: str) -> str:
    return g.node("Reshape", x, g.numbers(*g.rng.choice([(-1, 1), (1, -1), (-1, 2), (3, -1), (0, -1), (-1, g.width)])))


def _pool(g: Chain, x: str) -> str:
    size, stride = g.rng.randint(1, 4), g.rng.randint(1, 3)
    pads = [g.rng.randint(0, size - 1), g.rng.randint(0, size - 1)]
    op = g.rng.choice(("MaxPool", "AveragePool", "LpPool"))
    more = {"ceil_mode": g.rng.randint(0, 1)}
    y = g.node(op, g.node("Unsqueeze", x, g.numbers(0)), kernel_shape=[size], strides=[stride], pads=pads, **more)
    return g.node("Squeeze", y, g.numbers(0))


def _conv(g: Chain, x: str) -> str:
    size, out = g.rng.randint(1, 4), g.rng.choice((1, 3, 8))
    w = np.random.default_rng(g.count).standard_normal((out, 1, size)).astype(np.float32)
    pads = [g.rng.randint(0, 2), g.rng.randint(0, 2)]
    attributes = {"pads": pads, "strides": [g.rng.randint(1, 2)], "dilations": [g.rng.randint(1, 3)]}
    y = g.node("Conv", g.node("Unsqueeze", x, g.numbers(1)), g.array(w), **attributes)
    return g.node("ReduceSum", y, g.numbers(1), keepdims=0)


def _conv_transposed(g: Chain, x: str) -> str:
    size = g.rng.randint(1, 4)
    w = np.ones((1, 2, size), np.float32)
    pads = [g.rng.randint(0, 2), g.rng.randint(0, 2)]
    y = g.node(
        "ConvTranspose", g.node("Unsqueeze", x, g.numbers(1)), g.array(w), pads=pads, strides=[g.rng.randint(1, 3)]
    )
    return g.node("ReduceSum", y, g.numbers(1), keepdims=0)


def _image(g: Chain, x: str) -> str:
    """A convolution over the matrix as an image of one channel."""
    w = np.random.default_rng(g.count).standard_normal((g.rng.choice((1, 8, 17)), 1, 3, 3)).astype(np.float32)
    y = g.node("Conv", g.node("Unsqueeze", x, g.numbers(0, 1)), g.array(w), pads=[g.rng.randint(0, 1)] * 4)
    return g.node("Squeeze", g.node("ReduceMax", y, g.numbers(1), keepdims=0), g.numbers(0))


def _resize(g: Chain, x: str) -> str:
    mode = g.rng.choice(("nearest", "linear", "cubic"))
    way = g.rng.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    scales = g.array(np.array([1, 1, g.rng.choice((0.3, 0.5, 1.5, 2)), 1], np.float32))
    y = g.node(
        "Resize", g.node("Unsqueeze", x, g.numbers(0, 1)), "", scales, mode=mode, coordinate_transformation_mode=way
    )
    return g.node("Squeeze", y, g.numbers(0, 1))


def _nonzero(g: Chain, x: str) -> str:
    result = g.node("NonZero", g.node("Greater", x, g.number(0.3)))
    return g.node("Cast", result, to=TensorProto.FLOAT)


def _compress(g: Chain, x: str) -> str:
    axis = _axis(g)
    retained = g.node("Greater", g.node("ReduceMax", x, g.numbers(1 - axis), keepdims=0), g.number(0.5))
    return g.node("Compress", x, retained, axis=axis)


def _unique(g: Chain, x: str) -> str:
    return (
        g.node("Unique", x, outputs=1, axis=_axis(g))
        if g.rng.random() < 0.5
        else g.node("Unsqueeze", g.node("Unique", x), g.numbers(0))
    )


def _one_hot(g: Chain, x: str) -> str:
    places = g.node("ArgMax", x, axis=1, keepdims=0)
    depth = g.rng.choice((g.numbers(g.rng.randint(0, 5)), g.shape_of(x, 1)))
    return g.node("OneHot", places, depth, g.array(np.array([0, 1], np.float32)))


def _tile(g: Chain, x: str) -> str:
    return g.node("Tile", x, g.numbers(g.rng.randint(0, 3), g.rng.randint(0, 3)))


def _tile_data(g: Chain, x: str) -> str:
    times = g.node("Mod", g.node("Gather", "ids", g.numbers(0), axis=0), g.numbers(4))
    return g.node("Tile", x, g.node("Concat", times, g.numbers(1), axis=0))


def _expand(g: Chain, x: str) -> str:
    row = g.node("ReduceMax", x, g.numbers(0), keepdims=1)
    return g.node("Expand", row, g.node("Concat", g.shape_of("y", g.axis), g.numbers(1), axis=0))


def _range(g: Chain, x: str) -> str:
    end = g.node("Squeeze", g.shape_of(x, 0))
    row = g.node("Range", g.array(np.array(g.rng.randint(-2, 2))), end, g.array(np.array(g.rng.choice((1, 2, -1)))))
    return g.node("Unsqueeze", g.node("Cast", row, to=TensorProto.FLOAT), g.numbers(1))


def _loop(g: Chain, x: str) -> str:
    """A recurrence of the rows, as Scan."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "r"], ["t"]),
            helper.make_node("Tanh", ["t"], ["u"]),
            helper.make_node("Identity", ["u"], ["o"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("s", "r")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("u", "o")],
    )
    start = g.node("ReduceSum", x, g.numbers(0), keepdims=0)
    return g.node("Scan", start, x, outputs=2, take=1, body=body, num_scan_inputs=1)


def _counted(g: Chain, x: str) -> str:
    """A Loop as long as data says, which collects."""
    count = g.node("Squeeze", g.node("Mod", g.node("Gather", "ids", g.numbers(0), axis=0), g.numbers(7)))
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("Mul", ["s", "s"], ["t"]),
            helper.make_node("ReduceSum", [x, "one"], ["o"], keepdims=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("o", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(np.array([g.rng.randint(0, 1)]), "one")],
    )
    return g.node("Loop", count, "", g.number(0.5), outputs=2, take=1, body=body)


def _gemm(g: Chain, x: str) -> str:
    """A product with weights, of a width that is made known."""
    y = g.node("Reshape", x, g.numbers(-1, g.width))
    w = np.random.default_rng(g.count).standard_normal((g.width, g.rng.choice((1, 5, 16, 33)))).astype(np.float32)
    return g.node("MatMul", y, g.array(w))


def _lstm(g: Chain, x: str) -> str:
    y = g.node("Reshape", x, g.numbers(-1, 1, g.width))
    op, gates, size = *g.rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1))), g.rng.choice((1, 4, 5))
    rng = np.random.default_rng(g.count)
    w, r = (rng.standard_normal((1, gates * size, k)).astype(np.float32) for k in (g.width, size))
    return g.node("Reshape", g.node(op, y, g.array(w), g.array(r), hidden_size=size), g.numbers(-1, size))


def _reverse_sequence(g: Chain, x: str) -> str:
    lengths = g.node("Expand", g.numbers(g.rng.randint(-1, 4)), g.shape_of(x, 1))
    return g.node("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)


def _crop(g: Chain, x: str) -> str:
    return g.node("CenterCropPad", x, g.numbers(g.rng.randint(0, 9)), axes=[_axis(g)])


def _trilu(g: Chain, x: str) -> str:
    k = g.array(np.array(g.rng.choice((-(2**63), -3, 0, 1, 5, 2**63 - 1)), np.int64))
    return g.node("Trilu", x, k, upper=g.rng.randint(0, 1))


def _quantised(g: Chain, x: str) -> str:
    y = g.node("QuantizeLinear", x, g.number(0.1), g.array(np.array(3, np.uint8)))
    return g.node("DequantizeLinear", y, g.number(0.1), g.array(np.array(3, np.uint8)))


def _integers(g: Chain, x: str) -> str:
    y = g.node("Cast", g.node("Clip", x, g.number(-3), g.number(3)), to=TensorProto.INT8)
    return g.node("Cast", g.node("MatMulInteger", y, g.node("Transpose", y)), to=TensorProto.FLOAT)


STEPS: dict[str, Step] = {
    "slice": _slice,
    "slice by data": _slice_data,
    "gather": _gather,
    "gather by data": _gather_data,
    "gather elements": _gather_elements,
    "gather nd": _gather_nd,
    "scatter": _scatter,
    "scatter nd": _scatter_nd,
    "pad": _pad,
    "relu": lambda g, x: g.node(g.rng.choice(("Relu", "Tanh", "Exp", "Erf", "Neg")), x),
    "softmax": lambda g, x: g.node(g.rng.choice(("Softmax", "LogSoftmax", "Hardmax")), x, axis=_axis(g)),
    "reduce": _reduce,
    "arg": _arg,
    "concat": lambda g, x: g.node("Concat", x, g.rng.choice(("x", "y", x)), axis=_axis(g)),
    "add": lambda g, x: g.node(g.rng.choice(("Add", "Mul", "Max", "Sub")), x, g.rng.choice(("x", "y", x))),
    "where": lambda g, x: g.node("Where", g.node("Greater", x, g.number(0)), x, "y"),
    "split": _split,
    "topk": _topk,
    "reverse": lambda g, x: g.node("Slice", x, g.numbers(-1), g.numbers(-(2**31)), g.numbers(_axis(g)), g.numbers(-1)),
    "transpose": lambda g, x: g.node("Transpose", x),
    "reshape": _reshape,
    "pool": _pool,
    "conv": _conv,
    "conv transposed": _conv_transposed,
    "image": _image,
    "cumsum": lambda g, x: g.node(
        "CumSum", x, g.numbers(_axis(g)), exclusive=g.rng.randint(0, 1), reverse=g.rng.randint(0, 1)
    ),
    "resize": _resize,
    "nonzero": _nonzero,
    "compress": _compress,
    "unique": _unique,
    "one hot": _one_hot,
    "tile": _tile,
    "tile by data": _tile_data,
    "expand": _expand,
    "range": _range,
    "scan": _loop,
    "loop": _counted,
    "gemm": _gemm,
    "gram": lambda g, x: g.node("MatMul", x, g.node("Transpose", x)),
    "product": lambda g, x: g.node("MatMul", g.node("Transpose", x), "y"),
    "lstm": _lstm,
    "reverse sequence": _reverse_sequence,
    "crop": _crop,
    "trilu": _trilu,
    "eye": lambda g, x: g.node("EyeLike", x, k=g.rng.randint(-9, 9), dtype=TensorProto.FLOAT),
    "norm": lambda g, x: g.node("LpNormalization", x, axis=_axis(g), p=2),
    "quantised": _quantised,
    "integers": _integers,
    "double": lambda g, x: g.node(
        "Cast", g.node("Sin", g.node("Cast", x, to=TensorProto.DOUBLE)), to=TensorProto.FLOAT
    ),
    "half": lambda g, x: g.node(
        "Cast", g.node("Sqrt", g.node("Cast", x, to=TensorProto.FLOAT16)), to=TensorProto.FLOAT
    ),
}


def drawn(seed: int) -> tuple[Any, Chain, list[str]]:
    """A model of a seed, how it was made, and the names of its steps."""
    rng = Random(seed)
    g = Chain(rng)
    name, steps = "x", []
    for _ in range(rng.randint(1, 5)):
        step = rng.choice(list(STEPS))
        steps.append(step)
        name = STEPS[step](g, name)
    matrix = ["n", g.width] if g.axis == 0 else [g.width, "n"]
    inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, matrix) for k in ("x", "y")]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["m"])
    outputs = [helper.make_empty_tensor_value_info(name)]
    graph = helper.make_graph(g.nodes, "g", [*inputs, ids], outputs, g.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10), g, steps


def text(seed: int) -> str:
    """The text of a model."""
    _, g, steps = drawn(seed)
    return f"[n, {g.width}] along {g.axis}: {', '.join(steps)}"


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the model of a seed at sizes n and m. ModelError where it is refused."""
    proto, g, _ = drawn(seed)
    open_from = seed % 2
    model = tw.compile(proto, threads=threads, dims={"n": tw.dim(open_from, None), "m": tw.dim(open_from, None)})

    def call(n: int, m: int) -> Any:
        rng = np.random.default_rng(n)
        shape = (n, g.width) if g.axis == 0 else (g.width, n)
        x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
        most = (n + 2, 3, 1 << 62)[m % 3]
        ids = rng.integers(-most, most, m)
        inputs = {"x": x, "y": y, "ids": ids}
        return model.run({i.name: inputs[i.name] for i in model.inputs})

    return call
