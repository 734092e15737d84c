"""Files that are wrong: an error that names the thing, whatever the file says; never a crash, a hang or much memory."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks import policy_suite
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx import (
    import_onnx,
    rules,  # noqa: F401  fills RULES
)
from tilewright.frontend.onnx.registry import RULES
from tilewright.support.errors import Error, ModelError, ShapeError, UnsupportedError

X = info("x", ["n", 4])


@pytest.fixture(autouse=True)
def _no_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Unique` stands for any operator that Tilewright lacks, whose results have a size that data decides."""
    monkeypatch.delitem(RULES, "Unique")


def refused(m: onnx.ModelProto | bytes | Path, *words: str, kind: type[Error] = ModelError) -> Error:
    with pytest.raises(kind) as caught:
        import_onnx(m)
    text = str(caught.value)
    for word in words:
        assert word in text, text
    assert "malformed" not in text, text
    return caught.value


def test_every_unsupported_node_is_listed() -> None:
    nodes = [
        node("Unique", ["x"], ["a"], name="first"),
        helper.make_node("Fancy", ["x"], ["b"], domain="vendor", name="second"),
        node("Relu", ["a"], ["c"]),
        helper.make_node("Elu", ["x"], ["d"], name="third", strange=3),
        node("Add", ["c", "d"], ["y"]),
    ]
    error = refused(
        model(nodes, [X], ["y", "b"], vendor=1), "first", "second", "vendor", "third", "strange", kind=UnsupportedError
    )
    assert len(error.problems) == 3


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("Relu", ["z"], ["y"])], ["'z'", "nothing before it computes"]),
        ([node("Relu", ["b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])], ["'b'"]),
        ([node("Relu", ["y"], ["y"])], ["'y'"]),
        ([node("Relu", ["x"], ["y"]), node("Relu", ["x"], ["y"])], ["exists already"]),
        ([node("Relu", ["x"], ["x"]), node("Relu", ["x"], ["y"])], ["exists already"]),
        ([node("Relu", ["x"], ["a"])], ["output 'y'"]),
        ([node("Relu", [], ["y"])], ["input 0 is missing"]),
        ([node("MatMul", ["x", "w"], ["y"])], ["inner dimensions", "3"]),
        ([node("Add", ["x", "w"], ["y"])], ["broadcast", "[3]"]),
        ([node("Transpose", ["x"], ["y"], perm=[0, 0])], ["permutation"]),
        ([node("Concat", ["x", "w"], ["y"], axis=0)], ["rank"]),
        ([node("Reshape", ["x", "shape"], ["y"])], ["reshape"]),
        ([node("Cast", ["x"], ["y"], to=99)], ["element type"]),
        ([node("Cast", ["x"], ["y"], to=TensorProto.STRING)], ["STRING"]),
        ([node("Gather", ["w", "far"], ["y"])], ["outside", "7"]),
        ([node("Softmax", ["x"], ["y"], axis=5)], ["axis"]),
        ([node("Relu", ["i"], ["a"]), node("Add", ["a", "x"], ["y"])], ["differ", "i64"]),
        ([helper.make_node("If", ["c"], ["y"])], ["then_branch"]),
    ],
)
def test_wrong_nodes(nodes: list[onnx.NodeProto], words: list[str]) -> None:
    weights = {"w": np.zeros(3, np.float32), "shape": np.array([7, 7]), "far": np.array([7, 1])}
    inputs = [X, info("i", [4], TensorProto.INT64), info("c", [], TensorProto.BOOL)]
    refused(model(nodes, inputs, ["y"], weights), *words)


def test_cyclic_functions() -> None:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    a = helper.make_function("f", "A", ["x"], ["y"], [helper.make_node("B", ["x"], ["y"], domain="f")], imports)
    b = helper.make_function("f", "B", ["x"], ["y"], [helper.make_node("A", ["x"], ["y"], domain="f")], imports)
    m = model([helper.make_node("A", ["x"], ["y"], domain="f")], [X], ["y"], functions=[a, b], f=1)
    refused(m, "too deeply")


def test_functions_that_multiply() -> None:
    """Thirty levels that each call the next twice would be a thousand million nodes."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    functions = [
        helper.make_function(
            "f",
            f"L{k}",
            ["x"],
            ["y"],
            [
                helper.make_node(f"L{k + 1}", ["x"], ["a"], domain="f"),
                helper.make_node(f"L{k + 1}", ["a"], ["y"], domain="f"),
            ],
            imports,
        )
        for k in range(30)
    ]
    functions.append(helper.make_function("f", "L30", ["x"], ["y"], [node("Relu", ["x"], ["y"])], imports))
    refused(model([helper.make_node("L0", ["x"], ["y"], domain="f")], [X], ["y"], functions=functions, f=1), "too many")


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ConstantOfShape", ["huge"], ["y"])],
        [node("Expand", ["x", "huge"], ["y"])],
        [node("Tile", ["w", "large"], ["y"])],
        [node("Range", ["zero", "end", "one"], ["r"]), node("Cast", ["r"], ["y"], to=TensorProto.FLOAT)],
    ],
)
def test_huge_tensors_without_data(nodes: list[onnx.NodeProto]) -> None:
    weights = {
        "huge": np.array([1 << 20, 1 << 20, 1 << 20]),
        "large": np.array([1 << 40]),
        "w": np.zeros(3, np.float32),
        "zero": np.int64(0),
        "one": np.int64(1),
        "end": np.int64(1 << 39),
    }
    refused(model(nodes, [info("x", [1])], ["y"], weights), "too large")


def test_wrong_lengths_of_data() -> None:
    m = policy_suite.m64()
    m.graph.initializer[0].raw_data = m.graph.initializer[0].raw_data[:-4]
    m.graph.initializer[1].dims[0] = 1 << 60
    m.graph.initializer[2].data_type = 77
    m.graph.initializer[3].dims[:] = [0, 1 << 40, 1 << 40]
    m.graph.initializer[3].raw_data = b""
    error = refused(m, *(tensor.name for tensor in m.graph.initializer[:4]))
    assert len(error.problems) == 4


def test_inputs_that_make_no_sense() -> None:
    nodes = [node("Relu", ["x"], ["y"])]
    refused(model(nodes, [info("x", [-5])], ["y"]), "dimension 0")
    refused(model(nodes, [info("x", None)], ["y"]), "rank", kind=UnsupportedError)
    refused(model(nodes, [info("x", [3], 0)], ["y"]), "'x'")
    refused(model(nodes, [info("x", [3]), info("x", [3])], ["y"]), "'x'", "twice")
    refused(model(nodes, [info("x", [1 << 40, 4])], ["y"]), "too large")
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [3])
    refused(model(nodes, [sequence], ["y"]), "sequence", kind=UnsupportedError)
    with pytest.raises(ModelError, match="no dimension"):
        import_onnx(model(nodes, [X], ["y"]), {"m": 3})


def test_declared_output_types_are_checked() -> None:
    m = model([node("Relu", ["x"], ["y"])], [X], [info("y", ["n", 4], TensorProto.INT64)])
    refused(m, "'y'", "i64", "f32")


def test_operator_sets() -> None:
    nodes = [node("Relu", ["x"], ["y"])]
    refused(model(nodes, [X], ["y"], opset=0), "operator set", kind=UnsupportedError)
    refused(model(nodes, [X], ["y"], opset=1000), "operator set", kind=UnsupportedError)


def test_files(tmp_path: Path) -> None:
    refused(tmp_path / "absent.onnx", "absent.onnx")
    (tmp_path / "text.onnx").write_text("this is not a model")
    refused(tmp_path / "text.onnx", "text.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    refused(tmp_path / "empty.onnx", "empty.onnx")
    refused(tmp_path, "cannot be read")


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model whose weight lies in a file beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    m = model([node("MatMul", ["x", "w"], ["y"])], [X], ["y"], {"w": weight})
    onnx.save(m, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").write_bytes(weight.tobytes())
    return folder / "m.onnx"


def test_external_data_is_read(external: Path) -> None:
    np.testing.assert_array_equal(import_onnx(external).weights["w"], np.arange(16).reshape(4, 4))


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "", "a/../../m.data", "..\\m.data", "absent", "."])
def test_external_data_stays_in_the_folder(external: Path, location: str) -> None:
    m = onnx.load(external, load_external_data=False)
    _entry(m, "location", location)
    external.write_bytes(m.SerializeToString())
    refused(external, "'w'", "external data")


def _entry(m: onnx.ModelProto, key: str, value: str) -> None:
    (entry,) = [e for e in m.graph.initializer[0].external_data if e.key == key]
    entry.value = value


def test_external_data_through_links(external: Path) -> None:
    (external.parent / "m.data").unlink()
    os.symlink(external.parent.parent / "m.data", external.parent / "m.data")
    refused(external, "link")


@pytest.mark.parametrize(("key", "value"), [("offset", "-4"), ("offset", "64"), ("length", "1"), ("offset", "zero")])
def test_external_data_outside_its_file(external: Path, key: str, value: str) -> None:
    m = onnx.load(external, load_external_data=False)
    _entry(m, key, value)
    external.write_bytes(m.SerializeToString())
    refused(external, "'w'")


def test_external_data_without_a_folder(external: Path) -> None:
    refused(onnx.load(external, load_external_data=False), "another file")


# --- mutants --------------------------------------------------------------------------------------------------------

MUTANTS = int(os.environ.get("TILEWRIGHT_MUTANTS", "400"))
NUMBERS = (0, 1, -1, 2, 7, 63, 127, 255, 1 << 31, 1 << 40, 1 << 62, -(1 << 63), (1 << 63) - 1)


def seeds() -> list[bytes]:
    rng = np.random.default_rng(0)
    x = info("x", ["n", 4, 8, 8])
    conv = [
        node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], ceil_mode=1),
        node("Shape", ["p"], ["s"]),
        node("Slice", ["s", "zero", "one"], ["b"]),
        node("Concat", ["b", "minus"], ["t"], axis=0),
        node("Reshape", ["p", "t"], ["r"]),
        node("Pad", ["r", "pads"], ["q"], mode="reflect"),
        node("Resize", ["p", "", "scales"], ["z"], mode="cubic"),
        node("Softmax", ["q"], ["y"]),
    ]
    weights = {
        "k": rng.standard_normal((3, 4, 3, 3)).astype(np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "minus": np.array([-1]),
        "pads": np.array([0, 1, 0, 2]),
        "scales": np.array([1, 1, 2, 1.5], np.float32),
    }
    image = model(conv, [x], ["y", "z"], weights)
    rnn = helper.make_node("LSTM", ["s", "w", "r"], ["y", "h", "c"], hidden_size=3)
    series = model(
        [rnn, node("TopK", ["h", "k"], ["v", "i"])],
        [info("s", [5, "b", 2])],
        ["y", "v", "i"],
        {"w": np.ones((1, 12, 2), np.float32), "r": np.ones((1, 12, 3), np.float32), "k": np.array([2])},
    )
    return [m.SerializeToString() for m in (policy_suite.m64(), image, series)]


def test_mutants() -> None:
    """Truncated, with bytes changed, with fields changed: a graph or one of our errors."""
    rng = random.Random(os.environ.get("TILEWRIGHT_SEED", "0"))
    originals = seeds()
    for data in originals:
        import_onnx(data)
    refusals = 0
    for _ in range(MUTANTS):
        data = mutant(rng.choice(originals), rng)
        try:
            import_onnx(data)
        except Error as error:
            assert str(error)
            refusals += 1
    assert refusals > MUTANTS // 2


def mutant(data: bytes, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.15:
        return data[: rng.randrange(len(data))]
    if kind < 0.4:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 2, 4, 16))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    m = onnx.ModelProto()
    m.ParseFromString(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        change(m, rng)
    return m.SerializeToString()


def change(m: onnx.ModelProto, rng: random.Random) -> None:
    graph = m.graph
    n = rng.choice(graph.node)
    names = [name for other in graph.node for name in (*other.input, *other.output)]
    match rng.randrange(9):
        case 0 if n.attribute:
            a = rng.choice(n.attribute)
            a.type, a.i, a.f = (
                rng.choice((1, 2, 3, 4, 5, 7)),
                rng.choice(NUMBERS),
                rng.choice((0.0, float("nan"), 1e30)),
            )
        case 1 if n.attribute and n.attribute[0].ints:
            n.attribute[0].ints[0] = rng.choice(NUMBERS)
        case 2 if n.input:
            n.input[rng.randrange(len(n.input))] = rng.choice([*names, "", "absent"])
        case 3:
            tensor = rng.choice(graph.input).type.tensor_type
            tensor.shape.dim[rng.randrange(len(tensor.shape.dim))].dim_value = rng.choice(NUMBERS)
        case 4:
            rng.choice(graph.input).type.tensor_type.elem_type = rng.randrange(30)
        case 5:
            t = rng.choice(graph.initializer)
            t.data_type = rng.randrange(30)
        case 6:
            t = rng.choice([t for t in graph.initializer if t.data_type == TensorProto.INT64] or graph.initializer)
            values = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
            t.CopyFrom(helper.make_tensor(t.name, TensorProto.INT64, [len(values)], values))
        case 7:
            n.op_type = rng.choice(
                (
                    "Reshape",
                    "Conv",
                    "MatMul",
                    "LSTM",
                    "Pad",
                    "Slice",
                    "Resize",
                    "If",
                    "Concat",
                    "Tile",
                    "Gather",
                    "Expand",
                    "Range",
                    "Split",
                    "Squeeze",
                    "TopK",
                    "Einsum",
                    "Attention",
                )
            )
        case 8:
            n.output[0] = rng.choice(names)


@pytest.mark.parametrize("op", ["DFT", "STFT"])
def test_transforms_of_nothing(op: str) -> None:
    """NumPy refuses them, and ONNX Runtime 1.32 divides by their length."""
    inputs = {"DFT": ["x", "n"], "STFT": ["x", "step", "", "n"]}[op]
    numbers = {"n": np.array(0), "step": np.array(1)}
    refused(model([node(op, inputs, ["y"])], [info("x", [1, 4, 1])], ["y"], numbers), "no elements", kind=ShapeError)
