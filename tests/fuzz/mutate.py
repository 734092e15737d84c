"""Damage to ONNX models: bytes changed blindly, and fields changed with malice. A mutant is a function of its seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, helper

from tilewright.frontend.onnx.registry import RULES
from tilewright.frontend.onnx.rules import usual  # noqa: F401  fills RULES

NUMBERS = (0, 1, -1, 2, 3, 7, 63, 64, 127, 255, 1 << 15, 1 << 31, 1 << 40, 1 << 62, -(1 << 63), (1 << 63) - 1)
FLOATS = (0.0, -1.0, 0.5, 1e-30, 1e30, float("nan"), float("inf"), -float("inf"))
LOCATIONS = ("/etc/passwd", "../x", "a/../../x", "", ".", "absent", "\\\\host\\x", "a\0b", "x" * 5000, "/dev/zero")
STRINGS = (
    b"",
    b"\xff\xfe",
    b"reflect",
    b"ij,jk->ik",
    b"...->",
    b"SAME_UPPER",
    b"cubic",
    b"reverse",
    b"add",
    b"x" * 9999,
)
OPERATORS = tuple(sorted({*RULES, "If", "Loop", "Scan", "Unique", "Nonsense", "Attention", ""}))


def mutant(sources: Mapping[str, bytes], seed: int) -> bytes:
    """The mutant of this seed: of one of the models, damaged once to four times."""
    rng = random.Random(seed)
    names = sorted(sources)
    data = sources[rng.choice(names)]
    if rng.random() < 0.2:
        return _damage_bytes(data, sources[rng.choice(names)], rng)
    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3))):
        other = onnx.ModelProto()
        other.ParseFromString(sources[rng.choice(names)])
        change = rng.choice(CHANGES)
        change(model, other, rng)
    data = model.SerializeToString()
    return _damage_bytes(data, data, rng) if rng.random() < 0.05 else data


# --- bytes ----------------------------------------------------------------------------------------------------------


def _damage_bytes(data: bytes, other: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    changed = bytearray(data)
    match rng.randrange(7):
        case 0:
            return data[:at]
        case 1:
            for _ in range(rng.choice((1, 1, 2, 8))):
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            for _ in range(rng.choice((1, 2, 4, 16))):
                changed[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        case 3:  # a piece is lost
            del changed[at : at + rng.choice((1, 2, 8, 40))]
        case 4:  # a piece stands twice
            changed[at:at] = data[at : at + rng.choice((1, 8, 40, 200))]
        case 5:  # a piece of another file
            start = rng.randrange(len(other))
            changed[at : at + rng.choice((0, 8, 40))] = other[start : start + rng.choice((8, 40, 200))]
        case _:  # a long varint, such as a length of many gigabytes
            changed[at : at + rng.choice((0, 1, 5))] = b"\xff" * rng.randrange(1, 10) + b"\x7f"
    return bytes(changed)


# --- fields ---------------------------------------------------------------------------------------------------------


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    """A node of the graph, of a function or of an inner graph."""
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    nodes += [inner for n in nodes for a in n.attribute if a.HasField("g") for inner in a.g.node]
    return rng.choice(nodes) if nodes else model.graph.node.add()


def _names(model: onnx.ModelProto) -> list[str]:
    results = [name for n in model.graph.node for name in (*n.input, *n.output)]
    results += [v.name for v in (*model.graph.input, *model.graph.output)] + [t.name for t in model.graph.initializer]
    return [*results, "", "absent", "\N{SNOWMAN} name"]


def _mild(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    """Changes that often leave a valid model, so that what follows the importer is reached."""
    n = _node(model, rng)
    match rng.randrange(6):
        case 0:
            family = next((f for f in FAMILIES if n.op_type in f), UNARY)
            n.op_type = rng.choice(family)
        case 1 if n.input:
            types = {v.name: v.type for v in model.graph.input}
            n.input[rng.randrange(len(n.input))] = rng.choice([*types, n.input[0]])
        case 2 if n.attribute:
            a = rng.choice(n.attribute)
            a.i, a.f = rng.randrange(-2, 4), rng.choice((0.0, 0.5, 2.0))
            if a.ints:
                a.ints[rng.randrange(len(a.ints))] = rng.randrange(-1, 4)
        case 3 if model.graph.input:
            dims = rng.choice(model.graph.input).type.tensor_type.shape.dim
            if dims:
                dims[rng.randrange(len(dims))].dim_value = rng.randrange(6)
        case 4 if model.graph.input:
            dims = rng.choice(model.graph.input).type.tensor_type.shape.dim
            if dims:
                dims[rng.randrange(len(dims))].dim_param = rng.choice("nmk")
        case _:
            created = [name for m in model.graph.node for name in m.output if name]
            if created:
                model.graph.output.add().name = name = rng.choice(created)
                if rng.random() < 0.5:
                    model.graph.node.add(op_type=rng.choice(UNARY), input=[name], output=["new"])
                    model.graph.output[-1].name = "new"


def _attribute(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    n = _node(model, rng)
    donors = [*n.attribute, *_node(other, rng).attribute]
    if not donors:
        return
    a = rng.choice(donors)
    match rng.randrange(7):
        case 0:
            a.i, a.f, a.s = rng.choice(NUMBERS), rng.choice(FLOATS), rng.choice(STRINGS)
        case 1:
            a.ints[:] = [rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, len(a.ints), len(a.ints) + 1, 40)))]
        case 2 if a.ints:
            a.ints[rng.randrange(len(a.ints))] = rng.choice(NUMBERS)
        case 3:
            a.type = rng.choice([t for t in AttributeProto.AttributeType.values() if t])
        case 4:
            a.name = rng.choice(
                ("axis", "axes", "perm", "pads", "strides", "dilations", "group", "value", "to", "mode")
            )
        case 5:
            n.attribute.remove(a) if a in n.attribute else n.attribute.append(a)
        case _:
            n.attribute.append(a)


def _operator(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    n = _node(model, rng)
    n.op_type = rng.choice(OPERATORS)
    if rng.random() < 0.3:
        del n.attribute[:]
    if rng.random() < 0.05:
        n.domain = rng.choice(("", "ai.onnx", "com.microsoft", "ai.onnx.ml", "f"))


def _wiring(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    n = _node(model, rng)
    names = _names(model)
    match rng.randrange(7):
        case 0 | 1 if n.input:
            n.input[rng.randrange(len(n.input))] = rng.choice(names)
        case 2:
            n.input.append(rng.choice(names))
        case 3 if n.input:
            del n.input[rng.randrange(len(n.input))]
        case 4 if n.output:
            n.output[rng.randrange(len(n.output))] = rng.choice(names)
        case 5:
            n.output.append(rng.choice([*names, "more"]))
        case _ if n.input and n.output:
            n.input[0] = n.output[0]  # a cycle


def _order(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    if not nodes:
        return
    match rng.randrange(5):
        case 0:
            rng.shuffle(nodes)
        case 1:
            nodes.pop(rng.randrange(len(nodes)))
        case 2:
            nodes.append(rng.choice(nodes))
        case 3:
            nodes.insert(rng.randrange(len(nodes)), _node(other, rng))
        case _:
            nodes.reverse()
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _initializer(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    tensors = list(model.graph.initializer)
    if not tensors:
        return
    t = rng.choice(tensors)
    match rng.randrange(10):
        case 0 if t.dims:
            t.dims[rng.randrange(len(t.dims))] = rng.choice(NUMBERS)
        case 1:
            t.dims.append(rng.choice((1, 1, 2, 0, -1, 1 << 50)))
        case 2 if t.dims:
            t.dims.pop()
        case 3:
            t.data_type = rng.randrange(30)
        case 4:
            t.raw_data = t.raw_data[: rng.randrange(len(t.raw_data) + 1)]
        case 5:
            t.name = rng.choice(_names(model))
        case 6:
            model.graph.initializer.remove(t)
        case 7:
            retained = t.name
            t.CopyFrom(rng.choice(other.graph.initializer) if other.graph.initializer else t)
            t.name = retained
        case 8:  # the numbers of shapes, axes, paddings
            count = rng.choice((0, 1, 2, 3, 4, len(t.raw_data) // 8))
            code = rng.choice((TensorProto.INT64, TensorProto.INT64, TensorProto.INT32))
            t.CopyFrom(helper.make_tensor(t.name, code, [count], [_number(rng, code) for _ in range(count)]))
        case _:
            t.raw_data = bytes(rng.randrange(256) for _ in t.raw_data[:4096])


def _number(rng: random.Random, code: int) -> int:
    value = rng.choice(NUMBERS) if rng.random() < 0.6 else rng.randrange(-3, 6)
    return value if code == TensorProto.INT64 else max(-(1 << 31), min((1 << 31) - 1, value))


def _interface(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not values:
        return
    v = rng.choice(values)
    tensor = v.type.tensor_type
    match rng.randrange(10):
        case 0 | 1 if tensor.shape.dim:
            tensor.shape.dim[rng.randrange(len(tensor.shape.dim))].dim_value = rng.choice(NUMBERS)
        case 2 if tensor.shape.dim:
            tensor.shape.dim[rng.randrange(len(tensor.shape.dim))].dim_param = rng.choice(("n", "m", "", "a b", "tid"))
        case 3:
            tensor.elem_type = rng.randrange(30)
        case 4:
            tensor.shape.dim.add().dim_value = rng.choice((1, 2, 0, -1, 1 << 33))
        case 5 if tensor.shape.dim:
            tensor.shape.dim.pop()
        case 6:
            tensor.ClearField("shape")
        case 7:
            v.name = rng.choice(_names(model))
        case 8:
            if rng.random() < 0.5:
                model.graph.output.add().name = rng.choice(_names(model))
            else:
                model.graph.input.append(v)
        case _:
            v.type.sequence_type.elem_type.tensor_type.elem_type = 1


def _versions(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    match rng.randrange(4):
        case 0 if model.opset_import:
            model.opset_import[0].version = rng.choice((*range(6, 27), *NUMBERS))
        case 1:
            model.ir_version = rng.choice(NUMBERS)
        case 2 if model.opset_import:
            model.opset_import.append(model.opset_import[0])
            model.opset_import[-1].version += rng.choice((0, 1))
        case _:
            del model.opset_import[:]


def _external(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    if not model.graph.initializer:
        return
    t = rng.choice(model.graph.initializer)
    t.data_location = TensorProto.EXTERNAL
    entries = {
        "location": rng.choice(LOCATIONS),
        "offset": str(rng.choice(NUMBERS)),
        "length": str(rng.choice(NUMBERS)),
    }
    for key, value in entries.items():
        if key == "location" or rng.random() < 0.5:
            entry = t.external_data.add()
            entry.key, entry.value = key, value
    if rng.random() < 0.5:
        t.ClearField("raw_data")


def _depth(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    """Graphs in graphs, functions that call themselves, long chains."""
    match rng.randrange(3):
        case 0:
            inner = helper.make_graph([], "leaf", [], [])
            for _ in range(rng.choice((2, 20, 90))):
                n = helper.make_node("If", [rng.choice(_names(model))], ["z"], then_branch=inner, else_branch=inner)
                inner = helper.make_graph([n], "level", [], [helper.make_empty_tensor_value_info("z")])
                if len(inner.SerializeToString()) > 1 << 16:
                    break
            model.graph.node.extend(inner.node)
        case 1:
            call = helper.make_node("Self", ["x"], ["y"], domain="f")
            imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
            model.functions.append(helper.make_function("f", "Self", ["x"], ["y"], [call], imports))
            _node(model, rng).op_type = "Self"
            _node(model, rng).domain = "f"
            model.opset_import.add().domain = "f"
        case _:
            name = rng.choice(_names(model))
            op = rng.choice(("Relu", "Neg", "Identity", "Transpose", "Not"))
            for k in range(rng.choice((3, 30, 300))):
                model.graph.node.add(op_type=op, input=[name], output=[f"chain{k}"])
                name = f"chain{k}"
            model.graph.output.add().name = name


def _splice(model: onnx.ModelProto, other: onnx.ModelProto, rng: random.Random) -> None:
    """Two models in one file."""
    try:
        model.MergeFromString(other.SerializeToString())
    except DecodeError:
        return


UNARY = tuple("Relu Neg Abs Exp Log Sqrt Floor Sign Sigmoid Tanh Softmax Identity Flatten Shape Size IsNaN Not".split())
BINARY = tuple(
    "Add Sub Mul Div Pow Mod Max Min Equal Less And BitShift PRelu MatMul Gather Expand Reshape Tile".split()
)
POOLS = tuple("MaxPool AveragePool LpPool Conv ConvTranspose GlobalMaxPool".split())
SHAPES = tuple("Unsqueeze Squeeze Expand Tile Reshape ReduceSum ReduceMax Split Slice Pad Concat".split())
INDEXED = tuple("Gather GatherElements GatherND ScatterElements ScatterND Compress OneHot TopK".split())
FAMILIES = (UNARY, BINARY, POOLS, SHAPES, INDEXED)

Change = Callable[[onnx.ModelProto, onnx.ModelProto, random.Random], None]
CHANGES: tuple[Change, ...] = (
    *(_mild,) * 12,
    *(_attribute, _attribute, _attribute, _operator, _operator, _wiring, _wiring, _wiring),
    *(_order, _initializer, _initializer, _initializer, _interface, _interface, _interface),
    *(_versions, _external, _depth, _splice),
)
