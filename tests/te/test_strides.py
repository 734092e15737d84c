"""Placeholders with strides and an offset: views are passed without a copy, and wrong ones are refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.c.c_run import compile_c, needs_compiler
from tests.schedule.guard import guarded
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.support.errors import CallError, CompileError, ExpressionError, ScheduleError

N, M = te.var("n"), te.var("m")
X = np.random.default_rng(0).standard_normal((12, 40)).astype(np.float32)
VIEWS: dict[str, Any] = {
    "dense": X,
    "columns": X[:, 3:20],
    "steps": X[1::2, 2:30:3],
    "transposed": X.T,
    "broadcast": np.broadcast_to(X[3, :9], (5, 9)),
    "one row": X[4:5, ::3],
    "one column": X[::2, 7:8],
    "one element": X[3:4, 5:6],
    "read only": np.frombuffer(X.tobytes(), np.float32).reshape(12, 40)[:, ::2],
    "far in the memory": X[2:, 2:][3:, 1::2],
}


def doubled(
    strides: Any, offset: Any = None, shape: Any = (N, M), dtype: str = "float32"
) -> tuple[te.Tensor, te.Tensor]:
    a = te.placeholder(shape, dtype, name="A", strides=strides, offset=offset)
    return a, te.compute(shape, lambda i, j: a[i, j] + a[i, j], name="B")


def free(lo: int = 0) -> list[Any]:
    return [te.var("s", lo=lo), te.var("t", lo=lo)]


def _vectors(s: Any, b: te.Tensor) -> None:
    _, inner = s[b].split(b.axis[1], factor=8)
    s[b].vectorize(inner)
    s[b].parallel(b.axis[0])


def _copied(s: Any, b: te.Tensor) -> None:
    s[b].cache_read(b.op.inputs[0], "global")  # type: ignore[union-attr]


SCHEDULES: dict[str, Callable[..., None]] = {"plain": lambda s, b: None, "vectors": _vectors, "copied": _copied}


def memory_of(f: Any, tensors: list[te.Tensor], arrays: list[Any]) -> list[Any]:
    """The memory that the loops take, as the interpreter and C do."""
    result, values = te.bind_views(tensors, arrays)
    return [*result, {v.name: int(str(value)) for v, value in values.items()}]


@pytest.mark.daily(5)
@pytest.mark.costly(3)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("offset", [None, "symbol"])
@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str, offset: str | None, schedule: str) -> None:
    """Native code and the interpreter read what the view shows."""
    a, b = doubled(free(), te.var("o", lo=0) if offset else None)
    s = te.create_schedule(b)
    SCHEDULES[schedule](s, b)
    f = tw.build(s, [a, b], threads=2)
    assert f.log.remarks == []
    operand = VIEWS[view]
    out, oracle = np.zeros(operand.shape, np.float32), np.zeros(operand.shape, np.float32)
    f(operand, out)
    np.testing.assert_array_equal(out, operand + operand)
    memory, _, symbols = memory_of(f, [a, b], [operand, oracle])
    interpret(f.func, [memory.copy(), oracle], symbols=symbols)
    np.testing.assert_array_equal(out, oracle)
    checked = tw.build(s, [a, b], bounds="check")
    checked(operand, oracle)
    np.testing.assert_array_equal(out, oracle)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "bool", "bfloat16"])
def test_negative_strides_and_types(dtype: str) -> None:
    kind = te.placeholder((1,), dtype).dtype.numpy
    y = np.random.default_rng(1).integers(0, 2, (5, 8)).astype(kind)
    for view, strides in ((y[::-1, ::2], (-8, 2)), (y[:, 7::-2], (8, -2)), (y[::-1, ::-1], (-8, -1))):
        a = te.placeholder(view.shape, dtype, name="A", strides=strides)
        b = te.compute(view.shape, lambda i, j, a=a: a[i, j], name="B")
        f = tw.build(te.create_schedule(b), [a, b])
        out = np.zeros(view.shape, kind)
        f(view, out)
        np.testing.assert_array_equal(out, view)
        with pytest.raises(CallError, match="wrong strides"):
            f(np.ascontiguousarray(view), out)


def test_nothing_after_the_last_element_is_read() -> None:
    a, b = doubled(free())
    s = te.create_schedule(b)
    _vectors(s, b)
    memory = guarded(X)
    view = memory[3:, 23:]
    out = np.zeros(view.shape, np.float32)
    tw.build(s, [a, b])(view, guarded(out))
    tw.build(s, [a, b])(view, out)
    np.testing.assert_array_equal(out, view + view)


def test_no_elements() -> None:
    n, m = te.var("n", lo=0), te.var("m", lo=0)
    a, b = doubled(free(), shape=(n, m))
    f = tw.build(te.create_schedule(b), [a, b])
    for shape in ((0, 3), (3, 0), (0, 0), (2, 3)):
        view = np.ones((4, 6), np.float32)[: shape[0], : 2 * shape[1] : 2]
        out = np.zeros(shape, np.float32)
        f(view, out)
        assert (out == 2).all()


def test_other_libraries_arrays() -> None:
    class Foreign:
        """An array that is known by DLPack alone."""

        def __init__(self, array: Any) -> None:
            self.array, self.shape = array, array.shape

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    a, b = doubled(free())
    out = np.zeros((6, 10), np.float32)
    tw.build(te.create_schedule(b), [a, b])(Foreign(X[::2, ::4]), out)
    np.testing.assert_array_equal(out, 2 * X[::2, ::4])


def test_several_with_common_strides_and_a_constant_offset() -> None:
    s = te.var("s", lo=1)
    a = te.placeholder((N, M), name="A", strides=(s, 1), offset=4)
    c = te.placeholder((M,), name="C", strides=(s,))
    b = te.compute((N, M), lambda i, j: a[i, j] + c[j], name="B")
    f = tw.build(te.create_schedule(b), [a, c, b])
    out = np.zeros((12, 6), np.float32)
    column = np.arange(400, dtype=np.float32)
    f(X[:, 4:10], column[:240:40], out)
    np.testing.assert_array_equal(out, X[:, 4:10] + column[:240:40])
    with pytest.raises(CallError, match="'A': its first element is not at offset 4 of its memory: got 2"):
        f(X[:, 2:8], column[:240:40], out)
    with pytest.raises(CallError, match=r"'C': wrong strides: expected \[40\] elements, got \[120\] bytes"):
        f(X[:, 4:10], column[:180:30], out)


@needs_compiler
def test_c_reads_the_same() -> None:
    a, b = doubled(free())
    f = tw.build(te.create_schedule(b), [a, b], name="view")
    library = compile_c(f.source("c"))
    view = VIEWS["steps"]
    out = np.zeros(view.shape, np.float32)
    memory, _, symbols = memory_of(f, [a, b], [view, out])
    assert np.shares_memory(memory, view)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (memory, out)]
    library.view(*pointers, *(ctypes.c_int64(symbols[v.name]) for v in f.func.symbols))
    np.testing.assert_array_equal(out, view + view)


def test_in_operators_and_moved_stages() -> None:
    a = te.placeholder((N, 7), name="A", strides=free())
    y = tw.operators.softmax(a, axis=1)
    view = X[:, 1:22:3]
    out = np.zeros(view.shape, np.float32)
    tw.build(te.create_schedule(y), [a, y])(view, out)
    np.testing.assert_allclose(out, tw.operators.softmax.reference(view, axis=1), rtol=1e-5)
    row = te.compute((N, 7), lambda i, j: a[i, j] * 2.0, name="row")
    z = te.compute((N, 7), lambda i, j: row[i, 6 - j], name="z")
    s = te.create_schedule(z)
    cached = s[row].cache_read(a, "local")
    s[row].compute_at(s[z], z.axis[0])
    s[cached].compute_at(s[row], s[row].loops[-1])
    tw.build(s, [a, z])(view, out)
    np.testing.assert_array_equal(out, 2 * view[:, ::-1])


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "offset alone": (lambda: te.placeholder((4,), offset=2), "an offset goes with strides: got 2"),
    "count": (lambda: te.placeholder((4, 4), strides=(1,)), "a stride for each dimension: expected 2"),
    "number": (lambda: te.placeholder((4,), strides=1), "a stride for each dimension"),  # type: ignore[arg-type]
    "fraction": (lambda: te.placeholder((4,), strides=(1.5,)), "not a stride: expected a number, or a symbol"),
    "sign": (
        lambda: te.placeholder((4,), strides=(te.var("s", lo=None),)),
        "not a stride",
    ),
    "before": (lambda: te.placeholder((4,), strides=(-2,), offset=5), "not an offset: expected an i64 of at least 6"),
    "negative": (lambda: te.placeholder((4,), strides=(2,), offset=-1), "not an offset"),
    "state": (
        lambda: te.scan(
            te.compute((1,), lambda t: 0.0),
            te.compute((4,), lambda t: 1.0),
            te.placeholder((4,), strides=(2,)),
        ),
        "the state is no stage",
    ),
    "extern": (
        lambda: te.extern((4,), [te.placeholder((4,), name="A", strides=(2,))], lambda a, b: None),
        "'A' has strides, which it does not see",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused_placeholders(what: str) -> None:
    make, message = WRONG[what]
    with pytest.raises(ExpressionError, match=message):
        make()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (X[:, :5][::-1], "'A': a symbol is out of range: expected s in 0.., got -40"),
        (X.astype(np.float64)[:, :5], "'A': wrong element type: expected f32, got f64"),
        (X[0], "'A': wrong rank: expected 2"),
        (X[:, :4], "wrong (shape|dimension)|disagree"),
        (np.zeros((12, 5), "f4,i2")["f0"], "'A': elements lie between elements"),
        (np.zeros(12 * 5 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(12, 5), "'A': is not aligned"),
        ([[1.0]], "'A': not an array"),
    ],
)
def test_refused_views(value: Any, message: str) -> None:
    a, b = doubled(free())
    f = tw.build(te.create_schedule(b), [a, b])
    with pytest.raises(CallError, match=message):
        f(value, np.zeros((12, 5), np.float32))
    with pytest.raises(CallError, match="wrong number of inputs"):
        f(value)


def test_what_is_written_must_not_be_read() -> None:
    a, b = _strided()
    memory = np.zeros(8, np.float32)
    with pytest.raises(CallError, match="shares memory"):
        tw.build(te.create_schedule(b), [a, b])(memory[::2], memory[:4])


def _strided() -> tuple[te.Tensor, te.Tensor]:
    a = te.placeholder((4,), name="A", strides=(2,))
    return a, te.compute((4,), lambda i: a[i], name="B")


def test_strides_along_one_element_say_nothing() -> None:
    n = te.var("n", lo=0)
    a = te.placeholder((n, 4), name="A", strides=(7, 1))
    b = te.compute((n, 4), lambda i, j: a[i, j] * 2.0, name="B")
    f = tw.build(te.create_schedule(b), [a, b])
    for view in (X[:1, :4], X[:0, :4], X[:3, :28].reshape(12, 7)[:5, :4]):
        out = np.zeros(view.shape, np.float32)
        f(view, out)
        np.testing.assert_array_equal(out, 2 * view)
    with pytest.raises(CallError, match=r"wrong strides: expected \[7, 1\] elements, got \[160, 4\] bytes"):
        f(X[:2, :4], np.zeros((2, 4), np.float32))


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({"lo": None, "hi": 30}, r"expected s in \.\.30, got 40"),
        ({"lo": 50}, r"expected s in 50\.\., got 40"),
        ({"lo": 1, "multiple": 3}, r"expected s in 1\.\., a multiple of 3, got 40"),
    ],
)
def test_ends_of_symbols_are_named(ends: dict[str, Any], message: str) -> None:
    s = te.var("s", **ends)  # a stride is never negative, which an offset need not say
    layout = {"strides": (40, 1), "offset": s} if ends["lo"] is None else {"strides": (s, 1)}
    a = te.placeholder((N, 4), name="A", **layout)
    b = te.compute((N, 4), lambda i, j: a[i, j] * 2.0, name="B")
    view = X[1:4, :4]
    with pytest.raises(CallError, match=message):
        te.bind_views([a, b], [view, np.zeros(view.shape, np.float32)])


def test_symbols_that_nothing_says() -> None:
    k = te.var("k")
    a = te.placeholder((4,), name="A", strides=(k * 2,))
    b = te.compute((4,), lambda i: a[i], name="B")
    f = tw.build(te.create_schedule(b), [a, b])
    out = np.zeros(4, np.float32)
    with pytest.raises(CallError, match="wrong strides"):
        f(X[0, :24:6], out)
    a, b = _strided()
    with pytest.raises(ScheduleError):
        tw.build(te.create_schedule(b), [a, b], in_place={b: a})
    a = te.placeholder((4,), name="A", strides=(2,), offset=1)
    b = te.compute((4,), lambda i: a[i], name="B")
    s = te.create_schedule(b)
    s.schedule.transform_layout("B", lambda i: (i // 4, i % 4), "A")
    with pytest.raises(CompileError, match="the memory of 'A' was laid out otherwise"):
        tw.build(s, [a, b])


PLACES: dict[str, Any] = {
    "dense": lambda x: x,
    "columns": lambda x: x[:, 3:20],
    "steps": lambda x: x[1::2, 2:30:3],
    "transposed": lambda x: x.T,
    "one row": lambda x: x[4:5, ::3],
    "one element": lambda x: x[3:4, 5:6],
    "far in the memory": lambda x: x[2:, 2:][3:, 1::2],
    "none": lambda x: x[3:3, ::2],
}


def _moved(s: Any, c: te.Tensor) -> None:
    s[c.op.inputs[0]].compute_at(s[c], c.axis[0])  # type: ignore[union-attr]


def _written_back(s: Any, c: te.Tensor) -> None:
    s[c].parallel(c.axis[0])
    s[c].cache_write("global")


RESULTS = {"plain": lambda s, b: None, "vectors": _vectors, "moved": _moved, "written back": _written_back}


@pytest.mark.daily(5)
@pytest.mark.costly(3)
@pytest.mark.parametrize("schedule", RESULTS)
@pytest.mark.parametrize("offset", [None, "symbol"])
@pytest.mark.parametrize("place", PLACES)
def test_results(place: str, offset: str | None, schedule: str) -> None:
    """A view is written, what lies between its elements is not; a stage may read a result where it lies."""
    n, m = te.var("n", lo=0), te.var("m", lo=0)
    a, k = te.placeholder((n, m), name="A"), te.reduce_axis(m)
    b = te.compute((n, m), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((n, m), lambda i, j: b[i, j] * 2.0, name="C")
    total = te.compute((n,), lambda i: te.sum(c[i, k], axis=k), name="T")
    there = te.strided(c, free(), te.var("o", lo=0) if offset else None)
    s = te.create_schedule([c, total])
    RESULTS[schedule](s, c)
    f = tw.build(s, [a, there, total], threads=2)
    memory = X.copy()
    view, want = PLACES[place](memory), X.copy()
    inputs = np.random.default_rng(5).standard_normal(view.shape).astype(np.float32)
    PLACES[place](want)[...] = (inputs + 1) * 2
    sums = np.zeros(len(view), np.float32)
    f(inputs, view, sums)
    np.testing.assert_array_equal(memory, want)
    np.testing.assert_allclose(sums, view.sum(1), rtol=1e-4, atol=1e-4)
    copied = X.copy()
    result, values = te.bind_views([a, there, total], [inputs, PLACES[place](copied), sums.copy()])
    interpret(f.func, result, symbols={v.name: int(str(value)) for v, value in values.items()})
    np.testing.assert_array_equal(copied, want)
    tw.build(s, [a, there, total], bounds="check")(inputs, PLACES[place](X.copy()), sums)


def test_results_of_a_reduction_and_in_columns() -> None:
    """Sums in every third element, from the last to the first."""
    a, k = te.placeholder((N, M), name="A"), te.reduce_axis(M)
    b = te.strided(te.compute((N,), lambda i: te.sum(a[i, k], axis=k), name="B"), (-3,))
    s = te.create_schedule(b)
    s[s[b].rfactor(s[b].split(k, 4)[1], -1).name].vectorize("k_1")
    out = np.zeros(36, np.float32)
    tw.build(s, [a, b])(X, out[::-3])
    np.testing.assert_allclose(out[::-3], X.sum(1), rtol=1e-5, atol=1e-5)
    assert not out[::3].any() or not out[1::3].any()


def test_refused_results() -> None:
    a, b = doubled(None)
    for strides in ((0, 1), (1, 1)):
        with pytest.raises(ExpressionError, match="result 'B': two elements would share a place"):
            te.strided(te.compute((4, 3), lambda i, j: 0.0, name="B"), strides)
    f = tw.build(te.create_schedule(b), [a, te.strided(b, free())])
    out = np.zeros((12, 40), np.float32)
    with pytest.raises(CallError, match="two elements of a result share a place"):
        f(X, np.lib.stride_tricks.as_strided(out, (12, 40), (4, 4)))
    out.flags.writeable = False
    with pytest.raises(CallError, match="read-only"):
        f(X, out)
    with pytest.raises(ExpressionError, match="'B' stands twice"):
        tw.build(te.create_schedule(b), [a, b, te.strided(b, free())])
    small = te.placeholder((4,), name="A")
    e = te.extern((4,), [small], lambda x, y: None, name="E")
    with pytest.raises(ScheduleError, match="'E' has strides"):
        tw.build(te.create_schedule(e), [small, te.strided(e, (2,))])
    c = te.compute((4,), lambda i: small[i], name="C")
    s = te.create_schedule(c)
    s.schedule.transform_layout("C", lambda i: (i // 4, i % 4), "C")
    with pytest.raises(ScheduleError, match="the memory of 'C' was laid out otherwise"):
        tw.build(s, [small, te.strided(c, (2,))])


def test_functions_from_outside_beside_a_result() -> None:
    """One that writes other memory does no harm."""
    small = te.placeholder((4,), name="A")
    e = te.extern((4,), [small], lambda x, y: np.multiply(x, 3, out=y), name="E")
    d = te.compute((4,), lambda i: e[i] + 1.0, name="D")
    out = np.zeros(8, np.float32)
    tw.build(te.create_schedule(d), [small, te.strided(d, (2,))])(np.arange(4, dtype=np.float32), out[::2])
    np.testing.assert_array_equal(out, [1, 0, 4, 0, 7, 0, 10, 0])
