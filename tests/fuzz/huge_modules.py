"""Huge sizes in StableHLO: in types, attributes, constants and data (see `huge.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw
from tests.fuzz.huge import HUGE, SMALL

Random = random.Random
ANY = "tensor<?x?xf32>"


def module(rng: Random) -> tuple[str, str, list[Any]]:
    """A name, a module of one operation, and arguments: x, and numbers where those are data."""
    n, m = rng.choice(HUGE), rng.choice((*HUGE, *SMALL, 1 << 20))
    n, m = rng.choice(((n, m), (m, n)))
    by_data = rng.random() < 0.4
    numbers: list[tuple[int, ...]] = []

    def sizes(*values: int) -> str:
        numbers.append(values)
        return f"%s{len(numbers) - 1}"

    x, two = "tensor<3x4xf32>", "tensor<2xi64>"
    huge = f"tensor<{n}x{m}xf32>"
    makers: dict[str, Callable[[], tuple[str, str]]] = {
        "dynamic_broadcast_in_dim": lambda: (
            f"stablehlo.dynamic_broadcast_in_dim %z, {sizes(n, m)}, dims = [] : (tensor<f32>, {two}) -> {ANY}",
            ANY,
        ),
        "dynamic_iota": lambda: (f"stablehlo.dynamic_iota {sizes(n, m)}, dim = 0 : ({two}) -> {ANY}", ANY),
        "dynamic_reshape": lambda: (f"stablehlo.dynamic_reshape %x, {sizes(n, m)} : ({x}, {two}) -> {ANY}", ANY),
        "dynamic_pad": lambda: (
            f"stablehlo.dynamic_pad %x, %z, {sizes(n, 0)}, {sizes(0, m)}, {sizes(rng.choice((0, n)), 0)} : "
            f"({x}, tensor<f32>, {two}, {two}, {two}) -> {ANY}",
            ANY,
        ),
        "real_dynamic_slice": lambda: (
            f"stablehlo.real_dynamic_slice %x, {sizes(0, rng.choice((0, n)))}, {sizes(n, m)}, "
            f"{sizes(1, rng.choice((1, m or 1)))} : ({x}, {two}, {two}, {two}) -> {ANY}",
            ANY,
        ),
        "broadcast_in_dim": lambda: (f"stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> {huge}", huge),
        "iota": lambda: (f"stablehlo.iota dim = 0 : {huge}", huge),
        "pad": lambda: (
            f"stablehlo.pad %x, %z, low = [{n}, 0], high = [0, {m}], interior = [{rng.choice((0, m))}, 0] : "
            f"({x}, tensor<f32>) -> tensor<?x?xf32>",
            ANY,
        ),
        "reduce_window": lambda: (
            f'"stablehlo.reduce_window"(%x, %z) <{{window_dimensions = array<i64: {n}, 1>, padding = dense<[[{m}, '
            f"{n}], [0, 0]]> : tensor<2x2xi64>}}> ({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %s = stablehlo.add "
            f"%a, %b : tensor<f32> stablehlo.return %s : tensor<f32> }}) : ({x}, tensor<f32>) -> {ANY}",
            ANY,
        ),
        "slice": lambda: (f"stablehlo.slice %x [0:3:{n}, 0:{min(m, 4)}] : ({x}) -> {ANY}", ANY),
        "while": lambda: (
            "stablehlo.while(%i = %zero, %v = %x) : tensor<i64>, tensor<3x4xf32> cond { "
            f"%e = stablehlo.constant dense<{n}> : tensor<i64> %c = stablehlo.compare LT, %i, %e : (tensor<i64>, "
            "tensor<i64>) -> tensor<i1> stablehlo.return %c : tensor<i1> } do { %o = stablehlo.constant dense<1> : "
            "tensor<i64> %j = stablehlo.add %i, %o : tensor<i64> %w = stablehlo.add %v, %v : tensor<3x4xf32> "
            "stablehlo.return %j, %w : tensor<i64>, tensor<3x4xf32> }",
            x,
        ),
    }
    name = rng.choice(list(makers))
    text, kind = makers[name]()
    result = "%y#1" if name == "while" else "%y"
    left = "%y:2" if name == "while" else "%y"
    arguments = "".join(f", %s{k}: {two}" for k in range(len(numbers))) if by_data else ""
    constants = (
        ""
        if by_data
        else "".join(f"    %s{k} = stablehlo.constant dense<{list(v)}> : {two}\n" for k, v in enumerate(numbers))
    )
    source = (
        f"module {{\n  func.func public @main(%x: {x}{arguments}) -> {kind} {{\n{constants}"
        "    %z = stablehlo.constant dense<1.0> : tensor<f32>\n    %zero = stablehlo.constant dense<0> : tensor<i64>\n"
        f"    {left} = {text}\n    return {result} : {kind}\n  }}\n}}\n"
    )
    inputs = [np.ones((3, 4), np.float32)]
    inputs += [np.array(v, np.int64) for v in numbers] if by_data else []
    return name, source, inputs


def run(seed: int, mark: Callable[[str], None]) -> str:
    """The outcome of the case of a seed. Raises errors that are not ours."""
    rng = Random(seed)
    name, source, inputs = module(rng)
    mark(name)
    from tests.fuzz import modules  # which needs jaxlib
    from tilewright.frontend.stablehlo.importer import import_module

    try:
        model = tw.compile(import_module(modules.read_forked(source.encode())))
        mark(f"call {name}")
        model.max_iterations = 1000
        model(*inputs)
    except tw.Error as error:
        if not str(error).strip():
            raise AssertionError("the error says nothing") from error
        return f"refused: {type(error).__name__}"
    return "ran"
