"""storage_align and double_buffer: what they are lowered to, what they refuse, that they change no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.ir.loops import Allocate, For
from tilewright.ir.notes import DoubleBuffer, Prefetch, find
from tilewright.ir.parser import parse_func
from tilewright.ir.rewrite import walk
from tilewright.schedule import parse_trace
from tilewright.schedule.stages import StageSchedule
from tilewright.schedule.storage import MAX_FACTOR, StorageAlign
from tilewright.support.errors import ScheduleError


def mirrored(n: Any, m: Any = 64) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Rows of B and what reads them backwards."""
    a = te.placeholder((n, m), name="A")
    b = te.compute((n, m), lambda i, j: a[i, j] + 1.0, name="B")
    return a, b, te.compute((n, m), lambda i, j: b[i, m - 1 - j] * 2.0, name="C")


def tiled(n: Any, m: Any = 64, factor: int = 8) -> tuple[StageSchedule, te.Tensor, te.Tensor, te.Tensor]:
    """B in tiles of rows of C."""
    a, b, c = mirrored(n, m)
    s = te.create_schedule(c)
    outer, _ = s[c].split(c.axis[0], factor=factor)
    s[b].compute_at(s[c], outer)
    return s, a, b, c


def check(s: StageSchedule, args: list[te.Tensor], rows: int, columns: int = 64, threads: int = 1) -> Any:
    """The program computes what it is to compute, natively and interpreted; its trace and text read back the same."""
    f = tw.build(s, args, threads=threads)
    x = np.random.default_rng(rows).standard_normal((rows, columns), np.float32)
    out, oracle, flat = np.zeros((3, rows, columns), np.float32)
    f(x, out)
    interpret(f.func, [x, oracle])
    interpret(f.flat, [x, flat])
    for got in (out, oracle, flat):
        np.testing.assert_array_equal(got, (x[:, ::-1] + 1) * 2)
    func = s.schedule.trace.replay(te.create_schedule(args[-1]).func).func
    assert func == s.func and parse_trace(str(s.schedule.trace)) == s.schedule.trace
    assert parse_func(str(s.func)) == s.func
    return f


def shape_of(f: Any, name: str) -> list[str]:
    """The shape that a buffer is given."""
    result = [s.buffer for s in walk(f.flat.body) if isinstance(s, Allocate)] + list(f.flat.workspaces)
    return next([str(d) for d in b.shape] for b in result if b.name == name)


@pytest.mark.parametrize(
    ("m", "factor", "offset", "row"),
    [
        (64, 16, 1, 65),
        (64, 16, 0, 64),
        (60, 16, 0, 64),
        (61, 8, 4, 68),
        (7, 1, 0, 7),
        (3, 64, 63, 63),
        (64, 64, 63, 127),
    ],
)
@pytest.mark.parametrize("placed", [True, False])
def test_rows_are_until_now_separate(m: int, factor: int, offset: int, row: int, placed: bool) -> None:
    s, a, b, c = tiled(24, m) if placed else (None, *mirrored(24, m))
    s = s or te.create_schedule(c)
    s[b].storage_align(b.axis[0], factor, offset)
    f = check(s, [a, c], 24, m)
    assert shape_of(f, "B") == ["8" if placed else "24", str(row)]


def test_planes_and_symbolic_rows() -> None:
    a, b, c = mirrored(te.var("n"))
    s = te.create_schedule(c)
    s[b].storage_align(0, 16, 3)
    assert shape_of(check(s, [a, c], 5), "B") == ["n", "67"]
    x = te.placeholder((4, 6, 10), name="x")
    y = te.compute((4, 6, 10), lambda i, j, k: x[i, j, k] + 1.0, name="y")
    z = te.compute((4, 6, 10), lambda i, j, k: y[i, 5 - j, k], name="z")
    s = te.create_schedule(z)
    s[y].storage_align(y.axis[0], 16, 6)
    f = tw.build(s, [x, z])
    assert shape_of(f, "y") == ["4", "7", "10"]
    s[y].storage_align(y.axis[1], 16)
    assert shape_of(tw.build(s, [x, z]), "y") == ["4", "6", "16"]  # the last word on a buffer holds
    values = np.random.default_rng(0).standard_normal((4, 6, 10), np.float32)
    out = np.empty_like(values)
    f(values, out)
    np.testing.assert_array_equal(out, values[:, ::-1] + 1)


@pytest.mark.daily(4)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 37])
@pytest.mark.parametrize("symbolic", [False, True])
def test_filled_in_advance(rows: int, symbolic: bool) -> None:
    s, a, b, c = tiled(te.var("n") if symbolic else rows)
    s[b].double_buffer()
    f = check(s, [a, c], rows)
    if symbolic or rows > 8:
        assert shape_of(f, "B")[0] == "2"
        first = next(x for x in walk(f.flat.body) if isinstance(x, For))
        assert not any(x.name == "C" for x in _written(first))  # the first tile is there before the loop


def _written(s: Any) -> list[Any]:
    return [x.buffer for x in walk(s) if hasattr(x, "buffer") and hasattr(x, "value")]


def test_with_vectors_threads_and_two_buffers() -> None:
    a, b, c = mirrored(37)
    d = te.compute((37, 64), lambda i, j: a[i, j] * 0.0, name="D")
    c = te.compute((37, 64), lambda i, j: b[i, 63 - j] * 2.0 + d[i, j], name="C")
    s = te.create_schedule(c)
    outer, inner = s[c].split(c.axis[0], factor=4)
    for stage in (b, d):
        s[stage].compute_at(s[c], outer)
        s[stage].vectorize(s[stage].loops[-1])
        s[stage].double_buffer()
    s[c].parallel(inner)
    s[b].storage_align(b.axis[0], 32, 16)
    f = check(s, [a, c], 37, threads=2)
    assert shape_of(f, "B") == ["2", "4", "80"] and shape_of(f, "D") == ["2", "4", "64"]


def test_a_reduction_in_advance() -> None:
    """A tile of a product, with its init, an iteration before it is read."""
    x, y, k = te.placeholder((20, 9), name="x"), te.placeholder((9, 12), name="y"), te.reduce_axis(9, "k")
    p = te.compute((20, 12), lambda i, j: te.sum(x[i, k] * y[k, j], k), name="P")
    q = te.compute((20, 12), lambda i, j: te.maximum(p[i, 11 - j], 0.0), name="Q")
    s = te.create_schedule(q)
    outer, _ = s[q].split(q.axis[0], factor=4)
    s[p].compute_at(s[q], outer)
    s[p].double_buffer()
    f = tw.build(s, [x, y, q])
    assert shape_of(f, "P") == ["2", "4", "12"]
    u, v = (np.random.default_rng(0).integers(-3, 4, t).astype(np.float32) for t in ((20, 9), (9, 12)))
    out = np.empty((20, 12), np.float32)
    f(u, v, out)
    np.testing.assert_array_equal(out, np.maximum((u @ v)[:, ::-1], 0))


def test_what_is_done_to_the_loop_later_changes_no_result() -> None:
    for later in (
        lambda s, outer: s.split(outer, factor=2),
        lambda s, outer: s.parallel(outer),
        lambda s, outer: s.unroll(outer),
        lambda s, outer: s.vectorize(s.loops("C")[-1]),
        lambda s, outer: s.compute_inline("B"),
        lambda s, outer: s.set_scope("B", "local"),
    ):
        s, a, b, c = tiled(37)
        s[b].double_buffer()
        s[b].storage_align(0, 16, 1)
        later(s.schedule, s.schedule.loops("C")[0])
        check(s, [a, c], 37, threads=2)


def test_the_largest_factor_and_names_instead_of_tensors() -> None:
    _, b, c = mirrored(24)
    s = te.create_schedule(c)
    s[b].storage_align(0, MAX_FACTOR)
    with pytest.raises(ScheduleError, match="no such rows"):
        s[b].storage_align(0, MAX_FACTOR + 1)
    assert s.buffer_name("B") == s.buffer_name(b) == "B"


def refusals() -> dict[str, tuple[Callable[[], Any], str]]:
    _, b, c = mirrored(24)
    s = te.create_schedule(c)
    t, *_, bt, ct = tiled(24)
    return {
        "parameter": (lambda: s[c].storage_align(0, 16), "'C': it is a parameter"),
        "last": (lambda: s[b].storage_align(b.axis[1], 16), "no rows along dimension 1: expected 0 to 0"),
        "negative": (lambda: s[b].storage_align(-3, 16), "no rows along dimension -3"),
        "factor": (lambda: s[b].storage_align(0, 0), "no such rows: expected 1 <= factor"),
        "large": (lambda: s[b].storage_align(0, 1 << 17), "no such rows"),
        "offset": (lambda: s[b].storage_align(0, 16, 16), "no such rows"),
        "axis": (lambda: s[b].storage_align(c.axis[0], 16), "not a dimension: expected an axis of 'B'"),
        "not an axis": (lambda: s[b].storage_align("i", 16), "not a dimension"),
        "no remainder": (_planes, "rows of 4 elements never leave the remainder 3 of 16"),
        "symbolic": (_symbolic, "its rows have no constant length"),
        "layout": (_layout, "its storage is aligned by its dimensions"),
        "output": (lambda: t[ct].double_buffer(), "'C': it is a parameter"),
        "no loop": (lambda: s[b].double_buffer(), "no loop is around block 'B' and what reads it"),
        "twice": (lambda: (t[bt].double_buffer(), t[bt].double_buffer()), "it is doubled already"),
        "registers": (lambda: _tiled("local", None), "it is in registers"),
        "parallel": (lambda: _tiled(None, "parallel"), "is parallel, its iterations do not come one after another"),
        "unrolled": (lambda: _tiled(None, "unroll"), "is unrolled, its iterations"),
        "two writers": (_two_writers, "other blocks write it too"),
        "two outputs": (_two_outputs, "block 'B' writes other buffers at the same time"),
        "nobody reads": (_unread, "no block reads it"),
        "reads what the loop writes": (_chain, "block 'A' writes 'A', which it reads, in the same loop"),
        "shared loops": (_shared_loops, "other blocks stand in the loops of block 'B'"),
        "recurrence": (_recurrence, "runs over the steps of a recurrence"),
        "external": (_external, "block 'E' is the call of 'nothing'"),
    }


def _planes() -> None:
    x = te.placeholder((4, 3, 4), name="x")
    y = te.compute((4, 3, 4), lambda i, j, k: x[i, j, k], name="y")
    z = te.compute((4, 3, 4), lambda i, j, k: y[i, j, k], name="z")
    te.create_schedule(z)[y].storage_align(y.axis[0], 16, 3)


def _symbolic() -> None:
    m = te.var("m")
    x = te.placeholder((4, 3, m), name="x")
    y = te.compute((4, 3, m), lambda i, j, k: x[i, j, k], name="y")
    z = te.compute((4, 3, m), lambda i, j, k: y[i, j, k], name="z")
    te.create_schedule(z)[y].storage_align(y.axis[0], 16)


def _layout() -> None:
    _, b, c = mirrored(24)
    s = te.create_schedule(c)
    s[b].storage_align(0, 16, 1)
    s[b].transform_layout(lambda i, j: (j, i))


def _tiled(scope: str | None, kind: str | None) -> None:
    s, _, b, c = tiled(24)
    if scope:
        s[b].set_scope(scope)
    if kind:
        getattr(s[c], kind)(s[c].loops[0])
    s[b].double_buffer()


def _two_writers() -> None:
    x, k = te.placeholder((8, 4), name="x"), te.reduce_axis(4, "k")
    y = te.compute((8,), lambda i: te.sum(x[i, k], k), name="y")
    z = te.compute((8,), lambda i: y[i], name="z")
    s = te.create_schedule(z)
    s[y].compute_at(s[z], z.axis[0])
    s[y].decompose_reduction(s[y].loops[-1])
    s[y].double_buffer()


def _two_outputs() -> None:
    x = te.placeholder((8,), name="x")
    p, q = te.compute((8,), lambda i: (x[i], x[i] + 1.0), name="B")
    z = te.compute((8,), lambda i: p[i] + q[i], name="z")
    s = te.create_schedule(z)
    s.schedule.compute_at("B", s[z].loops[0])
    s.schedule.double_buffer("B", "B_0")


def _unread() -> None:
    x = te.placeholder((8,), name="x")
    p, q = te.compute((8,), lambda i: (x[i], x[i] + 1.0), name="B")
    z = te.compute((8,), lambda i: p[i], name="z")
    te.create_schedule(z).schedule.double_buffer("B", q.name)


def _chain() -> None:
    x = te.placeholder((8, 4), name="x")
    a = te.compute((8, 4), lambda i, j: x[i, j], name="A")
    b = te.compute((8, 4), lambda i, j: a[i, 3 - j] + x[i, j], name="B")
    c = te.compute((8, 4), lambda i, j: b[i, 3 - j], name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.axis[0])
    s[a].compute_at(s[c], c.axis[0])
    s[b].double_buffer()


def _shared_loops() -> None:
    x = te.placeholder((8, 4), name="x")
    a = te.compute((8, 4), lambda i, j: x[i, j], name="A")
    b = te.compute((8, 4), lambda i, j: a[i, j] + x[i, j], name="B")
    c = te.compute((8, 4), lambda i, j: b[i, 3 - j], name="C")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.axis[0])
    s[a].compute_at(s[b], s[b].loops[-1])
    s[b].double_buffer()


def _recurrence() -> None:
    x, state = te.placeholder((5, 3), name="x"), te.placeholder((5, 3), name="state")
    first = te.compute((1, 3), lambda t, i: x[0, i])
    between = te.compute((5, 3), lambda t, i: x[t, i] * 2.0, name="between")
    after = te.compute((5, 3), lambda t, i: state[t - 1, i] + between[t, i])
    rows = te.scan(first, after, state)
    s = te.create_schedule(rows)
    s[between].compute_at(s[after], s[after].loops[0])
    s[between].double_buffer()


def _external() -> None:
    def nothing(x: Any, y: Any) -> None: ...

    x = te.placeholder((4, 4), name="x")
    e = te.extern((4, 4), [x], nothing, name="E")
    z = te.compute((4, 4), lambda i, j: e[i, j], name="z")
    te.create_schedule(z)[e].storage_align(0, 8)


@pytest.mark.parametrize("what", refusals())
def test_refusals(what: str) -> None:
    step, message = refusals()[what]
    with pytest.raises(ScheduleError, match=message):
        step()


def test_notes() -> None:
    s, _, b, c = tiled(24)
    s[b].storage_align(0, 16, 1)
    s[b].double_buffer()
    note = find(s.func.notes, StorageAlign)
    assert note is not None and (note.buffers, note.dimensions, note.factors, note.offsets) == (
        ("B",),
        (0,),
        (16,),
        (1,),
    )
    loop = s.schedule.get(s[c].loops[0])
    assert isinstance(loop, For) and find(loop.notes, DoubleBuffer) == DoubleBuffer(("B",))  # type: ignore[arg-type]
    assert list(StorageAlign(("B",), (0, 1), (16,), (1,)).conflicts())  # type: ignore[arg-type]


def test_prefetch_is_a_note_of_ones_own() -> None:
    """Software prefetch is asked for by a note on any loop."""
    a, b, c = mirrored(64)
    s = te.create_schedule(c)
    s[b].annotate(Prefetch(("A",), nbytes=1024, level=1), b.axis[0])  # type: ignore[arg-type]
    f = check(s, [a, c], 64)
    assert "@llvm.prefetch" in f.source("llvm")
