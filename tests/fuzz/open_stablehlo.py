"""Random StableHLO modules of open sizes, written as text: what nothing but the module itself says of its sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw

Random = random.Random
ANY = "tensor<?x?xf32>"


class Lines:
    """The lines of a function of x: f32[?, c] and ids: i32[?]."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.count = 0

    def add(self, text: str, kind: str) -> str:
        """A line `text : kind`; the name of what it gives."""
        self.count += 1
        self.lines.append(f"%v{self.count} = {text} : {kind}")
        return f"%v{self.count}"

    def numbers(self, *values: int) -> str:
        return self.add(f"stablehlo.constant dense<{list(values)}>", f"tensor<{len(values)}xi32>")

    def float(self, value: float) -> str:
        return self.add(f"stablehlo.constant dense<{value:e}>", "tensor<f32>")

    def size(self, x: str, axis: int) -> str:
        d = self.add(f"stablehlo.get_dimension_size {x}, dim = {axis}", f"({ANY}) -> tensor<i32>")
        return self.add(f"stablehlo.reshape {d}", "(tensor<i32>) -> tensor<1xi32>")

    def shape(self, x: str) -> str:
        return self.join(self.size(x, 0), self.size(x, 1))

    def join(self, a: str, b: str) -> str:
        return self.add(f"stablehlo.concatenate {a}, {b}, dim = 0", "(tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>")

    def some(self, *values: int) -> str:
        """A size: one of some numbers."""
        return self.numbers(self.rng.choice(values))


Step = Callable[[Lines, str], str]


def _slice(g: Lines, x: str) -> str:
    end = g.size(x, 0) if g.rng.random() < 0.6 else g.some(0, 1, 2, 5)
    begin, end = g.join(g.some(0, 1, 2), g.some(0)), g.join(end, g.size(x, 1))
    step = g.numbers(g.rng.choice((1, 2, 3)), 1)
    types = ", ".join(["tensor<2xi32>"] * 3)
    return g.add(f"stablehlo.real_dynamic_slice {x}, {begin}, {end}, {step}", f"({ANY}, {types}) -> {ANY}")


def _pad(g: Lines, x: str) -> str:
    low, high = (g.numbers(g.rng.randint(-3, 3), g.rng.choice((0, 0, 1, -1))) for _ in range(2))
    inner = g.numbers(g.rng.choice((0, 0, 1)), 0)
    types = ", ".join(["tensor<2xi32>"] * 3)
    return g.add(
        f"stablehlo.dynamic_pad {x}, {g.float(0)}, {low}, {high}, {inner}", f"({ANY}, tensor<f32>, {types}) -> {ANY}"
    )


def _dynamic_slice(g: Lines, x: str) -> str:
    """One row, whose place data says."""
    place = g.add(
        "stablehlo.reduce(%ids init: %zero) applies stablehlo.add across dimensions = [0]",
        "(tensor<?xi32>, tensor<i32>) -> tensor<i32>",
    )
    y = g.add(
        f"stablehlo.dynamic_slice {x}, {place}, %zero, sizes = [1, 1]",
        f"({ANY}, tensor<i32>, tensor<i32>) -> tensor<1x1xf32>",
    )
    return g.add(
        f"stablehlo.dynamic_broadcast_in_dim {y}, {g.shape(x)}, dims = [0, 1]",
        f"(tensor<1x1xf32>, tensor<2xi32>) -> {ANY}",
    )


def _update(g: Lines, x: str) -> str:
    y = g.add(
        f"stablehlo.dynamic_broadcast_in_dim {g.float(7)}, {g.join(g.some(1, 2), g.size(x, 1))}, dims = []",
        f"(tensor<f32>, tensor<2xi32>) -> {ANY}",
    )
    place = g.add(
        "stablehlo.reduce(%ids init: %zero) applies stablehlo.maximum across dimensions = [0]",
        "(tensor<?xi32>, tensor<i32>) -> tensor<i32>",
    )
    return g.add(
        f"stablehlo.dynamic_update_slice {x}, {y}, {place}, %zero", f"({ANY}, {ANY}, tensor<i32>, tensor<i32>) -> {ANY}"
    )


def _gather(g: Lines, x: str) -> str:
    ids = g.add(
        f"stablehlo.dynamic_reshape %ids, {g.join(_rows(g), g.numbers(1))}",
        "(tensor<?xi32>, tensor<2xi32>) -> tensor<?x1xi32>",
    )
    sizes = g.join(g.numbers(1), g.size(x, 1))
    numbers = (
        "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>"
    )
    return g.add(
        f'"stablehlo.dynamic_gather"({x}, {ids}, {sizes}) <{{dimension_numbers = {numbers}}}>',
        f"({ANY}, tensor<?x1xi32>, tensor<2xi32>) -> {ANY}",
    )


def _rows(g: Lines) -> str:
    d = g.add("stablehlo.get_dimension_size %ids, dim = 0", "(tensor<?xi32>) -> tensor<i32>")
    return g.add(f"stablehlo.reshape {d}", "(tensor<i32>) -> tensor<1xi32>")


def _reduce(g: Lines, x: str) -> str:
    op, axis = g.rng.choice(("add", "maximum", "minimum")), g.rng.randint(0, 1)
    y = g.add(
        f"stablehlo.reduce({x} init: {g.float(0)}) applies stablehlo.{op} across dimensions = [{axis}]",
        f"({ANY}, tensor<f32>) -> tensor<?xf32>",
    )
    return g.add(
        f"stablehlo.dynamic_broadcast_in_dim {y}, {g.shape(x)}, dims = [{1 - axis}]",
        f"(tensor<?xf32>, tensor<2xi32>) -> {ANY}",
    )


def _reshape(g: Lines, x: str) -> str:
    total = g.add(f"stablehlo.multiply {g.size(x, 0)}, {g.size(x, 1)}", "tensor<1xi32>")
    k = g.some(1, 2, 3)
    rest = g.add(f"stablehlo.divide {total}, {k}", "tensor<1xi32>")
    shape = g.join(k, rest) if g.rng.random() < 0.5 else g.join(rest, k)
    return g.add(f"stablehlo.dynamic_reshape {x}, {shape}", f"({ANY}, tensor<2xi32>) -> {ANY}")


def _iota(g: Lines, x: str) -> str:
    return g.add(f"stablehlo.dynamic_iota {g.shape(x)}, dim = {g.rng.randint(0, 1)}", f"(tensor<2xi32>) -> {ANY}")


def _broadcast(g: Lines, x: str) -> str:
    """Rows as many as a size of something else."""
    y = g.add(
        f"stablehlo.reduce({x} init: {g.float(0)}) applies stablehlo.add across dimensions = [0]",
        f"({ANY}, tensor<f32>) -> tensor<?xf32>",
    )
    shape = g.join(_rows(g), g.size(x, 1))
    return g.add(
        f"stablehlo.dynamic_broadcast_in_dim {y}, {shape}, dims = [1]", f"(tensor<?xf32>, tensor<2xi32>) -> {ANY}"
    )


def _product(g: Lines, x: str) -> str:
    return g.add(f"stablehlo.dot_general {x}, {x}, contracting_dims = [1] x [1]", f"({ANY}, {ANY}) -> {ANY}")


def _window(g: Lines, x: str) -> str:
    size, stride, low, high = g.rng.randint(1, 4), g.rng.randint(1, 3), g.rng.randint(0, 2), g.rng.randint(0, 2)
    attributes = (
        f"window_dimensions = array<i64: {size}, 1>, window_strides = array<i64: {stride}, 1>, "
        f"padding = dense<[[{low}, {high}], [0, 0]]> : tensor<2x2xi64>"
    )
    body = "^bb0(%a: tensor<f32>, %b: tensor<f32>): %s = stablehlo.add %a, %b : tensor<f32> stablehlo.return %s"
    operation = f'"stablehlo.reduce_window"({x}, {g.float(0)}) <{{{attributes}}}> ({{ {body} : tensor<f32> }})'
    return g.add(operation, f"({ANY}, tensor<f32>) -> {ANY}")


STEPS: dict[str, Step] = {
    "slice": _slice,
    "pad": _pad,
    "row by data": _dynamic_slice,
    "update": _update,
    "gather": _gather,
    "reduce": _reduce,
    "reshape": _reshape,
    "iota": _iota,
    "broadcast": _broadcast,
    "product": _product,
    "window": _window,
    "transpose": lambda g, x: g.add(f"stablehlo.transpose {x}, dims = [1, 0]", f"({ANY}) -> {ANY}"),
    "reverse": lambda g, x: g.add(f"stablehlo.reverse {x}, dims = [{g.rng.randint(0, 1)}]", ANY),
    "add": lambda g, x: g.add(f"stablehlo.add {x}, {g.rng.choice((x, '%y'))}", ANY),
    "concatenate": lambda g, x: g.add(
        f"stablehlo.concatenate {x}, {g.rng.choice((x, '%y'))}, dim = {g.rng.randint(0, 1)}", f"({ANY}, {ANY}) -> {ANY}"
    ),
    "tanh": lambda g, x: g.add(f"stablehlo.tanh {x}", ANY),
}


def drawn(seed: int) -> tuple[str, int, list[str]]:
    """A module as text, the columns of x, and the names of its steps."""
    rng = Random(seed)
    g, width = Lines(rng), rng.choice((1, 3, 4, 8))
    known = f"tensor<?x{width}xf32>"
    name, names = "%y", []
    for _ in range(rng.randint(1, 5)):
        names.append(rng.choice(list(STEPS)))
        name = STEPS[names[-1]](g, name)
    lines = "\n    ".join(g.lines)
    module = f"""module {{
  func.func public @main(%x: {known}, %ids: tensor<?xi32>) -> ({ANY}, tensor<?xi32>) {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %y = stablehlo.convert %x : ({known}) -> {ANY}
    {lines}
    %last = stablehlo.add %ids, %ids : tensor<?xi32>
    return {name}, %last : {ANY}, tensor<?xi32>
  }}
}}
"""
    return module, width, names


def text(seed: int) -> str:
    """A module."""
    return drawn(seed)[0]


def compiled(seed: int, threads: int) -> Callable[[int, int], Any]:
    """A call of the module of a seed where x has n rows and ids m elements. ModelError where it is refused."""
    module, width, _ = drawn(seed)
    model = tw.compile(module, threads=threads)

    def call(n: int, m: int) -> Any:
        rng = np.random.default_rng(n)
        most = (max(n, 1), 3, 1 << 31)[m % 3]
        return model(rng.standard_normal((n, width)).astype(np.float32), rng.integers(-most, most, m).astype(np.int32))

    return call
