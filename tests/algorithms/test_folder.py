"""An algorithm is a folder: a new one is offered, chosen, parsed, lowered and run without a line elsewhere, for any
operator, and no file of the source outside of it names it."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import tilewright as tw
from tests.mirror import SOURCE
from tests.transform.graph.graphs import tensor
from tilewright import algorithms, ops
from tilewright.ir import selection
from tilewright.ir.dtype import DType, f32, f64, i32
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType
from tilewright.ir.selection import Algorithm, Direct
from tilewright.ir.selection import algorithms as algorithm_kinds
from tilewright.support import discover
from tilewright.support.classes import dataclass
from tilewright.support.errors import VerifyError
from tilewright.targets.target import Target
from tilewright.transform import algorithm
from tilewright.transform.layout.assign import assign_layouts, in_blocks
from tilewright.transform.select.choose import choose_algorithms

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


MAPS: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1)}
LINES: dict[str, Any] = {"strides": (1,), "dilations": (1,), "pads": (1, 1)}
VOLUMES: dict[str, Any] = {"strides": (1,) * 3, "dilations": (1,) * 3, "pads": (1,) * 6}
SCORES = {"order": "ssss", "heads": 2, "groups": 2, "first": (0, 0, 0), "scale": 1.0, "causal": False, "fill": 0.0}
POOL: dict[str, Any] = {"kernel": (2, 2), "ceil_mode": False, **MAPS}
CASES: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any]]] = {
    "convolution": ("conv", [(1, 32, 8, 8), (32, 32, 3, 3)], {**MAPS, "groups": 1}),
    "1x1": ("conv", [(1, 32, 8, 8), (32, 32, 1, 1)], {**MAPS, "pads": (0,) * 4, "groups": 1}),
    "depthwise": ("conv", [(1, 32, 8, 8), (32, 1, 3, 3)], {**MAPS, "groups": 32}),
    "groups": ("conv", [(1, 64, 8, 8), (64, 32, 3, 3)], {**MAPS, "groups": 2}),
    "lines": ("conv", [(1, 32, 8), (32, 32, 3)], {**LINES, "groups": 1}),
    "grouped lines": ("conv", [(1, 32, 8), (32, 1, 3)], {**LINES, "groups": 32}),
    "volumes": ("conv", [(1, 16, 4, 4, 4), (16, 16, 3, 3, 3)], {**VOLUMES, "groups": 1}),
    "transposed": ("conv_transpose", [(1, 32, 8, 8), (32, 32, 3, 3)], {**MAPS, "groups": 1, "output_padding": (0, 0)}),
    "grouped, transposed": (
        "conv_transpose",
        [(1, 32, 8, 8), (32, 1, 3, 3)],
        {**MAPS, "groups": 32, "output_padding": (0, 0)},
    ),
    "gradient": ("conv_weight_gradient", [(2, 32, 8, 8), (2, 32, 8, 8)], {**MAPS, "window": (3, 3)}),
    "product": ("matmul", [(8, 64), (64, 32)], {}),
    "product of one row": ("matmul", [(1, 64), (64, 32)], {}),
    "product of one column": ("matmul", [(8, 64), (64, 1)], {}),
    "products": ("matmul", [(2, 8, 64), (2, 64, 32)], {}),
    "attention": ("lowered.attention", [(1, 8, 2, 16)] * 3, {**SCORES, "guard": False}),
    "max_pool": ("max_pool", [(1, 32, 8, 8)], POOL),
    "sum": ("reduce_sum", [(8, 64)], {"axes": (1,), "keepdims": False}),
    "softmax": ("softmax", [(8, 64)], {"axis": 1}),
    "pointwise": ("exp", [(8, 64)], {}),
    "rows": ("gather", [(8, 64), (3,)], {"axis": 0}),
}
"""By name: operator, shapes of operands, attributes."""
TYPES = {"product": (f32, f64, i32), "convolution": (f32, f64, i32), "depthwise": (f32, i32), "transposed": (f32, f64)}
"""The element types of those cases of which there are several."""


@dataclass(frozen=True, slots=True)
class Everything(Algorithm):
    """An algorithm for any operator."""

    name: ClassVar[str] = "everything"
    in_blocks: ClassVar[bool] = False


del selection._KINDS["everything"]  # no text of another test has it


def one_node(name: str, kind: DType) -> Graph:
    """A graph of one node, whose second operand, if there are two, is a weight."""
    op, shapes, attrs = CASES[name]
    b = GraphBuilder("g")
    types = [TensorType(i32 if op == "gather" and k else kind, tensor(*shape).shape) for k, shape in enumerate(shapes)]
    takes = [b.input, b.param if len(types) == 2 and op != "conv_weight_gradient" else b.input, b.input]
    operands = [take(f"v{k}", of) for k, (take, of) in enumerate(zip(takes, types, strict=False))]
    return b.finish((ops.emit1(b, op, *operands, **attrs),))


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in CASES for kind in TYPES.get(name, (f32,))])
@pytest.mark.parametrize("target", ["znver4", "sapphirerapids", "neoverse-v1"])
def test_any_operator_has_algorithms_of_folders(
    name: str, kind: DType, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else there is for its type and sizes, a node is offered a folder's algorithm, and is rewritten by it."""
    lowered = []

    def lower(a: Any, node: Node) -> bool:
        lowered.append(node)
        a.keep(node)
        return True

    machine, op = Target.parse(target), CASES[name][0]
    record = algorithm.Record(
        Everything, op, lambda enclosing, node, options: [*options, (-1.0, Everything())], lower, fits=lambda node: True
    )
    monkeypatch.setattr(algorithm, "records", lambda: {Everything: record})
    graph = choose_algorithms(one_node(name, kind), machine, in_blocks())
    (node,) = graph.nodes
    assert node.algorithm == Everything()
    assert [n.op for n in assign_layouts(graph, machine).nodes] == [op] and lowered == [node]


MAY = {
    ("winograd", "algorithms/strassen/plan/convolution.py"): "its strips and products",
    ("winograd", "algorithms/strassen/plan/product.py"): "its products with constant matrices",
}
"""Files that name an algorithm of another folder, with what they need of it."""


def folders_named(tree: ast.AST, operators: dict[str, str]) -> Iterator[str]:
    """The folders of algorithms of which a module imports something, or names an operator; `operators` has the folder
    of each."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(module)):
                if module in operators:
                    yield operators[module]
            case ast.ImportFrom(module=str(module)) | ast.alias(name=module):
                pass
            case _:
                continue
        if module.startswith("tilewright.algorithms."):
            yield module.split(".")[2]


@pytest.mark.daily(2)
def test_no_file_outside_of_its_folder_names_an_algorithm() -> None:
    modules = {name: ops.get(name).infer.__module__.split(".") for name in ops.names()}
    operators = {name: folder for name, (_, room, folder, *_) in modules.items() if room == "algorithms"}
    named = set()
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        for folder in folders_named(ast.parse(path.read_text()), operators):
            if not place.startswith(f"algorithms/{folder}/"):
                named.add((folder, place))
    assert {"winograd", "strassen", "taps"} <= set(operators.values())
    assert named == set(MAY)
