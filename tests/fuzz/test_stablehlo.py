"""Hostile StableHLO: damaged modules are errors, never another exception, a crash or a hang.

Most mutants are of modules that are parsed already, as text that MLIR refuses says little about the importer; some are
of text and bytecode, which another process reads.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend.read import import_model

pytest.importorskip("jaxlib", reason="jaxlib is an extra: `make jax` runs this")

from tests.fuzz import farm
from tilewright.frontend.stablehlo import rules  # noqa: F401  fills RULES
from tilewright.frontend.stablehlo.child import read_outside
from tilewright.frontend.stablehlo.importer import import_module
from tilewright.frontend.stablehlo.module import Block, Function, Module, Operation, Splat, Type
from tilewright.frontend.stablehlo.registry import RULES

FOLDER = Path(__file__).parents[1] / "jax" / "programs"
LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
LIMIT_S = 60.0
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 127, 1 << 15, 1 << 31, 1 << 40, -(1 << 63), (1 << 63) - 1)
ELEMENTS = ("f32", "f16", "bf16", "f64", "i1", "i8", "i32", "i64", "ui8", "ui32", "i4", "complex<f32>", "f8E4M3FN", "")


REGRESSIONS = (27110281,)
"""Mutants that once were more than an error."""


def _count(short: int) -> int:
    return int(os.environ.get("TILEWRIGHT_FUZZ_CASES", "10000")) if LONG else short


class Damage:
    """Changes one to three things of a module; a function of its seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.left = 0

    def module(self, module: Module) -> Module:
        operations = sum(len(list(f.body.walk())) for f in module.functions.values())
        self.chance = self.rng.choice((1.0, 1.5, 3.0)) / max(operations, 1)
        return replace(module, functions={n: self.function(f) for n, f in module.functions.items()})

    def function(self, f: Function) -> Function:
        return replace(f, body=self.block(f.body))

    def block(self, b: Block) -> Block:
        types = tuple(self.type(t) if self.rng.random() < self.chance else t for t in b.types)
        operations = [self.operation(op) for op in b.operations]
        if len(operations) > 2 and self.rng.random() < self.chance:
            i, j = (self.rng.randrange(len(operations) - 1) for _ in range(2))
            operations[i], operations[j] = operations[j], operations[i]
        return Block(b.arguments, types, tuple(operations))

    def operation(self, op: Operation) -> Operation:
        op = replace(op, regions=tuple(self.block(r) for r in op.regions))
        if self.rng.random() >= self.chance:
            return op
        match self.rng.randrange(5):
            case 0:
                return replace(op, name=self.rng.choice(sorted(RULES)))
            case 1:
                return replace(op, types=tuple(self.type(t) for t in op.types))
            case 2 if op.operands:
                operands = list(op.operands)
                operands[self.rng.randrange(len(operands))] = self.rng.randrange(max(op.operands) + 2)
                return replace(op, operands=tuple(operands))
            case 3 if op.operands:
                return replace(op, operands=op.operands[: self.rng.randrange(len(op.operands) + 1)])
            case _ if op.attributes:
                name = self.rng.choice(sorted(op.attributes))
                attributes = dict(op.attributes)
                if self.rng.random() < 0.2:
                    del attributes[name]
                else:
                    attributes[name] = self.attribute(attributes[name])
                return replace(op, attributes=attributes)
        return op

    def type(self, t: Type) -> Type:
        if self.rng.random() < 0.3 or t.shape is None:
            return Type(self.rng.choice(ELEMENTS), t.shape)
        shape: list[int | None] = list(t.shape)
        if shape and self.rng.random() < 0.7:
            shape[self.rng.randrange(len(shape))] = self.rng.choice((None, *NUMBERS))
        else:
            shape = shape[1:] if self.rng.random() < 0.5 else [*shape, self.rng.choice((1, 2, None))]
        return Type(t.element, tuple(shape))

    def attribute(self, value: Any) -> Any:
        match value:
            case bool() | int():
                return self.rng.choice(NUMBERS)
            case str():
                return self.rng.choice(("", "LT", "NE", "nothing", "x" * 5000, value[1:]))
            case list() if value:
                changed = list(value)
                changed[self.rng.randrange(len(changed))] = self.rng.choice((*NUMBERS, "x", None))
                return changed if self.rng.random() < 0.7 else changed[1:]
            case dict() if value:
                name = self.rng.choice(sorted(value))
                return {**value, name: self.attribute(value[name])}
            case np.ndarray() if value.size:
                flat = value.reshape(-1).copy()
                if value.dtype.kind in "iu":
                    flat[self.rng.randrange(flat.size)] = np.array(self.rng.choice(NUMBERS)).astype(value.dtype)
                return flat if self.rng.random() < 0.3 else flat.reshape(value.shape)
            case Splat():
                return Splat(value.value, (*value.shape, 3))
        return self.rng.choice((None, 0, "x", [], {}))


def test_damaged_modules() -> None:
    modules = [read_outside(path.read_bytes()) for path in sorted(FOLDER.glob("*.mlir"))]
    count, refused = _count(400), 0
    for seed in (*REGRESSIONS, *range(FIRST, FIRST + count)):
        mutant = Damage(seed).module(modules[seed % len(modules)])
        started = time.monotonic()
        try:
            import_module(mutant)
        except tw.Error as error:
            assert str(error).strip(), seed
            refused += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert time.monotonic() - started < LIMIT_S, f"seed {seed} takes too long"
    assert 0.2 * count < refused < count


@pytest.mark.parametrize("kind", ["stablehlo", "bytecode"])
def test_damaged_files(kind: str) -> None:
    """Text and bytecode, by a process for each mutant."""
    count = _count(50)
    report = farm.run(kind, range(FIRST, FIRST + count), workers=2 if LONG else 1)
    print(f"\n{kind}: {report}")
    assert not report.failures, str(report)
    assert report.cases == count
    refused = sum(n for name, n in report.outcomes.items() if name != "imported")
    assert refused > 0.2 * count, str(report)


def test_a_reader_that_dies() -> None:
    """Text of which MLIR's parser dies is an error here: the reader of users, not the one of mutants."""
    with pytest.raises(tw.Error, match="no StableHLO that jaxlib can read"):
        read_outside((FOLDER / "policy.mlir").read_bytes()[:-40])


VECTOR = "tensor<4xf32>"


def functions(calls: dict[str, list[str]]) -> str:
    """A module of functions that call these others, one after the other; the last computes."""
    texts = []
    for name, callees in calls.items():
        lines = [f"%{k + 1} = func.call @{c}(%{k}) : ({VECTOR}) -> {VECTOR}" for k, c in enumerate(callees)]
        if not callees:
            lines = [f"%1 = stablehlo.tanh %0 : {VECTOR}"]
        body = "\n".join([*lines, f"return %{max(1, len(callees))} : {VECTOR}"])
        texts.append(f"func.func @{name}(%arg: {VECTOR}) -> {VECTOR} {{\n{body.replace('%0', '%arg')}\n}}")
    return "module {\n" + "\n".join(texts) + "\n}"


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ({"main": ["main"]}, "the function main calls itself"),
        ({"main": ["f"], "f": ["g"], "g": ["f"]}, "the function f calls itself"),
        ({"main": ["f"], "f": ["main"]}, "the function main calls itself"),
        ({"main": ["f0"], **{f"f{k}": [f"f{k + 1}"] for k in range(400)}, "f400": []}, "each other so deep|too deeply"),
        ({"main": ["f0"], **{f"f{k}": [f"f{k + 1}"] * 2 for k in range(40)}, "f40": []}, "does too much"),
    ],
)
def test_functions_in_circles_and_chains(calls: dict[str, list[str]], message: str) -> None:
    with pytest.raises(tw.Error, match=message):
        import_model(functions(calls))


def test_functions_that_end() -> None:
    text = functions({"main": ["f0", "f1"], "f0": ["f1", "f1"], "f1": []})
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    np.testing.assert_allclose(tw.compile(text)(x), np.tanh(np.tanh(np.tanh(x))), rtol=1e-5)


def test_a_while_that_never_ends() -> None:
    text = f"""module {{ func.func @main(%a: {VECTOR}) -> {VECTOR} {{
      %yes = stablehlo.constant dense<true> : tensor<i1>
      %0 = stablehlo.while(%x = %a) : {VECTOR} cond {{ stablehlo.return %yes : tensor<i1> }}
      do {{ %1 = stablehlo.tanh %x : {VECTOR}
        stablehlo.return %1 : {VECTOR} }}
      return %0 : {VECTOR} }} }}"""
    model = tw.compile(text)
    model.max_iterations, model.time_limit = 1 << 60, 0.05
    with pytest.raises(tw.Error, match=r"took longer than 0.05 s"):
        model(np.ones(4, np.float32))


HUGE = "tensor<4294967296x4294967296xf32>"


@pytest.mark.parametrize(
    ("arguments", "body", "type"),
    [
        (f"%a: {HUGE}", f"%0 = stablehlo.tanh %a : {HUGE}", HUGE),
        ("", f"%0 = stablehlo.iota dim = 0 : {HUGE}", HUGE),
        ("", f"%0 = stablehlo.constant dense<1.0> : {HUGE}", HUGE),
        ("%a: tensor<f32>", f"%0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> {HUGE}", HUGE),
        (
            f"%a: {VECTOR}, %b: tensor<f32>",
            "%0 = stablehlo.pad %a, %b, low = [4611686018427387900], high = [4611686018427387900], interior = [0] : "
            f"({VECTOR}, tensor<f32>) -> tensor<9223372036854775804xf32>",
            "tensor<9223372036854775804xf32>",
        ),
    ],
)
def test_sizes_that_overflow(arguments: str, body: str, type: str) -> None:
    text = f"module {{ func.func @main({arguments}) -> {type} {{\n{body}\nreturn %0 : {type} }} }}"
    with pytest.raises(tw.Error, match="too large"):
        import_model(text)
