"""Huge sizes in everything that makes sizes: one clear error each, or a right small result; never a crash, a hang or
much memory. A case is a function of its seed: an operator, and numbers, as constants or as data of the call.

    python -m tests.fuzz.farm huge 0 10000      ten thousand cases; python -m tests.fuzz.worker huge 17 runs one
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import te

Random = random.Random
HUGE = (
    *((1 << 31) + k for k in (-1, 0, 1)),
    *((1 << 32) + k for k in (-1, 0, 1)),
    *((1 << k) for k in (33, 40, 46, 47, 53, 61, 62)),
    3 << 61,  # times 2 wraps to 2**62 and more
    0x5555555555555556,  # times 3 wraps to 2
    *((1 << 63) - 1 - k for k in (0, 1, 7)),
)
SMALL = (0, 1, 2, 3, 5)
LARGEST = 1 << 28
"""Bytes of outputs above which a case is compiled, but not called."""


class Case:
    """A model of a few nodes that is being made. Numbers come as constants, or as inputs whose values are
    `arguments`."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.arguments: list[Any] = []
        self.by_data = rng.random() < 0.4

    def huge(self) -> int:
        n = self.rng.choice(HUGE)
        return min(n, (1 << 63) - 1) * self.rng.choice((1, 1, 1, 1, -1))

    def some(self, count: int, at_least: int = 1) -> list[int]:
        """Numbers of which one or more are huge."""
        numbers = [self.rng.choice(SMALL) for _ in range(count)]
        for k in self.rng.sample(range(count), self.rng.randint(at_least, min(count, 3))):
            numbers[k] = self.huge()
        return numbers

    def sizes(self, *values: int) -> str:
        return self.array(np.array(values, np.int64), self.by_data)

    def scalar(self, value: int) -> str:
        return self.array(np.array(value, np.int64), self.by_data)

    def array(self, value: Any, by_data: bool = False) -> str:
        if by_data:
            name = f"s{len(self.inputs)}"
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            self.inputs.append(helper.make_tensor_value_info(name, kind, value.shape))
            self.arguments.append(value)
            return name
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def floats(self, *shape: int) -> str:
        return self.array(np.ones(shape, np.float32), self.rng.random() < 0.8)

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0]

    def model(self, outputs: str) -> Any:
        result = [helper.make_empty_tensor_value_info(outputs)]
        graph = helper.make_graph(self.nodes, "g", self.inputs, result, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)


Make = Callable[[Case], str]


def _pool(c: Case) -> str:
    k, s, p, d = ([c.rng.choice((1, 2)), c.rng.choice((1, 2))] for _ in range(4))
    chosen = c.rng.choice((k, s, p, d))
    chosen[c.rng.randint(0, 1)] = abs(c.huge())
    op = c.rng.choice(("MaxPool", "AveragePool", "LpPool"))
    ceil = c.rng.randint(0, 1)
    return c.node(op, c.floats(1, 2, 5, 6), kernel_shape=k, strides=s, pads=[*p, *p], dilations=d, ceil_mode=ceil)


def _conv(c: Case) -> str:
    s, p, d = ([c.rng.choice((1, 2)), c.rng.choice((1, 2))] for _ in range(3))
    c.rng.choice((s, p, d))[c.rng.randint(0, 1)] = abs(c.huge())
    op = c.rng.choice(("Conv", "ConvTranspose"))
    return c.node(op, c.floats(1, 2, 5, 6), c.floats(2, 2, 3, 3), strides=s, pads=[*p, *p], dilations=d)


def _conv_transposed(c: Case) -> str:
    name = c.rng.choice(("output_shape", "output_padding", "strides"))
    return c.node("ConvTranspose", c.floats(1, 2, 5, 6), c.floats(2, 2, 3, 3), **{name: [abs(n) for n in c.some(2)]})


def _resize(c: Case) -> str:
    way = c.rng.choice(("nearest", "linear", "cubic"))
    if c.rng.random() < 0.5:
        return c.node("Resize", c.floats(1, 1, 3, 4), "", "", c.sizes(1, 1, *c.some(2)), mode=way)
    scales = c.array(np.array([1, 1, c.rng.choice((1e9, 1e19, 1e38, np.inf, np.nan, -1)), 1], np.float32), c.by_data)
    return c.node("Resize", c.floats(1, 1, 3, 4), "", scales, mode=way)


def _loop(c: Case) -> str:
    collects = c.rng.random() < 0.6
    infos = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Sqrt", ["t"], ["o"])]
    if c.rng.random() < 0.5:
        nodes.append(helper.make_node("Less", ["t", "most"], ["d"]))
    else:
        nodes.append(helper.make_node("Identity", ["c"], ["d"]))
    outputs = [infos("d", TensorProto.BOOL, []), infos("t", TensorProto.FLOAT, [2])]
    outputs += [infos("o", TensorProto.FLOAT, [2])] * collects
    inputs = [infos("i", TensorProto.INT64, []), infos("c", TensorProto.BOOL, []), infos("s", TensorProto.FLOAT, [2])]
    weights = [numpy_helper.from_array(np.float32(100), "most")]
    body = helper.make_graph(nodes, "body", inputs, outputs, weights)
    start = c.array(np.array(True), c.rng.random() < 0.3)
    return c.node("Loop", c.scalar(c.huge()), start, c.floats(2), outputs=1 + collects, body=body)


def _random(c: Case) -> str:
    if c.rng.random() < 0.3:
        return c.node("Multinomial", c.floats(2, 3), sample_size=abs(c.huge()))
    return c.node(c.rng.choice(("RandomNormal", "RandomUniform")), shape=c.some(2))


def _stft(c: Case) -> str:
    if c.rng.random() < 0.5:
        return c.node("DFT", c.floats(1, 6, 1), c.scalar(c.huge()), axis=1, onesided=c.rng.randint(0, 1))
    return c.node("STFT", c.floats(1, 16, 1), c.scalar(c.huge()), "", c.scalar(c.rng.choice((4, c.huge()))))


def _col2im(c: Case) -> str:
    image, block = ([5, 5], [2, 2]) if c.rng.random() < 0.1 else (c.some(2), [2, 2])
    if c.rng.random() < 0.4:
        image, block = [5, 5], c.some(2)
    return c.node("Col2Im", c.floats(1, 4, 16), c.sizes(*image), c.sizes(*block))


def _unpool(c: Case) -> str:
    places = c.array(np.zeros((1, 1, 2, 2), np.int64), c.rng.random() < 0.5)
    if c.rng.random() < 0.5:
        return c.node("MaxUnpool", c.floats(1, 1, 2, 2), places, c.sizes(1, 1, *c.some(2)), kernel_shape=[2, 2])
    return c.node(
        "MaxUnpool", c.floats(1, 1, 2, 2), places, kernel_shape=[abs(n) for n in c.some(2)], strides=[1, abs(c.huge())]
    )


def _lstm(c: Case) -> str:
    return c.node("LSTM", c.floats(3, 1, 2), c.floats(1, 4, 2), c.floats(1, 4, 1), hidden_size=c.huge())


def _split(c: Case) -> str:
    x, kind = c.floats(6, 2), c.rng.randint(0, 2)
    if kind == 0:
        return c.node("Split", x, c.sizes(*c.some(2)), outputs=2)
    if kind == 1:
        return c.node("Split", x, outputs=2, num_outputs=c.huge())
    sequence = c.node("SplitToSequence", x, c.rng.choice((c.scalar(c.huge()), c.sizes(*c.some(2)))))
    return c.node("SequenceAt", sequence, c.scalar(c.rng.choice((0, c.huge()))))


def _range(c: Case) -> str:
    start, end, step = c.some(3)
    if c.rng.random() < 0.3:
        numbers = [
            np.array(n, np.float32)
            for n in (0.0, c.rng.choice((1e30, np.inf, np.nan, -1e30)), c.rng.choice((1.0, 1e-30, -1.0, 0.0)))
        ]
        return c.node("Range", *(c.array(n, c.by_data) for n in numbers))
    return c.node("Range", *(c.scalar(n) for n in (start, end, step)))


def _slice(c: Case) -> str:
    numbers = [c.some(2, 0), c.some(2, 0), c.some(2, 0)]
    return c.node(
        "Slice",
        c.floats(6, 4),
        c.sizes(*numbers[0]),
        c.sizes(*numbers[1]),
        c.sizes(0, c.rng.choice((1, 1, c.huge()))),
        c.sizes(*numbers[2]),
    )


def _axes(c: Case) -> str:
    """An axis that no tensor has."""
    x, axis = c.floats(3, 4), c.huge()
    op = c.rng.choice(
        (
            "Softmax",
            "Concat",
            "Flatten",
            "ArgMax",
            "ReduceSum",
            "Squeeze",
            "Unsqueeze",
            "CumSum",
            "Gather",
            "Hardmax",
            "TopK",
            "ScatterElements",
            "Compress",
            "LpNormalization",
        )
    )
    if op in ("ReduceSum", "Squeeze", "Unsqueeze"):
        return c.node(op, x, c.sizes(axis))
    if op == "CumSum":
        return c.node(op, x, c.scalar(axis))
    more = {
        "Concat": [x],
        "Gather": [c.sizes(0)],
        "TopK": [c.sizes(1)],
        "ScatterElements": [c.array(np.zeros((1, 1), np.int64)), c.floats(1, 1)],
    }
    more["Compress"] = [c.array(np.array([True]))]
    return c.node(op, x, *more.get(op, []), outputs=2 if op == "TopK" else 1, axis=axis)


def _declared(c: Case) -> str:
    """Inputs and weights of huge shapes."""
    shape = [abs(n) for n in c.some(c.rng.randint(1, 3))]
    if c.rng.random() < 0.5:
        c.weights.append(TensorProto(name="big", data_type=TensorProto.FLOAT, dims=shape, raw_data=b"\0" * 16))
    else:
        c.inputs.append(helper.make_tensor_value_info("big", TensorProto.FLOAT, shape))
        c.arguments.append(np.ones((1,) * len(shape), np.float32))
    return c.node(c.rng.choice(("Relu", "ReduceSum", "Shape")), "big")


def _empty(c: Case) -> str:
    """Tensors without elements of huge shapes."""
    shape = [
        *c.rng.choice(((1 << 30, 1 << 30, 0), ((1 << 31) - 1, (1 << 30) - 1, 0), (0, 1 << 40), (1 << 40, 0, 1 << 20)))
    ]
    named = [f"d{k}" for k in range(len(shape))] if c.rng.random() < 0.7 else shape
    c.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, named))
    c.arguments.append(np.empty(shape, np.float32))
    op = c.rng.choice(
        (
            "Relu",
            "Softmax",
            "ReduceMax",
            "ReduceSum",
            "Transpose",
            "CumSum",
            "Shape",
            "NonZero",
            "Flatten",
            "TopK",
            "Expand",
        )
    )
    if op == "CumSum":
        return c.node(op, "x", c.array(np.array(0, np.int64)))
    if op == "TopK":
        return c.node(op, "x", c.sizes(1), outputs=2)
    if op == "Expand":
        return c.node(op, "x", c.sizes(1 << 20, *(1 for _ in shape)))
    return c.node(op, "x")


def _outer(c: Case) -> str:
    """Operands without elements whose product would have too many."""
    one, two = (1 << 31) - 1, c.rng.choice(((1 << 31) - 1, 1 << 30, 3))
    for name, shape, size in (("x", ["n", 0], one), ("y", ["m", 0], two)):
        c.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        c.arguments.append(np.empty((size, 0), np.float32))
    y = c.node("MatMul", "x", c.node("Transpose", "y"))
    return c.node("ReduceSum", y) if c.rng.random() < 0.5 else y


def _windows(c: Case) -> str:
    op = c.rng.choice(("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"))
    if op == "MelWeightMatrix":
        return c.node(
            op,
            c.scalar(c.huge()),
            c.scalar(c.rng.choice((16, c.huge()))),
            c.scalar(8000),
            c.array(np.float32(0)),
            c.array(np.float32(4000)),
        )
    return c.node(op, c.scalar(c.huge()))


def _blocks(c: Case) -> str:
    op = c.rng.choice(("DepthToSpace", "SpaceToDepth", "LRN", "GroupNormalization"))
    x = c.floats(1, 4, 2, 2)
    if op == "LRN":
        return c.node(op, x, size=c.huge())
    if op == "GroupNormalization":
        return c.node(op, x, c.floats(4), c.floats(4), num_groups=c.huge())
    return c.node(op, x, blocksize=c.huge())


def _regions(c: Case) -> str:
    boxes = c.array(np.array([[0, 0, 2, 2]], np.float32), c.by_data)
    if c.rng.random() < 0.5:
        rows = c.array(np.zeros(1, np.int64))
        sizes = c.some(2)
        return c.node(
            "RoiAlign",
            c.floats(1, 1, 4, 4),
            boxes,
            rows,
            output_height=sizes[0],
            output_width=sizes[1],
            sampling_ratio=c.rng.choice((0, c.huge())),
        )
    boxes = c.array(np.array([[[0, 0, 2, 2], [0, 1, 2, 3]]], np.float32), c.by_data)
    return c.node("NonMaxSuppression", boxes, c.array(np.ones((1, 1, 2), np.float32), c.by_data), c.scalar(c.huge()))


def _grid(c: Case) -> str:
    theta = c.array(np.ones((1, 2, 3), np.float32), c.rng.random() < 0.7)
    c.nodes.append(helper.make_node("AffineGrid", [theta, c.sizes(1, 1, *c.some(2))], ["grid"]))
    return "grid"


def _gather(c: Case) -> str:
    x = c.floats(4, 3)
    op = c.rng.choice(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "OneHot"))
    n = c.huge()
    if op == "Gather":
        return c.node(op, x, c.sizes(n, 0), axis=c.rng.randint(0, 1))
    if op == "GatherND":
        return c.node(op, x, c.array(np.array([[n]]), c.by_data), batch_dims=c.rng.choice((0, 0, c.huge())))
    if op == "GatherElements":
        return c.node(op, x, c.array(np.array([[n, 0, 1]]), c.by_data))
    if op == "ScatterElements":
        return c.node(op, x, c.array(np.array([[n]]), c.by_data), c.floats(1, 1))
    if op == "ScatterND":
        return c.node(op, x, c.array(np.array([[n]]), c.by_data), c.floats(1, 3))
    places = c.array(np.array([n, 1]), c.by_data)
    return c.node(op, places, c.scalar(c.rng.choice((4, c.huge()))), c.array(np.array([0, 1], np.float32)))


def _onehot(c: Case) -> str:
    return c.node(
        "OneHot", c.array(np.array([0, 1]), c.by_data), c.scalar(c.huge()), c.array(np.array([0, 1], np.float32))
    )


def _text(c: Case) -> str:
    return c.node(
        "TfIdfVectorizer",
        c.array(np.array([1, 2, 3]), c.by_data),
        mode="TF",
        min_gram_length=1,
        max_gram_length=1,
        max_skip_count=0,
        ngram_counts=[0],
        ngram_indexes=[c.rng.choice((0, 1, abs(c.huge()))), 1],
        pool_int64s=[1, 2],
    )


def _chain(c: Case) -> str:
    """A huge tensor that is made small again."""
    y = c.node(c.rng.choice(("Expand", "Tile")), c.floats(2, 3), c.sizes(*(abs(n) for n in c.some(2))))
    last = c.rng.choice(("ReduceSum", "Shape", "Size", "Slice"))
    if last == "Slice":
        return c.node("Slice", y, c.array(np.array([0, 0])), c.array(np.array([2, 2])))
    return c.node(last, y)


MAKERS: dict[str, Make] = {
    "Expand": lambda c: c.node("Expand", c.floats(1, 3), c.sizes(*c.some(c.rng.randint(2, 4)))),
    "Tile": lambda c: c.node("Tile", c.floats(2, 3), c.sizes(*c.some(2))),
    "Pad": lambda c: c.node(
        "Pad", c.floats(2, 3), c.sizes(*c.some(4)), mode=c.rng.choice(("constant", "edge", "reflect", "wrap"))
    ),
    "Range": _range,
    "ConstantOfShape": lambda c: c.node("ConstantOfShape", c.sizes(*c.some(c.rng.randint(1, 4)))),
    "Resize": _resize,
    "OneHot": _onehot,
    "Loop": _loop,
    "Reshape": lambda c: c.node(
        "Reshape", c.floats(2, 3), c.sizes(*c.some(c.rng.randint(1, 3))), allowzero=c.rng.randint(0, 1)
    ),
    "Slice": _slice,
    "Split": _split,
    "TopK": lambda c: c.node("TopK", c.floats(2, 3), c.sizes(c.huge()), outputs=2),
    "windows": _windows,
    "EyeLike": lambda c: c.node("EyeLike", c.floats(3, 4), k=c.huge()),
    "random": _random,
    "Trilu": lambda c: c.node("Trilu", c.floats(3, 4), c.scalar(c.huge()), upper=c.rng.randint(0, 1)),
    "CenterCropPad": lambda c: c.node("CenterCropPad", c.floats(3, 4), c.sizes(*c.some(2))),
    "Col2Im": _col2im,
    "MaxUnpool": _unpool,
    "transforms": _stft,
    "pools": _pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transposed,
    "LSTM": _lstm,
    "axes": _axes,
    "declared": _declared,
    "empty": _empty,
    "outer": _outer,
    "blocks": _blocks,
    "regions": _regions,
    "AffineGrid": _grid,
    "indices": _gather,
    "TfIdfVectorizer": _text,
    "chains": _chain,
    "ReverseSequence": lambda c: c.node(
        "ReverseSequence", c.floats(3, 2), c.sizes(*c.some(2)), time_axis=0, batch_axis=1
    ),
    "BitShift": lambda c: c.node(
        "BitShift",
        c.array(np.array([1, 2], np.uint64), True),
        c.array(np.array([1 << 63, 70], np.uint64), c.by_data),
        direction="LEFT",
    ),
}


def run_onnx(rng: Random, mark: Callable[[str], None]) -> str:
    """A model with a huge number: "ran", "compiled" or "refused"."""
    name = rng.choice(list(MAKERS))
    case = Case(rng)
    mark(name)
    proto = case.model(MAKERS[name](case))
    model = tw.compile(proto)
    mark(f"call {name}")
    model(*case.arguments)
    return "ran"


def run_te(rng: Random, mark: Callable[[str], None]) -> str:
    """A tensor expression with huge extents, factors or sizes."""
    kind = rng.choice(("extent", "reduce", "factor", "symbol", "between", "index", "scan"))
    mark(f"te {kind}")
    n, m = rng.choice(HUGE), rng.choice((*HUGE, 3, 7))
    n, m = (min(v, (1 << 63) - 1) for v in (n, m))
    size = te.var("n", lo=0)
    a = te.placeholder((size, 4), name="A")
    small = np.ones((3, 4), np.float32)
    if kind == "extent":
        c = te.compute((n, m), lambda i, j: te.cast(i * j, "f32"), name="C")
        tw.build(te.create_schedule(c), [c])(small)
    elif kind == "reduce":
        r = te.reduce_axis(n, "r")
        c = te.compute((size, 4), lambda i, j: te.sum(a[i, j] * te.cast(r.var, "f32"), r), name="C")
        tw.build(te.create_schedule(c), [a, c])
    elif kind == "factor":
        c = te.compute((size, 4), lambda i, j: a[i, j] * 2.0, name="C")
        s = te.create_schedule(c)
        outer, inner = s[c].split(c.axis[rng.randint(0, 1)], **{rng.choice(("factor", "nparts")): n})
        if rng.random() < 0.3:
            s[c].vectorize(inner)
        elif rng.random() < 0.3:
            s[c].unroll(inner)
        del outer
        tw.build(s, [a, c])(small, small.copy())
    elif kind == "symbol":
        c = te.compute((size * m, size), lambda i, j: a[j, 0] + te.cast(i, "f32"), name="C")
        tw.build(te.create_schedule(c), [a, c])(small, small)
    elif kind == "between":
        b = te.compute((size, n), lambda i, j: te.cast(i + j, "f32"), name="B")
        c = te.compute((size, 4), lambda i, j: b[i, j] + a[i, j], name="C")
        s = te.create_schedule(c)
        if rng.random() < 0.5:
            s[b].compute_at(s[c], c.axis[0])
        tw.build(s, [a, c])(small, small.copy())
    elif kind == "index":
        c = te.compute((size, 4), lambda i, j: a[i * n + m, j], name="C")
        tw.build(te.create_schedule(c), [a, c])(small, small.copy())
    else:
        state = te.placeholder((n, 4), name="state")
        first = te.compute((1, 4), lambda t, i: te.cast(i, "f32"), name="first")
        after = te.compute((n, 4), lambda t, i: state[t - 1, i] + 1.0, name="after")
        c = te.scan(first, after, state, name="H")
        tw.build(te.create_schedule(c), [c])(small)
    return "ran"


def run(seed: int, mark: Callable[[str], None]) -> str:
    """The outcome of the case of a seed. Raises errors that are not ours."""
    rng = Random(seed)
    try:
        return (run_te if rng.random() < 0.12 else run_onnx)(rng, mark)
    except tw.Error as error:
        if not str(error).strip():
            raise AssertionError("the error says nothing") from error
        return f"refused: {type(error).__name__}"
