"""Models whose shapes fit for some sizes alone: what divides their symbols is found, others are refused when called."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.reference
import pytest

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.common.equal_sizes import divisors, joined, sufficient
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Var
from tilewright.support.errors import CallError, ModelError, ShapeError

h, w = Var("h", lo=1), Var("w", lo=1)


@pytest.mark.parametrize(
    ("pairs", "results"),
    [
        ([(h, h // 2 * 2)], {"h": 2}),
        ([(h, h // 4 * 4), (w // 3 * 3, w)], {"h": 4, "w": 3}),
        ([(h // 4, h // 8 * 2), (h // 2, h // 4 * 2), (h, h // 2 * 2)], {"h": 8}),
        ([(h // 4, h // 8 * 2)], {}),  # 97 // 4 is 24 as well
        ([(h, h // 2 * 2), (w, w + 1)], {}),
        ([(h, h // 2 * 2), (w, h // 2 * 2)], {"h": 2}),
        ([(h, w)], {}),
        ([(h + 1, h)], {}),
        ([(h, h // 1000 * 1000)], {}),
        ([], {}),
        ([(Var("m", lo=3, multiple=6), Var("m", lo=3, multiple=6) // 4 * 4)], {"m": 12}),
        ([(Var("few", lo=1, hi=7), Var("few", lo=1, hi=7) // 8 * 8)], {}),
        ([((h + 1) // 2 * 2, h)], {"h": 2}),
        ([(h, 40 - h)], {}),
        ([(h // 2 * 2 * (w // 3 * 3), h * w)], {"h": 2, "w": 3}),
        ([(Var("b", lo=1) * (h // 4 * 4) * 8, Var("b", lo=1) * h * 8), (h, h // 6 * 6)], {"h": 12}),
        ([(h * w, h + w)], {}),
    ],
)
def test_divisors(pairs: list[Any], results: dict[str, int]) -> None:
    assert divisors(pairs) == results


@pytest.mark.parametrize(
    ("pairs", "results"),
    [
        ([((h + 31) // 32 * 2, (h + 15) // 16)], {"h": 32}),  # 49 is equal, too
        ([((h + 31) // 32 * 2, (h + 15) // 16), (w // 4, w // 8 * 2)], {"h": 32, "w": 8}),
        ([(h // 4, h // 8 * 2), (w + 1, w)], {"h": 8}),
        ([(h, w)], {}),
        ([], {}),
    ],
)
def test_multiples_that_would_do(pairs: list[Any], results: dict[str, int]) -> None:
    assert sufficient(pairs) == results


def test_sizes_that_are_to_be_stated() -> None:
    """Strides that round up fit for other sizes than multiples: who says that none of these come has one program."""
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((2, 2, 3, 3)).astype(np.float32) for k in range(2)}
    conv = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "w0"], ["a"], **conv),
        node("Conv", ["a", "w1"], ["b"], **conv),
        node("Resize", ["b", "", "two"], ["up"], mode="nearest"),
        node("Concat", ["up", "a"], ["y"], axis=1),
    ]
    m = model(nodes, [info("x", [1, 2, "height", "width"])], ["y"], {"two": np.float32([1, 1, 2, 2]), **weights})
    with pytest.raises(ShapeError, match=r'hint: .*dims=\{"height": tw.dim\(4, 128, multiple=4\), "width":'):
        import_onnx(m)
    with pytest.warns(UserWarning, match=r"hint: if no other sizes come, say so"):
        parts = tw.compile(m)
    whole = tw.compile(m, dims={name: tw.dim(4, 128, multiple=4) for name in ("height", "width")}, fallback="never")
    for height, width in ((4, 8), (36, 20)):
        x = rng.standard_normal((1, 2, height, width)).astype(np.float32)
        wanted = onnx.reference.ReferenceEvaluator(m).run(None, {"x": x})[0]
        np.testing.assert_allclose(whole(x), wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(parts(x), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(CallError):
        whole(np.zeros((1, 2, 6, 8), np.float32))
    with pytest.raises(CallError):
        parts(np.zeros((1, 2, 5, 8), np.float32))


def halved_and_doubled(levels: int, join: str) -> onnx.ModelProto:
    """Maps that are pooled so often, doubled again, and joined with those from before at each level."""
    nodes, names = [], ["x"]
    for k in range(levels):
        nodes.append(node("MaxPool", [names[-1]], [f"p{k}"], kernel_shape=[2, 2], strides=[2, 2]))
        names.append(f"p{k}")
    up = names.pop()
    for k, name in enumerate(reversed(names)):
        last = k == levels - 1
        nodes.append(node("Resize", [up, "", "two"], [f"u{k}"], mode="nearest"))
        nodes.append(
            node(join, [f"u{k}", name], ["y" if last else f"j{k}"], **({"axis": 1} if join == "Concat" else {}))
        )
        up = f"j{k}"
    return model(nodes, [info("x", [1, 2, "height", "width"])], ["y"], {"two": np.float32([1, 1, 2, 2])})


@pytest.mark.costly(2)
@pytest.mark.parametrize("join", ["Concat", "Add"])
@pytest.mark.parametrize("levels", [1, 3])
def test_a_network_that_shrinks_and_doubles(levels: int, join: str) -> None:
    proto, unit = halved_and_doubled(levels, join), 1 << levels
    built = tw.compile(proto, fallback="never")
    reference = onnx.reference.ReferenceEvaluator(proto)
    rng = np.random.default_rng(0)
    for height, width in ((unit, unit), (3 * unit, unit), (5 * unit, 9 * unit)):
        x = rng.standard_normal((1, 2, height, width)).astype(np.float32)
        np.testing.assert_allclose(built(x), reference.run(None, {"x": x})[0], rtol=0, atol=1e-6)
    with pytest.raises(CallError, match=f"expected width in 1\\.\\.[0-9]+, a multiple of {unit}, got {unit + 1}"):
        built(np.zeros((1, 2, unit, unit + 1), np.float32))


def test_what_callers_say_is_retained() -> None:
    proto = halved_and_doubled(2, "Concat")
    said = {"height": tw.dim(3, 50, multiple=6, likely=[6, 12, 18, 24]), "width": 8}
    (image,) = import_onnx(proto, said).graph.inputs
    height = image.type.shape[2]
    assert isinstance(height, Var) and (height.lo, height.hi, height.multiple) == (3, 50, 12)
    assert height.likely == (12, 24) and str(image.type.shape[3]) == "8"
    with pytest.raises(ModelError, match="differ outside axis 1"):
        import_onnx(proto, {"height": tw.dim(5, 7)})
    with pytest.raises(ModelError, match="differ outside axis 1"):
        import_onnx(proto, {"height": 6})


def test_what_the_model_needs_otherwise_is_retained() -> None:
    """A least size and a divisor at once."""
    nodes = [*halved_and_doubled(1, "Concat").graph.node, node("Gather", ["y", "at"], ["z"], axis=2)]
    weights = {"two": np.float32([1, 1, 2, 2]), "at": np.int64([10])}
    (image,) = import_onnx(model(nodes, [info("x", [1, 2, "height", "width"])], ["z"], weights)).graph.inputs
    height = image.type.shape[2]
    assert isinstance(height, Var) and (height.lo, height.multiple) == (11, 2)


def test_shapes_that_fit_for_other_sizes_too_are_assumed_equal() -> None:
    """Sizes that fit must not be lost: 4 and 5 rows, 8 and 9 become as many."""
    nodes = [
        node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["b", "", "two"], ["u"], mode="nearest"),
        node("Concat", ["u", "a"], ["y"], axis=1),
    ]
    proto = model(nodes, [info("x", [1, 2, "height", "width"])], ["y"], {"two": np.float32([1, 1, 2, 2])})
    compiled, reference = tw.compile(proto, fallback="never"), onnx.reference.ReferenceEvaluator(proto)
    for height, width in ((4, 9), (97, 8)):
        x = np.random.default_rng(0).standard_normal((1, 2, height, width)).astype(np.float32)
        np.testing.assert_array_equal(compiled(x), reference.run(None, {"x": x})[0])
    with pytest.raises(CallError, match=r"width // 2 % 2 == 0"):
        compiled(np.zeros((1, 2, 8, 6), np.float32))
    assert Dim(1, None, 4).var("n", Dim(0, multiple=6)).multiple == 12


@pytest.mark.parametrize(
    ("pairs", "results"),
    [
        ([(h, w)], {"w": "h"}),
        ([(w, h), (v := Var("v", lo=1), w)], {"w": "h", "v": "h"}),
        ([(v, w), (h, v)], {"w": "h", "v": "h"}),
        ([(h, w + 1), (h, Var("other", lo=1)), (h, h)], {}),
        ([(h, w), (w, h)], {"w": "h"}),
    ],
)
def test_symbols_that_are_the_same(pairs: list[Any], results: dict[str, str]) -> None:
    same = joined(pairs, [h, w, v])
    assert {a.name: b.name for a, b in same.items()} == results


def attention() -> onnx.ModelProto:
    """Every dimension has a name of its own, as some exporters name them."""
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("Add", ["s", "mask"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Concat", ["o", "q"], ["y"], axis=-1),
    ]
    shapes = {"q": ["a", "b", 8], "k": ["c", 8, "d"], "mask": ["e", 1, "f"], "v": ["g", "h", 8]}
    return model(nodes, [info(name, shape) for name, shape in shapes.items()], ["y"])


def test_one_size_under_several_names() -> None:
    proto, rng = attention(), np.random.default_rng(0)
    built = tw.compile(proto, fallback="never")
    assert [tuple(i.shape) for i in built.inputs] == [("a", "b", 8), ("a", 8, "d"), ("a", 1, "d"), ("a", "d", 8)]
    reference = onnx.reference.ReferenceEvaluator(proto)
    for a, b, d in ((1, 1, 1), (3, 5, 7), (2, 4, 1)):
        shapes = {"q": (a, b, 8), "k": (a, 8, d), "mask": (a, 1, d), "v": (a, d, 8)}
        arguments = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        np.testing.assert_allclose(built(*arguments.values()), reference.run(None, arguments)[0], rtol=0, atol=1e-5)
    with pytest.raises(CallError, match="dimension 0 disagrees with input 'q': expected a = 2, got 1"):
        built(*(np.zeros(s, np.float32) for s in ((2, 3, 8), (2, 8, 4), (1, 1, 4), (2, 4, 8))))


def test_names_that_callers_use_are_retained() -> None:
    proto = attention()
    graph = import_onnx(proto, {"d": 4, "h": 4, "f": 4, "e": 1}).graph
    assert [str(x.type) for x in graph.inputs] == ["f32[a, b, 8]", "f32[a, 8, 4]", "f32[1, 1, 4]", "f32[a, 4, 8]"]
    first = import_onnx(proto, {"c": tw.dim(1, 8)}).graph.inputs[0].type.shape[0]
    assert isinstance(first, Var) and (first.name, first.hi) == ("c", 8)


def test_a_size_of_two_names_and_a_divisor() -> None:
    nodes = [*halved_and_doubled(1, "Concat").graph.node, node("Concat", ["y", "z"], ["both"], axis=1)]
    shapes = {"x": [1, 2, "height", "width"], "z": [1, 3, "tall", "wide"]}
    proto = model(nodes, [info(n, s) for n, s in shapes.items()], ["both"], {"two": np.float32([1, 1, 2, 2])})
    first, second = import_onnx(proto).graph.inputs
    assert first.type.shape[2:] == second.type.shape[2:]
    assert [d.multiple for d in first.type.shape[2:] if isinstance(d, Var)] == [2, 2]


def test_rows_of_a_batch_of_another_name() -> None:
    """A mask is viewed in as many rows as another input's batch has: theirs is one, under two names."""
    nodes = [
        node("Shape", ["ids"], ["shape"]),
        node("Slice", ["shape", "from", "to"], ["batch"]),
        node("Concat", ["batch", "rest"], ["wanted"], axis=0),
        node("Reshape", ["mask", "wanted"], ["rows"]),
        node("Add", ["rows", "ids"], ["y"]),
    ]
    numbers = {name: np.array([n], np.int64) for name, n in (("from", 0), ("to", 1), ("rest", -1))}
    shapes = {"ids": ["batch", "seq"], "mask": ["rows", "total"]}
    built = tw.compile(model(nodes, [info(n, s) for n, s in shapes.items()], ["y"], numbers), fallback="never")
    ids, mask = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([[1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(built(ids, mask), ids + mask)
    with pytest.raises(CallError):
        built(ids, mask.reshape(3, 2))


def test_a_square_of_a_size() -> None:
    """An exporter counts the patches of a square image as a power of its height."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "from", "to"], ["height"]),
        node("Pow", ["height", "two"], ["count"]),
        node("Concat", ["count", "two"], ["wanted"], axis=0),
        node("Reshape", ["x", "wanted"], ["y"]),
    ]
    numbers = {name: np.array([n], np.int64) for name, n in (("from", 0), ("to", 1), ("two", 2))}
    built = tw.compile(model(nodes, [info("x", ["h", "h", 2])], ["y"], numbers), fallback="never")
    x = np.arange(18, dtype=np.float32).reshape(3, 3, 2)
    np.testing.assert_array_equal(built(x), x.reshape(9, 2))


@pytest.mark.parametrize("wrong", ["h", "c", "lengths"])
def test_states_and_lengths_of_a_layer_have_its_batch(wrong: str) -> None:
    """Each names its batch in its own way. A state or a list of lengths of another size would be read past its end."""
    rng = np.random.default_rng(0)
    weights = {"W": rng.standard_normal((1, 16, 3), np.float32), "R": rng.standard_normal((1, 16, 4), np.float32)}
    file = model(
        [node("LSTM", ["x", "W", "R", "", "lengths", "h", "c"], ["y", "yh"], hidden_size=4)],
        [info("x", ["t", "b", 3]), info("h", [1, "b1", 4]), info("c", [1, "b2", 4])]
        + [info("lengths", ["b3"], onnx.TensorProto.INT32)],
        ["y", "yh"],
        weights,
    )
    compiled = tw.compile(file, fallback="never")
    sizes = {"h": (1, 3, 4), "c": (1, 3, 4), "lengths": (3,)}
    feeds = {name: np.ones(shape, np.int32 if name == "lengths" else np.float32) for name, shape in sizes.items()}
    feeds["x"] = rng.standard_normal((2, 3, 3), np.float32)
    y, _ = compiled(*(feeds[spec.name] for spec in compiled.inputs))
    assert y.shape == (2, 1, 3, 4) and not y[1].any() and y[0].all()
    feeds[wrong] = feeds[wrong][:, :1] if wrong != "lengths" else feeds[wrong][:1]
    with pytest.raises(CallError, match="expected b = 3, got 1"):
        compiled(*(feeds[spec.name] for spec in compiled.inputs))


@pytest.mark.parametrize("op", ["Add", "Concat", "GRU"])
def test_symbols_that_are_one_have_the_sizes_that_the_caller_allows_for_each(op: str) -> None:
    rng = np.random.default_rng(0)
    weights = {"W": rng.standard_normal((1, 12, 4), np.float32), "R": rng.standard_normal((1, 12, 4), np.float32)}
    node_of = {
        "Add": node("Add", ["x", "h"], ["y"]),
        "Concat": node("Concat", ["x", "h"], ["y"], axis=0),
        "GRU": node("GRU", ["x", "W", "R", "", "", "h"], ["y"], hidden_size=4),
    }[op]
    file = model([node_of], [info("x", [1, "b", 4]), info("h", [1, "c", 4])], ["y"], weights if op == "GRU" else {})
    compiled = tw.compile(file, dims={"b": tw.dim(0, 6), "c": tw.dim(2, 8)}, fallback="never")
    x, h = rng.standard_normal((2, 1, 4, 4), np.float32)
    (want,) = onnx.reference.ReferenceEvaluator(file).run(None, {"x": x, "h": h})
    np.testing.assert_allclose(compiled(x, h), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(CallError, match="expected b = 4, got 3"):
        compiled(x, h[:, :3])
    for size in (1, 7):
        with pytest.raises(CallError, match=r"expected b in 2\.\.6"):
            compiled(np.zeros((1, size, 4), np.float32), np.zeros((1, size, 4), np.float32))
    with pytest.raises(ShapeError):
        tw.compile(file, dims={"b": tw.dim(1, 4), "c": tw.dim(5, 8)}, fallback="never")


@pytest.mark.parametrize("unstated", ["p", "q", "r"])
def test_a_name_without_a_range_joins_two_that_have_one(unstated: str) -> None:
    nodes = [node("Add", ["x", "y"], ["t"]), node("Add", ["t", "z"], ["o"])]
    file = model(nodes, [info(name, [size, 4]) for name, size in zip("xyz", "pqr", strict=True)], ["o"])
    first, other = (name for name in "pqr" if name != unstated)
    compiled = tw.compile(file, dims={first: tw.dim(2, 6), other: tw.dim(3, 8)}, fallback="never")
    for size in range(9):
        x = np.full((size, 4), size, np.float32)
        if 3 <= size <= 6:
            np.testing.assert_array_equal(compiled(x, x, x), 3 * x)
        else:
            with pytest.raises(CallError, match=rf"expected {first} in 3\.\.6, got {size}"):
                compiled(x, x, x)
