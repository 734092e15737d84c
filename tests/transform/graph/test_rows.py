"""Rows that nothing reads are not computed, and what is read is as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType, Value
from tilewright.ir.verify import verify_graph
from tilewright.ops.interpret import run_graph
from tilewright.transform.graph.attention import recognise_attention
from tilewright.transform.graph.rewrite import eliminate_dead
from tilewright.transform.graph.rows import compute_read_rows

ROWS, WIDTH, HEADS = Var("n", lo=1), 8, 2
RNG = np.random.default_rng(3)


class Net:
    """A graph under construction over rows of a batch of two."""

    def __init__(self) -> None:
        self.b = GraphBuilder("net")
        self.weights: dict[str, Any] = {}
        self.x = self.b.input("x", TensorType(f32, (const(2), ROWS, const(WIDTH))))

    def __call__(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        return ops.emit1(self.b, op, *inputs, **attrs)

    def weight(self, *shape: int) -> Value:
        name = f"w{len(self.weights)}"
        self.weights[name] = RNG.standard_normal(shape).astype(np.float32) / 3
        return self.b.param(name, TensorType(f32, tuple(map(const, shape))))

    def mlp(self, x: Value) -> Value:
        h = self("layer_norm", x, self.weight(WIDTH), axis=-1, epsilon=1e-5)
        h = self("relu", self("add", self("matmul", h, self.weight(WIDTH, 12)), self.weight(12)))
        return self("add", x, self("matmul", h, self.weight(WIDTH, 12), transpose_b=True))

    def attend(self, x: Value, mask: Value | None = None) -> Value:
        split = (const(2), ROWS, const(HEADS), const(WIDTH // HEADS))
        h = self("layer_norm", x, axis=2, epsilon=1e-5)
        q, k, v = (
            self("transpose", self("reshape", self("matmul", h, self.weight(WIDTH, WIDTH)), shape=split), perm=perm)
            for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        )
        scores = self("matmul", q, k)
        scores = scores if mask is None else self("add", scores, mask)
        y = self("matmul", self("softmax", scores, axis=-1), v)
        y = self("reshape", self("transpose", y, perm=(0, 2, 1, 3)), shape=(const(2), ROWS, const(WIDTH)))
        return self("add", x, self("matmul", y, self.weight(WIDTH, WIDTH)))

    def row(self, x: Value, begin: Expr) -> Value:
        size = (x.shape[0], const(1), *x.shape[2:])
        zeros = [const(0)] * (x.type.rank - 2)
        return self("slice", x, begin=(const(0), begin, *zeros), size=size, step=(1,) * x.type.rank)


def first_of_mlp(net: Net) -> tuple[Value, ...]:
    return (net.row(net.mlp(net.x), const(0)),)


def last_of_layers(net: Net) -> tuple[Value, ...]:
    x = net.mlp(net.attend(net.mlp(net.attend(net.x))))
    return (net("matmul", net.row(x, ROWS - 1), net.weight(WIDTH, 3)),)


def masked_by_row(net: Net) -> tuple[Value, ...]:
    mask = net.b.input("mask", TensorType(f32, (ROWS, ROWS)))
    return (net.row(net.attend(net.x, mask), const(0)),)


def through_shapes(net: Net) -> tuple[Value, ...]:
    x = net("matmul", net.x, net.weight(WIDTH, 6))
    x = net("reshape", x, shape=(const(2), ROWS, const(3), const(2)))
    x = net("softmax", net("concat", x, x, axis=3), axis=-1)
    return (net.row(x, const(0)),)


def read_twice(net: Net) -> tuple[Value, ...]:
    x = net.mlp(net.x)
    return net.row(x, const(0)), net("tanh", net.row(net.mlp(x), const(0)))


MOVES = (first_of_mlp, last_of_layers, masked_by_row, through_shapes, read_twice)


def rows_computed(graph: Graph) -> set[int | str]:
    """How many rows each product, with a weight or in attention, makes."""
    created = [n for n in graph.nodes if n.op == "matmul"]
    return {str(n.output.shape[1]) for n in created} | {
        str(n.output.shape[1]) for n in graph.nodes if n.op == "lowered.attention"
    }


@pytest.mark.parametrize("make", MOVES)
@pytest.mark.parametrize("attention", [False, True], ids=["products", "attention"])
def test_only_what_is_read(make: Any, attention: bool) -> None:
    net = Net()
    before = net.b.finish(make(net))
    before = eliminate_dead(recognise_attention(before)) if attention else before
    after = eliminate_dead(compute_read_rows(before))
    verify_graph(after)
    assert after != before and "1" in rows_computed(after)
    for n in (1, 2, 7):
        feeds = {"x": RNG.standard_normal((2, n, WIDTH)).astype(np.float32)}
        if make is masked_by_row:
            feeds["mask"] = RNG.standard_normal((n, n)).astype(np.float32)
        for got, want in zip(values(after, feeds, net), values(before, feeds, net), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def values(graph: Graph, feeds: dict[str, Any], net: Net) -> list[Any]:
    """The outputs in order; their names may differ."""
    result = run_graph(graph, feeds, net.weights)
    return [result[v.name] for v in graph.outputs]


def test_the_last_layer_of_several_computes_one_row() -> None:
    net = Net()
    graph = eliminate_dead(compute_read_rows(net.b.finish(last_of_layers(net))))
    whole = [n for n in graph.nodes if n.op == "matmul" and n.inputs[1] in graph.params and "n" in str(n.output.shape)]
    assert len(whole) == 6 + 2  # all of the first layer; keys and values of the second


STAYS = {
    "all is an output": lambda net: (y := net.mlp(net.x), net.row(y, const(0))),
    "rows are normalised together": lambda net: (
        net.row(net("softmax", net("matmul", net.x, net.weight(WIDTH, WIDTH)), axis=1), const(0)),
    ),
    "no product on the way": lambda net: (net.row(net("tanh", net.x), const(0)),),
    "two parts": lambda net: (
        net.row(y := net("matmul", net.x, net.weight(WIDTH, 4)), const(0)),
        net.row(y, ROWS - 1),
    ),
    "columns": lambda net: (
        net(
            "slice",
            net("matmul", net.x, net.weight(WIDTH, 16)),
            begin=(0, 0, 3),
            size=(2, ROWS, 4),
            step=(1, 1, 1),
        ),
    ),
}


@pytest.mark.parametrize("what", STAYS)
def test_what_stays(what: str) -> None:
    net = Net()
    graph = net.b.finish(tuple(STAYS[what](net)))
    assert compute_read_rows(graph) == graph


class Random:
    """A random graph over [2, 5, 6]: any operators, read in any parts."""

    def __init__(self, seed: int) -> None:
        self.rng, self.net = np.random.default_rng(seed), Net()
        self.net.b = GraphBuilder("random")
        self.values = [
            self.net.b.input(name, TensorType(f32, tuple(map(const, shape))))
            for name, shape in (("x", (2, 5, 6)), ("y", (2, 5, 6)), ("z", (5, 6)))
        ]

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def value(self, *ranks: int) -> Value:
        fitting = [v for v in self.values if not ranks or v.type.rank in ranks]
        return fitting[int(self.rng.integers(len(fitting)))]

    def step(self) -> Value:
        net, x = self.net, self.value()
        rank = x.type.rank
        match self.pick(
            "pointwise", "broadcast", "matmul", "product", "norm", "transpose", "reshape", "concat", "slice"
        ):
            case "pointwise":
                return net(self.pick("relu", "tanh", "neg"), x)
            case "broadcast":
                return net("add", x, net.weight(*[self.pick(1, int(str(n))) for n in x.shape[-2:]]))
            case "matmul":
                transposed = self.pick(False, True)
                shape = (4, int(str(x.shape[-1])))
                return net("matmul", x, net.weight(*(shape if transposed else shape[::-1])), transpose_b=transposed)
            case "product":
                return net("matmul", x, x, transpose_b=True)
            case "norm":
                axis = int(self.rng.integers(rank))
                return self.pick(
                    lambda: net("layer_norm", x, axis=axis, epsilon=1e-3), lambda: net("softmax", x, axis=axis)
                )()
            case "transpose":
                return net("transpose", x, perm=tuple(int(k) for k in self.rng.permutation(rank)))
            case "reshape":
                first, second, *rest = (int(str(n)) for n in x.shape)
                return net("reshape", x, shape=(first * second, *rest) if rest else (1, first, second))
            case "concat":
                return net("concat", x, x, axis=int(self.rng.integers(rank)))
            case _:
                return self.part(x)

    def part(self, x: Value) -> Value:
        axis = int(self.rng.integers(x.type.rank))
        extent = int(str(x.shape[axis]))
        size = self.pick(1, max(1, extent // 2))
        begin = int(self.rng.integers(extent - size + 1))
        return self.net(
            "slice",
            x,
            begin=tuple(begin if k == axis else 0 for k in range(x.type.rank)),
            size=tuple(size if k == axis else n for k, n in enumerate(x.shape)),
            step=(1,) * x.type.rank,
        )

    def graph(self) -> Graph:
        for _ in range(int(self.rng.integers(3, 12))):
            self.values.append(self.step())
        outputs = [self.part(self.values[-1]), *(self.part(self.value()) for _ in range(int(self.rng.integers(3))))]
        return eliminate_dead(self.net.b.finish(tuple(outputs)))


@pytest.mark.daily(5)
@pytest.mark.parametrize("seed", range(200))
def test_random_graphs(seed: int) -> None:
    drawn = Random(seed)
    before = drawn.graph()
    after = eliminate_dead(compute_read_rows(before))
    verify_graph(after)
    feeds = {
        v.name: drawn.rng.standard_normal([int(str(n)) for n in v.shape]).astype(np.float32) for v in before.inputs
    }
    for got, want in zip(values(after, feeds, drawn.net), values(before, feeds, drawn.net), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
