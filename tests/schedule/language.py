"""Random programs of the whole language, beside `programs.py`: conditions that read arrays, functions from outside,
views, several outputs, recurrences; and the ways in which they are run."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tests.codegen.c.c_run import compile_c
from tests.codegen.llvm.llvm_run import Native
from tests.schedule import programs
from tests.schedule.guard import guarded
from tests.schedule.native import BARRIER, TARGET, call_threads
from tilewright import te
from tilewright.codegen import external
from tilewright.codegen.c.emit import emit_c
from tilewright.codegen.interpret.interpreter import interpret
from tilewright.codegen.llvm.emit import compile_llvm, emit_llvm, kernel_symbols
from tilewright.ir.expr import Expr, as_int
from tilewright.ir.loops import NTHREADS, PrimFunc
from tilewright.ir.rewrite import substitute
from tilewright.transform.loops import readable_loops

Arrays = dict[str, np.ndarray[Any, Any]]
Symbols = dict[str, int]


def _size(rng: random.Random, name: str, sizes: Sequence[int]) -> Any:
    """A number or a symbol."""
    return te.var(name, hi=11) if rng.random() < 0.3 else rng.choice(sizes)


def conditional(rng: random.Random) -> PrimFunc:
    """Reductions over the elements that other arrays choose."""
    m, n = _size(rng, "m", [3, 5, 7]), _size(rng, "n", [5, 7, 10])
    a, w, v = (te.placeholder(s, name=x) for x, s in (("A", (m, n)), ("W", (n,)), ("V", (m,))))
    k = te.reduce_axis(n, "k")
    reduce = rng.choice([te.sum, te.max, te.min])
    where = rng.choice(
        [
            lambda i: w[k] > 0.0,
            lambda i: a[i, k] > 0.0,
            lambda i: (w[k] > 0.0) & (v[i] > -2.0),
            lambda i: (k < 5) & (w[k] != 0.0),
            lambda i: (w[k] > 0.0) | (a[i, k] < 1.0),
        ]
    )
    source = te.compute((m, n), lambda i, j: a[i, j] * 2.0, name="D") if rng.random() < 0.4 else a
    b = te.compute((m,), lambda i: reduce(source[i, k], k, where=where(i)), name="B")
    c = te.compute((m,), lambda i: te.if_then_else(v[i] > 0.0, b[i], v[i]), name="C")
    return te.create_prim_func([a, w, v, c], "conditional")


def reversed_columns(x: Any, y: Any) -> None:
    """The columns in the other order, each added up from the start."""
    y[...] = np.cumsum(x[:, ::-1], axis=1)


TEXT = """
define void @thrice(ptr %x, ptr %y, i64 %n, i64 %m) {
entry:
  %size = mul i64 %n, %m
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp slt i64 %i, %size
  br i1 %more, label %body, label %done
body:
  %p = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %p
  %w = fmul float %v, 3.0
  %q = getelementptr float, ptr %y, i64 %i
  store float %w, ptr %q
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""
THRICE = """
void thrice(const float *x, float *y, int64_t n, int64_t m) { for (int64_t i = 0; i < n * m; ++i) y[i] = x[i] * 3; }
"""


def foreign(rng: random.Random) -> PrimFunc:
    """A function from outside between stages, in Python or as text."""
    m, n = _size(rng, "m", [3, 5]), _size(rng, "n", [4, 7])
    x = te.placeholder((m, n), name="X")
    b = te.compute((m, n), lambda i, j: x[i, j] + 1.0, name="B")
    if rng.random() < 0.4:
        e = te.extern((m, n), [b], reversed_columns, name="E")
    else:
        e = te.extern((m, n), [b], "thrice", llvm=TEXT, sizes=[m, n], name="E")
    c = te.compute((m, n), lambda i, j: e[i, n - 1 - j] - x[i, j], name="C")
    r = te.reduce_axis(n, "r")
    d = te.compute((m,), lambda i: te.sum(c[i, r], r), name="D")
    return te.create_prim_func([x, d, c] if rng.random() < 0.5 else [x, d], "foreign")


def views(rng: random.Random) -> PrimFunc:
    """Parts of other memory, with strides that are known, negative or symbols."""
    m, n = _size(rng, "m", [2, 5]), _size(rng, "n", [4, 9])
    strides = rng.choice([(te.var("s", lo=0, hi=12), 1), (te.var("s", lo=0, hi=9), te.var("t", lo=0, hi=3)), (20, 2)])
    offset = te.var("o", lo=0, hi=5) if rng.random() < 0.3 else None
    if isinstance(m, int) and rng.random() < 0.3:
        strides, offset = (-10, 1), None
    a = te.placeholder((m, n), name="A", strides=strides, offset=offset)
    w = te.placeholder((n,), name="W", strides=(rng.choice([1, 2, te.var("u", lo=0, hi=4)]),))
    k = te.reduce_axis(n, "k")
    b = te.compute((m, n), lambda i, j: a[i, j] * 2.0 + w[j], name="B")
    c = te.compute((m,), lambda i: te.sum(b[i, k] * w[k], k), name="C")
    d = te.compute((m, n), lambda i, j: b[i, j] - c[i], name="D")
    return te.create_prim_func([a, w, d], "views")


def pairs(rng: random.Random) -> PrimFunc:
    """Stages with two outputs, one of them among the results, and a triangle."""
    n = _size(rng, "n", [4, 7])
    a = te.placeholder((n, n), name="A")
    p, q = te.compute((n, n), lambda i, j: (a[i, j] + 1.0, a[j, i] * 2.0), name="P")

    def below(i: Any) -> Any:
        j = te.reduce_axis((0, i + 1), "j")
        return te.sum(p[i, j] * q[j, i], j)

    t = te.compute((n,), below, name="T")
    u = te.compute((n, n), lambda i, j: t[i] - p[i, j], name="U")
    return te.create_prim_func([a, u, q] if rng.random() < 0.5 else [a, u], "pairs")


def tiles(rng: random.Random) -> PrimFunc:
    """A chain of stages that read each other in other orders: something to fill ahead."""
    m, n = _size(rng, "m", [6, 9]), rng.choice([4, 8])
    a = te.placeholder((m, n), name="A")
    b = te.compute((m, n), lambda i, j: a[i, j] + 1.0, name="B")
    r = te.reduce_axis(n, "r")
    c = te.compute((m, n), lambda i, j: te.sum(b[i, r] * a[i, j], r), name="C")
    d = te.compute((m, n), lambda i, j: c[i, n - 1 - j] + b[i, j], name="D")
    return te.create_prim_func([a, d], "tiles")


def pointwise(rng: random.Random) -> PrimFunc:
    """Elements of an input to the same places, which may be the input's own."""
    m, n = _size(rng, "m", [3, 6]), rng.choice([5, 8])
    a, b = te.placeholder((m, n), name="A"), te.placeholder((m, n), name="B")
    c = te.compute((m, n), lambda i, j: a[i, j] * 2.0 - b[i, j], name="C")
    d = te.compute((m, n), lambda i, j: te.maximum(c[i, j], b[i, j]), name="D")
    return te.create_prim_func([a, b, d], "pointwise")


POOL = {"kernel": (3, 2), "strides": (2, 1), "dilations": (1, 1), "pads": (1, 0, 1, 1), "ceil_mode": False}
OPERATORS: tuple[tuple[str, list[tuple[int, ...]], dict[str, Any]], ...] = (
    ("adaptive_avg_pool", [(1, 2, 7, 5)], {"size": (3, 4)}),
    ("adaptive_max_pool", [(2, 1, 7)], {"size": (3,)}),
    ("avg_pool_grad", [(1, 1, 3, 6)], POOL | {"extents": (5, 6)}),
    ("max_pool_grad", [(1, 1, 5, 6), (1, 1, 3, 6)], POOL),
    ("depth_to_space", [(1, 8, 3, 2)], {"block": 2, "mode": "DCR"}),
    ("space_to_depth", [(1, 2, 4, 6)], {"block": 2}),
    ("layout_transform", [(2, 5, 3)], {"source": "NCW", "target": "NCW4c", "value": 1}),
    ("layout_transform", [(2, 2, 3, 4)], {"source": "NCW4c", "target": "NWC", "extents": (2, 3, 7)}),
    ("lp_normalize", [(3, 5)], {"axes": (1,), "epsilon": 1.0}),
    ("slice", [(5, 6)], {"begin": (1, 5), "size": (3, 3), "step": (1, -2)}),
    ("topk", [(3, 5)], {"axis": 1, "k": 2, "largest": True}),
    ("softmax", [(4, 5)], {"axis": 0}),
)


def library(rng: random.Random) -> PrimFunc:
    """An operator of the library between stages of one's own."""
    name, shapes, values = rng.choice(OPERATORS)
    inputs = [te.placeholder(shape, name=f"X{k}") for k, shape in enumerate(shapes)]
    first, *rest = inputs
    before = te.compute(first.shape, lambda *i: first[i] * 2.0, name="B") if rng.random() < 0.6 else first
    results = getattr(tw.operators, name)(before, *rest, **values)
    result = results[0] if isinstance(results, tuple) else results
    after = te.compute(result.shape, lambda *i: result[i] + 1.0, name="C")
    others = list(results[1:]) if isinstance(results, tuple) else []
    return te.create_prim_func([*inputs, *others, after], "library")


def results_in_views(rng: random.Random) -> PrimFunc:
    """Results that lie with strides in other memory, which later stages may read there."""
    m, n = _size(rng, "m", [2, 5]), _size(rng, "n", [4, 6])
    a = te.placeholder((m, n), name="A")
    b = te.compute((m, n), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((m, n), lambda i, j: b[i, j] * 2.0 - b[i, n - 1 - j], name="C")
    k = te.reduce_axis(n, "k")
    d = te.compute((m,), lambda i: te.sum(c[i, k], k), name="D")
    there = te.strided(c, rng.choice([(26, 2), (te.var("s", lo=12, hi=15), 1), (1, 5), (-12, 1)]))
    return te.create_prim_func([a, there, d] if rng.random() < 0.5 else [a, there], "results_in_views")


PROGRAMS: tuple[Callable[[random.Random], PrimFunc], ...] = (
    conditional,
    conditional,
    foreign,
    foreign,
    views,
    views,
    pairs,
    tiles,
    tiles,
    pointwise,
    library,
    library,
    results_in_views,
    programs.matmul,
    programs.recurrence,
    programs.rows,
)


def arrays_of(func: PrimFunc, rng: random.Random) -> tuple[Arrays, Symbols]:
    """Small whole numbers, so that sums are exact in any order, and the values of the symbols."""
    symbols: Symbols = {}
    values: dict[Any, Expr] = {}
    for v in func.symbols:
        low = 1 if v.lo is None else v.lo
        symbols[v.name] = v.multiple * rng.randint(-(-low // v.multiple), (v.hi or 12) // v.multiple)
        values[v] = te.const(symbols[v.name])
    generator = np.random.default_rng(rng.randrange(1 << 30))
    arrays: Arrays = {}
    for b in func.params:
        shape = [as_int(substitute(x, values)) or 0 for x in b.shape]
        arrays[b.name] = generator.integers(0 if b.dtype.kind == "uint" else -3, 4, shape).astype(b.dtype.numpy)
    return arrays, symbols


def _memory(flat: PrimFunc, params: int, arrays: Arrays, symbols: Symbols, threads: int) -> list[Any]:
    """Guarded copies of the arrays, and unwritten workspaces."""
    values: dict[Any, Expr] = {v: te.const(symbols[v.name]) for v in flat.symbols if v.name in symbols}
    values[NTHREADS] = te.const(threads)
    memory = [guarded(arrays[b.name]) for b in flat.params[:params]]
    for b in flat.params[params:]:
        shape = [as_int(substitute(x, values)) or 0 for x in b.shape]
        # As the runtime gives it: whole cache lines.
        size = -(-int(np.prod(shape)) * b.dtype.itemsize // 64) * 64
        room = guarded(np.full(size, 0xA5, np.uint8))
        memory.append(room)
    return memory


def run_native(func: PrimFunc, flat: PrimFunc, arrays: Arrays, symbols: Symbols, opt: int, threads: int) -> None:
    """Compile and call, in place; a touch after an array ends the process."""
    image = compile_llvm(emit_llvm(flat, TARGET), TARGET, opt, external.texts(flat.body))
    others = list(external.stubs(flat.body).values())
    kernel = Native(image, flat.name, {"tw_barrier": BARRIER.address}, others)
    memory = _memory(flat, len(func.params), arrays, symbols, threads)
    sizes = [symbols[v.name] for v in kernel_symbols(flat)]
    call_threads(kernel, memory, sizes, threads)
    external.raise_pending()
    for b, a in zip(func.params, memory, strict=False):
        arrays[b.name][...] = a


@dataclass(frozen=True, slots=True)
class CCase:
    """A case that waits for the C compiler."""

    func: PrimFunc
    flat: PrimFunc
    text: str
    arrays: Arrays
    symbols: Symbols
    expected: Arrays


def c_case(func: PrimFunc, arrays: Arrays, symbols: Symbols, expected: Arrays) -> CCase | None:
    """The case in C; None where a Python function would be called."""
    flat = readable_loops(func, TARGET)
    if external.calls_python(flat.body):
        return None
    return CCase(func, flat, emit_c(flat), arrays, symbols, expected)


SANITIZERS = ("-O0", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")


def run_c(case: CCase) -> None:
    """Compile with the sanitiser of undefined behaviour, which traps; memory ends at guarded pages."""
    text = case.text + (THRICE if "thrice(" in case.text else "")
    arrays = {name: a.copy() for name, a in case.arrays.items()}
    memory = _memory(case.flat, len(case.func.params), arrays, case.symbols, 1)
    sizes = [1 if v == NTHREADS else case.symbols[v.name] for v in case.flat.symbols]
    function = getattr(compile_c(text, *SANITIZERS), case.flat.name)
    function(*(ctypes.c_void_p(a.ctypes.data) for a in memory), *map(ctypes.c_int64, sizes))
    for b, a in zip(case.func.params, memory, strict=False):
        arrays[b.name][...] = a
    compare(arrays, case.expected, "C")


def run_interpreter(func: PrimFunc, arrays: Arrays, symbols: Symbols) -> None:
    interpret(func, arrays, symbols={v.name: symbols[v.name] for v in func.symbols if v.name in symbols})


def compare(got: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    for name, array in got.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=f"{what}: {name}")
