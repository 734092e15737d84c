"""Loops and branches of ONNX models that data decides: compiled, against ONNX's reference implementation."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx import import_onnx
from tilewright.ops import parse_graph
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import CallError, UnsupportedError

F, I64, BOOL = np.float32, TensorProto.INT64, TensorProto.BOOL
rng = np.random.default_rng(17)
YES = {"yes": np.array(True)}
"""A condition to start with: the reference takes none for false."""


def body(nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[str], **weights: Any) -> Any:
    initializers = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()]
    empty = [helper.make_empty_tensor_value_info(name) for name in outputs]
    return helper.make_graph(list(nodes), "body", list(inputs), empty, initializers)


def compare(m: onnx.ModelProto, *calls: dict[str, Any], threads: tuple[int, ...] = (1,)) -> tw.Model:
    """Compile for these threads, and compare all calls with the reference, twice each; the graph is interpreted,
    printed and parsed as well. Gives the last model."""
    reference = ReferenceEvaluator(m)
    imported = import_onnx(m)
    assert parse_graph(str(imported.graph)) == imported.graph
    for n in threads:
        compiled = tw.compile(m, threads=n)
        for inputs in calls:
            want = [np.asarray(a) for a in reference.run(None, inputs)]
            for _ in range(2):
                got = compiled.run(inputs)
                for name, a in zip([o.name for o in m.graph.output], want, strict=True):
                    assert got[name].dtype == a.dtype and got[name].shape == a.shape, name
                    np.testing.assert_allclose(got[name], a, rtol=1e-5, atol=1e-6)
            arrays = {k: np.asarray(v) for k, v in inputs.items()}
            interpreted = run_graph(imported.graph, arrays, imported.weights)
            for name, a in zip([o.name for o in m.graph.output], want, strict=True):
                np.testing.assert_allclose(interpreted[name], a, rtol=1e-5, atol=1e-6)
    return compiled


def numbers(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(F)


def rnn(hidden: int = 24, function: str = "Tanh", **attributes: Any) -> onnx.ModelProto:
    """h = function(x w + h u + b), each h collected. Only pointwise functions make it a recurrent cell."""
    step = body(
        [
            node("MatMul", ["x", "w"], ["xw"]),
            node("MatMul", ["h", "u"], ["hu"]),
            node("Add", ["xw", "hu"], ["s"]),
            node("Add", ["s", "b"], ["t"]),
            node(function, ["t"], ["next"]),
            node("Identity", ["next"], ["seen"]),
        ],
        [info("h", ["n", hidden]), info("x", ["n", 8])],
        ["next", "seen"],
    )
    scan = helper.make_node("Scan", ["h0", "xs"], ["h", "hs"], num_scan_inputs=1, body=step, **attributes)
    weights = {"w": numbers(8, hidden) / 3, "u": numbers(hidden, hidden) / 5, "b": numbers(hidden)}
    transposed = attributes.get("scan_input_axes") == [1]
    shape = ["n", "length", 8] if transposed else ["length", "n", 8]
    return model([scan], [info("h0", ["n", hidden]), info("xs", shape)], ["h", "hs"], weights)


def test_a_recurrence_of_unknown_length() -> None:
    calls = [{"h0": numbers(n, 24), "xs": numbers(length, n, 8)} for length, n in ((1, 3), (7, 1), (12, 3))]
    cell = compare(rnn(), *calls, threads=(2, 1))
    assert "lowered.recurrence(" in cell.show("graph") and "loop(" not in cell.show("graph")


def test_a_loop_of_unknown_length_runs_its_kernels_in_each_iteration() -> None:
    calls = [{"h0": numbers(n, 24), "xs": numbers(length, n, 8)} for length, n in ((1, 3), (7, 1), (12, 3))]
    compiled = compare(rnn(function="Softmax"), *calls, threads=(2, 1))
    assert compiled.profile(*calls[0].values(), repeat=2).kernels
    kernels, reloaded = (len(compiled.timeline(*c.values(), threads=1).of("kernel")) for c in (calls[0], calls[2]))
    assert reloaded > kernels, "a kernel of a loop is traced in each iteration"


@pytest.mark.parametrize("length", [1, 6])
def test_a_recurrence_along_other_axes_and_backward(length: int) -> None:
    """Recurrences that the reference implementation lacks."""
    transposed = {"scan_input_axes": [1], "scan_output_axes": [-1]}
    back = {"scan_input_directions": [1], "scan_output_directions": [1]}
    m = rnn(**transposed, **back)
    w, u, b = map(onnx.numpy_helper.to_array, m.graph.initializer)
    h, xs = numbers(3, 24), numbers(3, length, 8)
    got, collected = tw.compile(m)(h, xs)
    seen = []
    for k in reversed(range(length)):
        h = np.tanh(xs[:, k] @ w + h @ u + b)
        seen.append(h)
    np.testing.assert_allclose(got, h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(collected, np.stack(seen[::-1], axis=-1), rtol=1e-5, atol=1e-6)


def test_weights_of_a_body_are_packed_once() -> None:
    """Work that depends on weights alone is done by `prepare`, also where a loop captures it."""
    m = rnn(64)
    compiled = compare(m, {"h0": numbers(16, 64), "xs": numbers(5, 16, 8)})
    assert not [s.label for s in compiled.manifest.run_steps if "pack_matmul" in s.label]
    assert any("pack_matmul" in s.label for s in compiled.manifest.prepare_steps)
    new = {name: 2 * numbers(*p.shape) / 5 for name, p in ((p.name, p) for p in compiled.params)}
    compiled.update(new)
    for tensor in m.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(new[tensor.name], tensor.name))
    x = numbers(16, 64), numbers(5, 16, 8)
    want = ReferenceEvaluator(m).run(None, dict(zip(("h0", "xs"), x, strict=True)))
    np.testing.assert_allclose(compiled(*x)[0], want[0], rtol=1e-5, atol=1e-5)


def counted(nodes: Sequence[onnx.NodeProto], carried: Sequence[Any], outputs: Sequence[str], **weights: Any) -> Any:
    """A Loop's body: its number `i`, its condition `go`, what is carried."""
    return body(nodes, [info("i", [], I64), info("go", [], BOOL), *carried], outputs, **weights)


def test_a_condition_and_a_count_end_a_loop() -> None:
    doubled = counted(
        [
            node("Add", ["x", "x"], ["y"]),
            node("ReduceSum", ["y"], ["s"], keepdims=0),
            node("Less", ["s", "limit"], ["on"]),
            node("Add", ["k", "one"], ["k1"]),
        ],
        [info("x", [2]), info("k", [], I64)],
        ["on", "y", "k1"],
        one=np.int64(1),
    )
    loop = helper.make_node("Loop", ["most", "enter", "x0", "zero"], ["y", "k"], body=doubled)
    inputs = [info("most", [], I64), info("enter", [], BOOL), info("x0", [2]), info("limit", [])]
    m = model([loop], inputs, ["y", "k"], {"zero": np.int64(0)})
    calls = [
        {"most": np.array(most), "enter": np.array(enter), "x0": np.ones(2, F), "limit": np.array(limit, F)}
        for most, enter, limit in ((100, True, 30), (3, True, 30), (0, True, 30), (9, False, 30), (-4, True, 1))
    ]
    compare(m, *calls, threads=(1, 2))
    without = model(
        [helper.make_node("Loop", ["", "enter", "x0", "zero"], ["y", "k"], body=doubled)],
        inputs[1:],
        ["y", "k"],
        {"zero": np.int64(0)},
    )
    compiled = compare(without, {"enter": np.array(True), "x0": np.ones(2, F), "limit": np.array(1e9, F)})
    endless = np.array(True), np.zeros(2, F), np.array(np.inf, F)
    compiled.max_iterations = 500
    with pytest.raises(CallError, match="more than 500 iterations"):
        compiled(*endless)
    with pytest.raises(CallError, match="more than 500 iterations"):
        compiled.profile(*endless, repeat=1)
    with pytest.raises(CallError, match="more than 500 iterations"):
        compiled.timeline(*endless)
    with pytest.raises(ValueError, match="max_iterations"):
        compiled.ffi_function()(*endless, np.zeros(2, F), np.zeros((), np.int64))
    np.testing.assert_array_equal(compiled(np.array(True), np.ones(2, F), np.array(9, F))[1], 3)


def test_a_check_ends_a_foreign_call() -> None:
    m = model([node("Dropout", ["x", "ratio"], ["y"])], [info("x", [2]), info("ratio", [])], ["y"])
    compiled, x, y = tw.compile(m), np.ones(2, F), np.zeros(2, F)
    compiled.ffi_function()(x, np.array(0.5, F), y)
    np.testing.assert_array_equal(y, x)
    with pytest.raises(ValueError, match="make no sense"):
        compiled.ffi_function()(x, np.array(1.5, F), y)
    with pytest.raises(CallError, match="make no sense"):
        compiled.timeline(x, np.array(1.5, F))


def test_a_count_that_is_known_but_huge_is_no_end() -> None:
    twice = counted([node("Identity", ["go"], ["on"]), node("Add", ["x", "x"], ["y"])], [info("x", [2])], ["on", "y"])
    loop = helper.make_node("Loop", ["count", "yes", "x0"], ["y"], body=twice)
    m = model([loop], [info("x0", [2])], ["y"], {"count": np.int64(1 << 61), **YES})
    compiled = tw.compile(m)
    compiled.max_iterations = 100
    with pytest.raises(CallError, match="more than 100 iterations"):
        compiled(np.ones(2, F))


@pytest.fixture(scope="module")
def unending() -> onnx.ModelProto:
    """A loop of 2^63 - 1 iterations."""
    twice = counted([node("Identity", ["go"], ["on"]), node("Add", ["x", "x"], ["y"])], [info("x", [2])], ["on", "y"])
    loop = helper.make_node("Loop", ["count", "yes", "x0"], ["y"], body=twice)
    return model([loop], [info("x0", [2])], ["y"], {"count": np.int64((1 << 63) - 1), **YES})


@pytest.mark.parametrize("threads", [1, 2])
def test_a_time_limit_ends_a_loop(unending: onnx.ModelProto, threads: int) -> None:
    compiled = tw.compile(unending, threads=threads)
    x = np.ones(2, F)
    compiled.max_iterations, compiled.time_limit = (1 << 62) - 1, 0.05
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(CallError, match=r"loops of the model took longer than 0.05 s\nhint: set time_limit"):
            compiled(x)
        assert 0.05 <= time.monotonic() - began < 20
    with pytest.raises(CallError, match="took longer than"):
        compiled.run({"x0": x})
    with pytest.raises(ValueError, match="time_limit"):
        compiled.ffi_function()(x, np.zeros(2, F))
    compiled.max_iterations, compiled.time_limit = 100, None
    with pytest.raises(CallError, match="more than 100 iterations"):
        compiled(x)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_handler_of_a_signal_ends_a_loop(unending: onnx.ModelProto, threads: int) -> None:
    """A handler that raises ends a loop, as Ctrl-C does; handlers that raise nothing let it go on."""
    seen = []

    def handle(number: int, _: object) -> None:
        seen.append(number)
        if len(seen) == 3:
            raise TimeoutError("the third signal")

    compiled = tw.compile(unending, threads=threads)
    compiled.max_iterations, compiled.time_limit = (1 << 62) - 1, 60
    before = signal.signal(signal.SIGALRM, handle)
    try:
        for out in (None, np.empty(2, F)):
            seen.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.1)
            with pytest.raises(TimeoutError, match="the third signal"):
                compiled(np.ones(2, F), out=out)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert len(seen) == 3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    compiled.max_iterations = 10
    with pytest.raises(CallError, match="more than 10 iterations"):
        compiled(np.ones(2, F))


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "1", True])
def test_what_is_no_time_limit(unending: onnx.ModelProto, seconds: Any) -> None:
    compiled = tw.compile(unending)
    with pytest.raises(CallError, match="no time limit"):
        compiled.time_limit = seconds
    assert compiled.time_limit is None


def test_values_that_change_places() -> None:
    """The carried values are those of the iteration before in another order: none may be overwritten before it is
    read."""
    turn = counted(
        [
            node("Identity", ["go"], ["on"]),
            node("Identity", ["b"], ["a1"]),
            node("Identity", ["a"], ["b1"]),
            node("Add", ["c", "b"], ["c1"]),
            node("Relu", ["c1"], ["d1"]),
            node("Sub", ["a", "d"], ["seen"]),
        ],
        [info(x, [5]) for x in "abcd"],
        ["on", "a1", "b1", "c1", "d1", "seen"],
    )
    loop = helper.make_node("Loop", ["count", "yes", *"abcd"], [*"wxyz", "all"], body=turn)
    shape = node("Shape", ["long"], ["count1"])
    count = node("Squeeze", ["count1"], ["count"])
    m = model([shape, count, loop], [info("long", ["n"]), *(info(x, [5]) for x in "abcd")], [*"wxyz", "all"], YES)
    values = dict(zip("abcd", numbers(4, 5), strict=True))
    compare(m, *({"long": np.zeros(n, F), **values} for n in (1, 2, 3, 200)))


def conditional() -> onnx.ModelProto:
    then = body([node("MatMul", ["x", "w"], ["p"]), node("Relu", ["p"], ["r"])], [], ["r", "x"])
    orelse = body([node("Neg", ["z"], ["q"])], [], ["q", "k"], k=np.full((1,), 2, F))
    del then.output[1:], orelse.output[1:]
    return model(
        [
            node("Add", ["x", "x"], ["z"]),
            helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=orelse),
            node("Add", ["y", "z"], ["out"]),
        ],
        [info("p", [1], BOOL), info("x", ["n", 16])],
        ["out", "y"],
        {"w": numbers(16, 16)},
    )


def test_a_branch_that_data_decides() -> None:
    calls = [{"p": np.array([p]), "x": numbers(n, 16)} for p in (True, False) for n in (1, 6)]
    compare(conditional(), *calls)


def test_a_branch_may_give_what_it_is_passed() -> None:
    then = body([node("Identity", ["x"], ["t"])], [], ["t", "t"])
    del then.output[1:]
    orelse = body([node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.arange(3, dtype=F)))], [], ["c"])
    nodes = [helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=orelse)]
    m = model(nodes, [info("p", [], BOOL), info("x", [3])], ["y"])
    compare(m, *({"p": np.array(p), "x": numbers(3)} for p in (True, False)))


def test_regions_inside_regions() -> None:
    """A branch and a scan inside a loop whose count is data."""
    inner = body(
        [node("Mul", ["s", "row"], ["s1"]), node("Add", ["s1", "bias"], ["s2"])],
        [info("s", [4]), info("row", [4])],
        ["s2"],
    )
    then = body([node("Neg", ["r"], ["n1"])], [], ["n1"])
    orelse = body([node("Mul", ["r", "half"], ["h1"])], [], ["h1"], half=np.array(0.5, F))
    step = counted(
        [
            node("Identity", ["go"], ["on"]),
            helper.make_node("Scan", ["x", "rows"], ["r"], num_scan_inputs=1, body=inner),
            node("ReduceMax", ["r"], ["top"], keepdims=0),
            node("Greater", ["top", "one"], ["big"]),
            helper.make_node("If", ["big"], ["next"], then_branch=then, else_branch=orelse),
        ],
        [info("x", [4])],
        ["on", "next"],
        one=np.array(1, F),
    )
    loop = helper.make_node("Loop", ["count", "yes", "x0"], ["y"], body=step)
    inputs = [info("count", [1], I64), info("x0", [4]), info("rows", ["m", 4])]
    m = model([loop], inputs, ["y"], {"bias": numbers(4), **YES})
    rows = numbers(3, 4)
    compare(m, *({"count": np.array([c]), "x0": numbers(4), "rows": rows} for c in (0, 1, 6)), threads=(1, 2))


def test_the_number_of_an_iteration_is_data() -> None:
    step = counted(
        [
            node("Identity", ["go"], ["on"]),
            node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            node("Gather", ["table", "i"], ["row"], axis=0),
            node("Mul", ["row", "f"], ["scaled"]),
            node("Add", ["x", "scaled"], ["next"]),
        ],
        [info("x", [3])],
        ["on", "next", "scaled"],
    )
    loop = helper.make_node("Loop", ["count", "yes", "x0"], ["y", "all"], body=step)
    m = model([loop], [info("x0", [3]), info("table", [200, 3])], ["y", "all"], {"count": np.int64(200), **YES})
    compare(m, {"x0": numbers(3), "table": numbers(200, 3)})


def test_temporaries_enclosing_a_loop_live_through_it() -> None:
    """Values from before are read in every iteration and after: nothing inside may take their memory."""
    step = counted(
        [
            node("Identity", ["go"], ["on"]),
            node("Exp", ["before"], ["e"]),
            node("Softmax", ["e"], ["s"]),
            node("MatMul", ["x", "w"], ["p"]),
            node("Softmax", ["p"], ["q"]),
            node("Add", ["q", "s"], ["next"]),
        ],
        [info("x", [6, 6])],
        ["on", "next"],
    )
    nodes = [
        node("Softmax", ["x0"], ["before"]),
        node("Softmax", ["x1"], ["start"]),
        helper.make_node("Loop", ["count", "yes", "start"], ["y"], body=step),
        node("Softmax", ["y"], ["z"]),
        node("Sub", ["z", "before"], ["out"]),
    ]
    inputs = [info("count", [], I64), info("x0", [6, 6]), info("x1", [6, 6])]
    m = model(nodes, inputs, ["out"], {"w": numbers(6, 6), **YES})
    x = {"x0": numbers(6, 6), "x1": numbers(6, 6)}
    compare(m, *({"count": np.array(c), **x} for c in (0, 1, 4)))


def test_what_is_not_supported_says_why() -> None:
    grows = counted(
        [node("Identity", ["go"], ["on"]), node("Concat", ["x", "x"], ["y"], axis=0)], [info("x", ["k"])], ["on", "y"]
    )
    loop = helper.make_node("Loop", ["count", "yes", "x0"], ["y"], body=grows)
    m = model([loop], [info("count", [], I64), info("x0", [2])], ["y"], YES)
    with pytest.raises(UnsupportedError, match="changes its type"):
        tw.compile(m, fallback="never")
    then, orelse = body([node("Neg", ["x"], ["a"])], [], ["a"]), body([node("ReduceSum", ["x"], ["b"])], [], ["b"])
    nodes = [helper.make_node("If", ["p"], ["y"], then_branch=then, else_branch=orelse)]
    m = model(nodes, [info("p", [], BOOL), info("x", [3])], ["y"])
    with pytest.raises(UnsupportedError, match="branches give other types"):
        tw.compile(m, fallback="never")


def test_a_program_with_regions_is_retained_and_saved(tmp_path: Any) -> None:
    m = rnn(function="Softmax")
    x = numbers(2, 24), numbers(5, 2, 8)
    compiled = tw.compile(m)
    compiled.save(tmp_path / "rnn.tw")
    loaded = tw.load(tmp_path / "rnn.tw", threads=2)
    for a, b in zip(compiled(*x), loaded(*x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert "loop(" in loaded.show("graph")
