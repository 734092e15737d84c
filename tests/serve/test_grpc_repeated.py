"""Messages that are read where they stand, against protocol buffers: what both understand is the same request."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

from tilewright.serve.errors import ServeError
from tilewright.serve.protocol.generated import inference_pb2
from tilewright.serve.protocol.grpc_repeated import Forms, Repeated, answer_bytes
from tilewright.serve.protocol.grpc_server import _inference, request_of
from tilewright.serve.requests import Answer, Request

pb: Any = inference_pb2
X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = np.arange(39, dtype=np.uint8).reshape(3, 13)


def message(**fields: Any) -> Any:
    """A request for a model with two inputs, with raw contents."""
    built = pb.ModelInferRequest(model_name="a-policy", **fields)
    for name, datatype, array in (("observation", "FP32", X), ("mask", "UINT8", Y)):
        built.inputs.add(name=name, datatype=datatype, shape=array.shape)
        built.raw_input_contents.append(array.tobytes())
    return built


def alike(one: Request, other: Request) -> bool:
    names = ("model", "version", "outputs", "id", "timeout", "priority")
    return all(getattr(one, n) == getattr(other, n) for n in names) and all(
        a == b and x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for (a, x), (b, y) in zip(one.inputs.items(), other.inputs.items(), strict=True)
    )


def test_a_form_is_learnt_and_gives_the_values_of_each_message() -> None:
    read = partial(_inference, Forms())
    first = message(model_version="2")
    first.outputs.add(name="action")
    first.parameters["timeout"].int64_param = 500_000
    assert not isinstance(read(first.SerializeToString()), Repeated)
    first.raw_input_contents[0] = (X + 1).tobytes()
    second = read(first.SerializeToString())
    assert isinstance(second, Repeated) and second.ByteSize() == first.ByteSize()
    request = second.read(None)
    assert alike(request, request_of(first, None, None)[0]) and request.timeout == 0.5
    assert (request.inputs["observation"] == X + 1).all() and request.inputs["observation"].flags.aligned
    assert second.read(0.25).timeout == 0.25 and second.read(-1.0).timeout == 0.0


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "id", "17"),
        lambda m: setattr(m.inputs[0], "datatype", "BYTES"),
        lambda m: m.inputs[0].parameters["shared_memory_region"].MergeFrom(pb.InferParameter(string_param="r")),
        lambda m: m.raw_input_contents.append(b""),
        lambda m: m.raw_input_contents.__setitem__(0, b"short"),
        lambda m: setattr(m.inputs[0], "name", "mask"),
        lambda m: setattr(m, "model_name", "x" * 5000),
    ],
)
def test_what_is_unusual_is_not_learnt(change: Any) -> None:
    read = partial(_inference, Forms())
    built = message()
    change(built)
    for _ in range(2):
        assert not isinstance(read(built.SerializeToString()), Repeated)


def test_mutations_are_read_as_protocol_buffers_read_them() -> None:
    """Fields out of order, bytes that are changed, cut or moved: a message is either not of a known form, or the same
    request to both readers."""
    source = random.Random(4)
    forms = Forms()
    read = partial(_inference, forms)
    whole = message().SerializeToString()
    contents = [b"\x3a" + bytes((len(c),)) + c for c in message().raw_input_contents]
    head = whole[: len(whole) - sum(map(len, contents))]
    assert head + b"".join(contents) == whole
    seeds = [
        whole,
        contents[0] + head + contents[1],
        b"".join(contents) + head,
        head + b"\x32\x00" + b"".join(contents),
    ]
    known = 0
    for _ in range(4000):
        data = bytearray(source.choice(seeds))
        for _ in range(source.randrange(3)):
            at = source.randrange(len(data))
            match source.randrange(4):
                case 0:
                    data[at] = source.choice((0, 1, 0x32, 0x3A, 0x80, source.randrange(256)))
                case 1:
                    data[at:at] = data[source.randrange(len(data)) :][: source.randrange(8)]
                case 2:
                    del data[at : at + source.randrange(8)]
                case _:
                    data[at:at] = source.choice((b"\x3a\x00", b"\x32\x00", b"\x0a\x01x"))
        got = read(bytes(data))
        if not isinstance(got, Repeated):
            continue
        known += 1
        assert alike(got.read(None), request_of(pb.ModelInferRequest.FromString(bytes(data)), None, None)[0])
    assert 500 < known < 4000


def test_no_more_forms_are_held_than_are_of_use() -> None:
    forms = Forms()
    for k in range(1000):
        _inference(forms, message(model_version=f"{k}" * 3).SerializeToString())
    assert 0 < len(forms._known) <= 256


@pytest.mark.parametrize("identity", ["", "ä" * 200])
def test_answers_are_messages(identity: str) -> None:
    outputs = {"action": X, "text": np.array([b"a", b""], object), "empty": np.zeros((0, 300), np.int64)}
    built = pb.ModelInferResponse.FromString(answer_bytes(Answer("m", "3", outputs, identity, 7)))
    assert (built.model_name, built.model_version, built.id) == ("m", "3", identity)
    assert built.parameters["weights_version"].int64_param == 7
    described = [(o.name, o.datatype, list(o.shape)) for o in built.outputs]
    assert described == [("action", "FP32", [3, 4]), ("text", "BYTES", [2]), ("empty", "INT64", [0, 300])]
    assert list(built.raw_output_contents) == [X.tobytes(), b"\x01\0\0\0a\0\0\0\0", b""]


def test_bytes_that_are_no_message() -> None:
    assert isinstance(_inference(Forms(), b"\xff\xff"), ServeError)


def test_the_form_of_a_small_message_is_learnt_too() -> None:
    read = partial(_inference, Forms())
    small = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\x01"])
    small.inputs.add(name="x", datatype="UINT8", shape=[1])
    read(small.SerializeToString())
    assert isinstance(read(small.SerializeToString()), Repeated)
