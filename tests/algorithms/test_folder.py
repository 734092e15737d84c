"""An algorithm is a folder: a new one is offered, chosen, parsed, lowered and run without a line elsewhere."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import algorithms, ops
from tilewright.ir.selection import Algorithm, Direct
from tilewright.ir.selection import algorithms as algorithm_kinds
from tilewright.support import discover
from tilewright.support.errors import VerifyError
from tilewright.transform import algorithm

FILES = {
    "__init__": "",
    "selection": """
from typing import ClassVar
from tilewright.ir.selection import Algorithm
from tilewright.support.classes import dataclass

@dataclass(frozen=True, slots=True)
class Doubled(Algorithm):
    name: ClassVar[str] = "doubled"
    parts: int
""",
    "operators": """
from tilewright import te
from tilewright.ir.attributes import Attrs
from tilewright.ops.registry import OpDef, register
from tilewright.support.classes import dataclass

@dataclass(frozen=True, slots=True)
class NoAttrs(Attrs):
    pass

register(OpDef("lowered.half_again", "pointwise", NoAttrs, lambda types, attrs: (types[0],),
    lambda arrays, attrs: (arrays[0] * arrays[0].dtype.type(0.5),),
    lambda inputs, attrs, types: (te.compute(types[0].shape, lambda *i: inputs[0][i] * 0.5),)))
""",
    "record": """
from tilewright.algorithms.doubled.selection import Doubled
from tilewright.transform.algorithm import Record

def offer(enclosing, node, options):
    return [*options, (-1.0, Doubled(2))]

def lower(a, node):
    x, w = (a.as_row_major(v) for v in node.inputs)
    (doubled,) = a.emit("add", (x, x), {}, "doubled")
    (product,) = a.emit("matmul", (doubled, w), node.attrs, "product")
    (a.row_major[node.output],) = a.emit("lowered.half_again", (product,), {}, node.output.name)
    return True

RECORDS = (Record(Doubled, "matmul", offer, lower),)
""",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package of algorithms with one more."""
    (tmp_path / "doubled").mkdir()
    for name, text in FILES.items():
        (tmp_path / "doubled" / f"{name}.py").write_text(text)
    caches = discover.modules, discover._folders, algorithm.records
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    importlib.invalidate_caches()
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
    ops.unregister("lowered.half_again")
    from tilewright.ir import selection

    del selection._KINDS["doubled"]
    for name in [n for n in sys.modules if n.startswith("tilewright.algorithms.doubled")]:
        del sys.modules[name]


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(VerifyError, match="two algorithms have one name"):

        class Other(Algorithm):
            name = "direct"

    assert algorithm_kinds()["direct"] is Direct


TEXT = "graph @g(%x: f32[5, 7]) params(%w: f32[7, 3]) { %y = matmul(%x, %w) HOW : f32[5, 3] return %y }"


def test_a_folder_is_an_algorithm(folder: None) -> None:
    noted = ops.parse_graph(TEXT.replace("HOW", "by doubled {parts = 2} in fp32"))
    assert "by doubled {parts = 2} in fp32" in str(noted)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 7), (7, 3)))
    model = tw.compile((ops.parse_graph(TEXT.replace("HOW", "")), {"w": w}))
    assert "lowered.half_again" in model.show("graph")
    np.testing.assert_allclose(model(x), x @ w, rtol=1e-5, atol=1e-6)
