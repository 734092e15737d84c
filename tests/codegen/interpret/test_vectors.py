"""Operators on a value for each thread: bit for bit those of scalars."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.interpret.scalars import caster, function
from tilewright.codegen.interpret.vectors import by_element, conversion, operation
from tilewright.ir.dtype import DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from tilewright.ir.scalar_ops import OPS

TYPES = (f32, f64, f16, bf16, i8, i32, i64, u8, boolean)
LAZY = {"select", "and", "or", "lookup", "cast", "bitcast"}
CLOSE = {"pow", "scaleb", "atan2", "fmod"}


def values(kind: DType, seed: int) -> np.ndarray:
    """Numbers of a type, with its ends and, for floats, infinities, zeros, NaN and values whose sums have to be
    rounded."""
    random = np.random.default_rng(seed)
    if kind.kind == "bool":
        return random.integers(0, 2, 40).astype(bool)
    if kind.is_float:
        usual = random.standard_normal(30) * 2.0 ** random.integers(-12, 12, 30)
        return np.array(
            [*usual, 0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3.0, -1.0, 2.0**-14, 1e30], np.float64
        ).astype(kind.numpy)
    ends = [int(kind.min), int(kind.max), 0, 1, 2, 7]
    return np.array([*random.integers(-100 if kind.kind == "int" else 0, 100, 34), *ends], kind.numpy)


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    return got.dtype == wanted.dtype and bool(np.all((got == wanted) | ((got != got) & (wanted != wanted))))


@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name)
def test_operators(kind: DType) -> None:
    group = "bool" if kind.kind == "bool" else kind.kind
    with np.errstate(all="ignore"):
        for name, info in OPS.items():
            if name in LAZY or group not in info.kinds:
                continue
            args = [values(kind, seed) for seed in range(info.arity)]
            result = boolean if info.rule in ("bool", "logic") else kind
            got, wanted = operation(name, kind, result)(*args), by_element(function(name, kind), result, *args)
            if info.rule == "same" and kind.is_float and (info.arity == 1 or name in CLOSE):
                np.testing.assert_allclose(
                    got.astype(np.float64), wanted.astype(np.float64), rtol=1e-2 if kind.bits == 16 else 1e-6
                )
            else:
                assert same(np.asarray(got), wanted), name


@pytest.mark.parametrize("source", TYPES, ids=lambda t: t.name)
def test_casts(source: DType) -> None:
    with np.errstate(all="ignore"):
        for target in TYPES:
            x = values(source, 3)
            got, wanted = conversion(source, target)(x), by_element(caster(source, target), target, x)
            assert same(np.asarray(got), wanted), f"{source} to {target}"
