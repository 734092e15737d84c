"""Attributes: names and types are checked where they are made, values have one form, defaults are left out of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from tilewright.ir.attributes import NO_ATTRS, Attrs, ConstantArray, Dims, Ints, Number, same
from tilewright.ir.dtype import DType, f32
from tilewright.ir.expr import Var, const
from tilewright.support.errors import VerifyError

N = Var("n")


@dataclass(frozen=True, slots=True)
class Sample(Attrs):
    shape: Dims
    perm: Ints = ()
    scale: float = 1.0
    value: Number = 0
    keep: bool = False
    mode: Literal["up", "down"] = "up"
    to: DType | None = None
    pair: tuple[float, int] | None = None
    table: ConstantArray | None = None


def sample_of(**values: object) -> Sample:
    return Sample.of({"shape": (1,), **values}, "sample")


def test_values_have_one_form() -> None:
    array = np.arange(3)
    sample = sample_of(
        shape=[2, N], perm=np.array([1, 0]).tolist(), scale=2, value=np.int64(3), table=array, pair=[1, 2]
    )
    assert sample.shape == (2, N) and sample.perm == (1, 0) and sample.pair == (1.0, 2)
    assert type(sample.scale) is float and type(sample.value) is int and sample.pair and type(sample.pair[0]) is float
    assert sample.table == ConstantArray(array)
    assert hash(sample) == hash(sample_of(shape=(2, N), perm=(1, 0), scale=2.0, value=3, table=array, pair=(1.0, 2)))


def test_texts_have_what_is_not_by_default() -> None:
    assert sample_of().items() == (("shape", (1,)),)
    assert sample_of(scale=1.5, keep=True).items() == (("keep", True), ("scale", 1.5), ("shape", (1,)))
    # Equal to the default, but another number for what computes with it.
    assert sample_of(value=0.0).items() == (("shape", (1,)), ("value", 0.0))
    assert sample_of(value=False).items() == (("shape", (1,)), ("value", False))
    assert NO_ATTRS.items() == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shap": (1,)}, r"sample: has no attribute 'shap': expected keep, mode, pair, perm, scale, shape, table, to"),
        ({"shape": (1.5,)}, r"sample: attribute 'shape' of Sample is of the wrong type: expected \(int \| Expr, ...\)"),
        ({"shape": (True,)}, "got \\(True,\\)"),
        ({"keep": 1}, "'keep' .* expected bool, got 1"),
        ({"scale": "1"}, "'scale' .* expected float, got '1'"),
        ({"perm": 3}, r"'perm' .* expected \(int, ...\), got 3"),
        ({"mode": "left"}, "'mode' .* expected 'up' \\| 'down', got 'left'"),
        ({"to": "f32"}, "'to' .* expected DType \\| None"),
        ({"pair": (1.0,)}, r"'pair' .* expected \(float, int\) \| None"),
    ],
)
def test_mistakes_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        sample_of(**values)


def test_a_missing_attribute_is_named() -> None:
    with pytest.raises(VerifyError, match="sample: needs the attribute 'shape'"):
        Sample.of({"keep": True}, "sample")
    with pytest.raises(VerifyError, match="relu: has no attribute 'alpha': expected no attributes, got alpha"):
        Attrs.of({"alpha": 1.0}, "relu")


def test_values_are_mapped() -> None:
    sample = sample_of(shape=(N, 2), to=f32)
    assert sample.mapped(lambda v: (5, 2) if v == (N, 2) else v) == sample_of(shape=(5, 2), to=f32)


def test_values_are_in_one_form_whatever_their_class() -> None:
    """A value of a stated class is taken as it is; one of a subclass, such as NumPy's, becomes one of that class."""

    @dataclass(frozen=True, slots=True)
    class Mixed(Attrs):
        scale: float
        axis: int | None = None

    mixed = Mixed.of({"scale": np.float64(0.5), "axis": np.int64(2)}, "mixed")
    assert [(type(v), v) for _, v in sorted(mixed.values().items())] == [(int, 2), (float, 0.5)]
    assert type(Mixed(3).scale) is float and Mixed(0.5).axis is None
    with pytest.raises(VerifyError, match="'axis' of Mixed is of the wrong type"):
        Mixed(0.5, True)
    with pytest.raises(VerifyError, match="needs the attribute 'scale'"):
        Mixed.of({}, "mixed")


def test_symbols_are_the_same_as_themselves() -> None:
    n, m = Var("n"), Var("m")
    for a, b in ((n, n), ((n, 4), (n, 4)), (const(4), 4), (4, const(4)), ("x", "x"), (None, None)):
        assert same(a, b)
    for a, b in ((n, m), ((n, 4), (4, n)), (n, 4), (4, n), (n, None), (n, "n"), ((n,), (n, n)), (const(4), 5), ((), 0)):
        assert not same(a, b)
