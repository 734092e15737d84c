"""Calling a program: the builtin's straight way, and everything that goes the slow way."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest

from tests.runtime.programs import affine, affine_reference, copy16
from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.call import LAYOUT, MEASURED_CALLS
from tilewright.runtime.model import Model
from tilewright.runtime.native import native
from tilewright.runtime.runner import Runner
from tilewright.support.errors import CallError


@pytest.fixture(scope="module")
def copy() -> Model:
    return Model(copy16())


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(affine(lo=0, hi=5000))


def sixteen() -> np.ndarray:
    return np.arange(16, dtype=np.float32)


def test_builtin_is_used(copy: Model) -> None:
    assert type(copy.__call__).__name__ == "builtin_function_or_method"


def test_new_output(copy: Model) -> None:
    y = copy(sixteen())
    assert type(y) is np.ndarray
    assert y.dtype == np.float32
    assert (y == sixteen()).all()
    assert y.flags.owndata and y.flags.writeable and y.base is None


def test_references_balance(copy: Model) -> None:
    x, y, f32 = sixteen(), sixteen(), np.dtype(np.float32)
    before = [sys.getrefcount(o) for o in (x, y, None, f32)]
    for _ in range(1000):
        copy(x)
        copy(x, out=y)
        copy(x, out=(y,))
    after = [sys.getrefcount(o) for o in (x, y, None, f32)]
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))


def test_a_list_of_outputs_is_a_tuple_of_them(model: Model) -> None:
    """Lists go to the builtin, without the checks of an unusual call."""
    x = np.arange(4, dtype=np.float32)
    outputs = list(model.empty_outputs(x).values())
    want = model(x)
    with mock.patch.object(Runner, "_answer", side_effect=AssertionError("all checks")):
        model(x, out=tuple(outputs))
        for a in outputs:
            a[...] = 0
        assert model(x, out=outputs) is outputs
    for a, b in zip(outputs, want, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(CallError, match="wrong number of outputs"):
        model(x, out=outputs[:1])


def test_into_passed_output(copy: Model) -> None:
    y = np.zeros(16, np.float32)
    assert copy(sixteen(), out=y) is y
    assert (y == sixteen()).all()
    pair = (np.zeros(16, np.float32),)
    assert copy(sixteen(), out=pair) is pair
    assert (pair[0] == sixteen()).all()
    listed = [np.zeros(16, np.float32)]
    assert copy(sixteen(), out=listed) is listed
    assert (listed[0] == sixteen()).all()


def test_symbolic(model: Model) -> None:
    for n in (1, 2, 7, 100, 1000, 1, 0, 7):
        x = np.linspace(-1, 1, n, dtype=np.float32)
        y, c = model(x)
        assert y.shape == (n, 3)
        np.testing.assert_allclose(y, affine_reference(x, model.weights["w"]), rtol=1e-5)
        assert c.tolist() == [7.0]
        out = (np.zeros((n, 3), np.float32), np.zeros(1, np.float32))
        assert model(x, out=out) is out
        assert (out[0] == y).all()


def test_several_dimensions_stay_bounded() -> None:
    model = Model(affine())
    for n in [*range(700), *range(0, 700, 7)]:
        x = np.full(n, 0.5, np.float32)
        y, _ = model(x)
        np.testing.assert_allclose(y, affine_reference(x, model.weights["w"]), rtol=1e-5)
    assert model._engine.arena_bytes <= model.memory(n=model.manifest.symbols[0].hi).arena + 64


@pytest.mark.parametrize(
    ("args", "out", "message"),
    [
        ((), None, "wrong number of inputs: expected 1 (x: f32[16]), got 0"),
        ((sixteen(), sixteen()), None, "wrong number of inputs"),
        (([1.0] * 16,), None, "input 'x': not an array"),
        ((None,), None, "got NoneType"),
        ((sixteen().astype(np.float64),), None, "input 'x': wrong element type: expected f32[16], got f64[16]"),
        ((sixteen().astype(">f4"),), None, "wrong element type"),
        ((np.zeros(16, "M8[s]"),), None, "wrong element type"),
        ((np.zeros(16, object),), None, "wrong element type"),
        ((np.zeros((4, 4), np.float32),), None, "input 'x': wrong rank: expected f32[16], got f32[4, 4]"),
        ((np.zeros(15, np.float32),), None, "input 'x': wrong dimension 0: expected f32[16], got f32[15]"),
        ((sixteen(),), np.zeros(16), "output 'y': wrong element type"),
        ((sixteen(),), np.zeros(17, np.float32), "output 'y': wrong shape: expected f32[16], got f32[17]"),
        ((sixteen(),), 3, "output 'y': not an array"),
        ((sixteen(),), (), "wrong number of outputs"),
        ((sixteen(),), (sixteen(), sixteen()), "wrong number of outputs"),
    ],
)
def test_refused(copy: Model, args: tuple[object, ...], out: object, message: str) -> None:
    with pytest.raises(CallError) as caught:
        copy(*args, out=out)
    assert message in str(caught.value)


def test_unknown_keyword(copy: Model) -> None:
    with pytest.raises(CallError, match=r"input 'into': there is no such input: expected one of \['x'\]"):
        copy(sixteen(), into=sixteen())
    with pytest.raises(CallError, match="input 'more': there is no such input"):
        copy(sixteen(), out=None, more=1)
    with pytest.raises(CallError, match="input 'x': was given twice, by its place and by its name"):
        copy(sixteen(), x=sixteen())
    with pytest.raises(CallError, match=r"too many inputs: expected 1 \(x\), got 2"):
        copy(sixteen(), sixteen(), y=1)


def test_inputs_by_name(copy: Model) -> None:
    y = np.empty(16, np.float32)
    assert (copy(x=sixteen()) == sixteen()).all()
    assert copy(x=sixteen(), out=y) is y and (y == sixteen()).all()
    assert copy.versioned(x=sixteen())[1] == 0
    with copy.record_shapes():
        assert (copy(x=sixteen()) == sixteen()).all()
    with pytest.raises(CallError, match="wrong element type"):
        copy(x=sixteen().astype(np.float64))


def test_read_only_output(copy: Model) -> None:
    y = np.zeros(16, np.float32)
    y.flags.writeable = False
    with pytest.raises(CallError, match="output 'y': is read-only"):
        copy(sixteen(), out=y)


def test_read_only_input(copy: Model) -> None:
    x = sixteen()
    x.flags.writeable = False
    assert (copy(x) == x).all()


def test_not_contiguous(copy: Model) -> None:
    x = np.arange(32, dtype=np.float32)
    assert (copy(x[::2]) == x[::2]).all()
    assert (copy(x[15::-1]) == x[15::-1]).all()
    y = np.zeros(32, np.float32)
    copy(x[:16], out=y[::2])
    assert (y[::2] == x[:16]).all()
    assert (y[1::2] == 0).all()


def test_not_aligned(copy: Model) -> None:
    raw = np.zeros(65, np.uint8)
    x = raw[1:].view(np.float32)
    x[:] = sixteen()
    assert not x.flags.aligned
    assert (copy(x) == x).all()
    assert copy(sixteen() + 1, out=x) is x
    assert (x == sixteen() + 1).all()


def test_overlap(copy: Model, model: Model) -> None:
    buffer = np.arange(24, dtype=np.float32)
    copy(buffer[:16], out=buffer[8:])
    assert buffer.tolist() == [*range(8), *range(16)]
    x = sixteen()
    copy(x, out=x)
    assert (x == sixteen()).all()
    shared = np.zeros(12, np.float32)
    with pytest.raises(CallError, match="shares memory with output 'y'"):
        model(np.zeros(4, np.float32), out=(shared.reshape(4, 3), shared[:1]))


def test_subclasses_and_scalars(copy: Model, tmp_path: object) -> None:
    mapped = np.memmap(f"{tmp_path}/x", np.float32, "w+", shape=16)
    mapped[:] = sixteen()
    assert (copy(mapped) == sixteen()).all()
    with pytest.raises(CallError, match="wrong rank"):
        copy(np.float32(3))


def test_dimension_range() -> None:
    model = Model(affine(lo=4, hi=12, multiple=4))
    for n in (4, 8, 12):
        model(np.zeros(n, np.float32))
    for n in (0, 3, 6, 13, 16):
        with pytest.raises(CallError, match=r"n in 4\.\.12, a multiple of 4"):
            model(np.zeros(n, np.float32))


def test_by_name(model: Model) -> None:
    x = np.ones(5, np.float32)
    results = model.run({"x": x})
    assert list(results) == ["y", "c"]
    y = np.zeros((5, 3), np.float32)
    partly = model.run({"x": x}, out={"y": y})
    assert partly["y"] is y
    assert (y == results["y"]).all()
    assert partly["c"].tolist() == [7.0]
    for inputs, out, message in (
        ({}, None, "input 'x': is missing"),
        ({"x": x, "z": x}, None, "input 'z': there is no such input"),
        ({"x": x}, {"q": y}, "there is no output 'q'"),
        ([x], None, "a mapping"),
    ):
        with pytest.raises(CallError, match=message):
            model.run(inputs, out=out)


def test_a_lone_output_by_its_name(copy: Model) -> None:
    result = copy.run({"x": sixteen()})
    assert list(result) == ["y"]
    np.testing.assert_array_equal(result["y"], sixteen())


def test_sizes_are_counted_while_they_are_recorded() -> None:
    model = Model(affine())
    model(sixteen())
    with model.record_shapes() as seen:
        for n in (16, 3, 16):
            y, _ = model(sixteen()[:n])
            assert y.shape == (n, 3)
        model.run({"x": sixteen()})
    model(sixteen())
    assert seen == {"n": {16: 3, 3: 1}}
    assert type(model.__call__).__name__ == "builtin_function_or_method"


def test_a_row_without_its_batch_is_told_how_to_get_one(model: Model) -> None:
    with pytest.raises(CallError, match=r"wrong rank(.|\n)*add the batch: x\[None\]"):
        model(np.ones((), np.float32))
    with pytest.raises(CallError) as caught:
        model(np.ones((2, 2), np.float32))
    assert "wrong rank" in str(caught.value) and "add the batch" not in str(caught.value)


def _layout(model: Model, *dims: int) -> Callable[[int], int]:
    """The words of the layout for these dimensions, by their offsets in LAYOUT."""
    engine = model._engine
    at = engine._layout(dims)
    native().add(engine._layouts.address + at + LAYOUT.users, -1)
    return lambda field: engine._layouts[at + field]


def test_a_size_that_is_used_all_the_time_stays_planned() -> None:
    """A new size takes, among its possible places, the one that was used longest ago."""
    model = Model(affine())
    x = np.ones(3000, np.float32)
    model(x[:5])
    tag = _layout(model, 5)(LAYOUT.tag)
    for n in range(10, 2000):
        model(x[:n])
        model(x[:5])
    assert _layout(model, 5)(LAYOUT.tag) == tag
    assert _layout(model, 10)(LAYOUT.tag) > tag, "another one has had to go"


def test_the_shortest_of_the_first_calls_is_noted() -> None:
    """By which it is decided whether calls let go of the GIL."""
    model = Model(affine())
    start = time.perf_counter_ns()
    for calls in range(1, MEASURED_CALLS + 3):
        model(sixteen())
        noted = _layout(model, 16)
        assert noted(LAYOUT.measured) == min(calls, MEASURED_CALLS)
        assert 0 < noted(LAYOUT.least_ns) <= (time.perf_counter_ns() - start) // min(calls, MEASURED_CALLS)


def test_eight_threads_at_once() -> None:
    model = Model(affine())
    w = model.weights["w"]
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for k in range(150):
            x = rng.random(int(rng.choice([3, 500, 20000])), np.float32)
            y, c = model(x)
            if not np.allclose(y, affine_reference(x, w), rtol=1e-5) or c[0] != 7:
                failures.append(f"thread {seed}, call {k}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_gil_is_released_for_long_calls() -> None:
    model = Model(affine(hi=1 << 24))
    x = np.zeros(1 << 22, np.float32)
    out = (np.zeros((1 << 22, 3), np.float32), np.zeros(1, np.float32))
    model(x, out=out)
    ticks, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            ticks[0] += 1
            stop.wait(0.0005)

    counter = threading.Thread(target=count)
    counter.start()
    for _ in range(10):
        model(x, out=out)
    during = ticks[0]
    stop.set()
    counter.join()
    assert during > 5


def test_slow_path_alone_is_enough(copy: Model, model: Model) -> None:
    """The path that an interpreter with other object layouts would use."""
    assert (copy._slow_call(sixteen()) == sixteen()).all()
    x = np.ones(3, np.float32)
    y, c = model._slow_call(x)
    np.testing.assert_allclose(y, affine_reference(x, model.weights["w"]), rtol=1e-5)
    assert c.shape == (1,)


def test_model_is_freed() -> None:
    model = Model(copy16())
    model(sixteen())
    builtin = model.__call__
    seen = weakref.ref(model._engine)
    del model
    gc.collect()
    assert (builtin(sixteen()) == sixteen()).all()
    del builtin
    gc.collect()
    assert seen() is None


def test_interned_keyword_created_at_run_time(copy: Model) -> None:
    y = np.zeros(16, np.float32)
    copy(sixteen(), **{"".join(["o", "ut"]): y})
    assert (y == sixteen()).all()


def test_dlpack_objects(copy: Model) -> None:
    class Wrapped:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **kwargs: object) -> object:
            return self.array.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    assert (copy(Wrapped(sixteen())) == sixteen()).all()

    class Elsewhere(Wrapped):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(CallError, match="on the wrong device: expected cpu"):
        copy(Elsewhere(sixteen()))


@pytest.mark.parametrize("name", ["f16", "bf16", "f64", "i4", "u8", "i32", "i64", "u64", "bool"])
def test_builtin_reads_every_dtype(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "_slow_call", lambda *_, **__: pytest.fail("the slow path was taken"))
    dtype = BY_NAME[name].numpy
    code = copy16().texts["llvm"]().replace("16 x float", f"{16 * dtype.itemsize} x i8").replace("align 4", "align 1")
    model = Model(copy16(name, code))
    x = (np.arange(16) % 5).astype(dtype)
    y = model(x)
    assert y.dtype == dtype
    assert y.tobytes() == x.tobytes()
    assert model(x, out=np.empty_like(x)).tobytes() == x.tobytes()


def test_globals_are_sound() -> None:
    word = ctypes.c_int64.from_address(native().linked["tw_globals"])
    assert word.value == id(np.ndarray)
